"""The loss of a unigram model, which knows how frequent tokens are and nothing else. Legend: v vocabulary."""

import numpy as np

CHUNK = 2**22
"""Token ids that are counted at once, so that a memory-mapped text is never in memory as a whole."""


def token_counts(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """Counts how often each token occurs, int64 of shape (vocabulary,)."""
    counts_v = np.zeros(vocabulary, dtype=np.int64)
    for start in range(0, len(ids), CHUNK):
        counts_v += np.bincount(ids[start : start + CHUNK], minlength=vocabulary)
    return counts_v


def row_counts(ids: np.ndarray, lengths: np.ndarray, rows: np.ndarray, vocabulary: int) -> np.ndarray:
    """Counts how often each token occurs in some of the rows that lie end to end in `ids`, (vocabulary,).

    Args:
        ids: the tokens of all rows.
        lengths: tokens of each row.
        rows: numbers of the rows that count.
    """
    chosen = np.zeros(len(lengths), dtype=bool)
    chosen[rows] = True
    return token_counts(ids[np.repeat(chosen, lengths)], vocabulary)


def unigram_nll(training_v: np.ndarray, validation_v: np.ndarray) -> float | None:
    """Computes the loss of the unigram model of the training text on the validation text, in nats per token.

    A token that occurs c times among n has the probability (c + 1) / (n + v): add-one smoothing, so that tokens of
    validation alone have one too.

    Args:
        training_v: how often each token is a target of training.
        validation_v: the same of validation.

    Returns:
        The loss, or None where validation has no targets.
    """
    if not validation_v.sum():
        return None
    probability_v = (training_v + 1) / (training_v.sum() + len(training_v))
    return float(-(validation_v @ np.log(probability_v)) / validation_v.sum())
