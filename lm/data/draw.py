"""The part of a split that is evaluated: whole documents, drawn by a hash up to a number of tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lm.data.batch import MAX_SEGMENTS, MIN_DOCUMENTS
from lm.data.order import derive_seed
from lm.data.shards import chunks_of


def draw_documents(lengths: np.ndarray, budget: int, key: Sequence[object]) -> np.ndarray:
    """Return the numbers of documents of these lengths to evaluate, rising: all, or as drawn up to `budget` tokens.

    The draw depends on `key` alone, and a smaller budget draws some of the documents of a larger one.
    """
    if lengths.sum() <= budget:
        return np.arange(len(lengths))
    order = np.random.RandomState(derive_seed("evaluation", *key) % 2**32).permutation(len(lengths))
    return np.sort(order[: max(1, int(np.searchsorted(np.cumsum(lengths[order]), budget, side="right")))])


def draw_ids(ids: Any, end: int | None, budget: int, key: Sequence[object]) -> Any:
    """Return packed ids of documents that end with the token `end`, as drawn up to `budget`; all if they are no more.

    Of a text of few documents, equal segments are taken instead, from places that are equally far apart.
    """
    if len(ids) <= budget:
        return ids
    ends = [np.flatnonzero(chunk == end) + number for number, chunk in chunks_of(ids)] if end is not None else []
    bounds = np.concatenate([[0], *(part + 1 for part in ends), [len(ids)]]).astype(np.int64)
    lengths = np.diff(bounds)
    if len(lengths) < MIN_DOCUMENTS:
        starts = np.arange(MAX_SEGMENTS) * len(ids) // MAX_SEGMENTS
        stops = starts + max(1, budget // MAX_SEGMENTS)
    else:
        chosen = draw_documents(lengths, budget, key)
        starts, stops = bounds[chosen], bounds[chosen + 1]
    return np.concatenate([ids[start:stop] for start, stop in zip(starts, stops, strict=True)])[:budget]
