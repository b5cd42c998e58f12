"""The method put to the test where the text that is evaluated is a sample too: what is claimed of other text.

An experiment is a difference per token of seeds s on documents d: a part of each seed, one of each document, and one of
both, as crossed random effects; the truth is the mean over all seeds and all documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.two_way import cover_texts, two_way
from lm.stats.verdicts import Comparison, confirm

SEEDS, DOCUMENTS = 6, 60
RATIOS = {"half": 0.5, "three quarters": 0.75, "twice": 2.0}
"""The standard error over texts, in that over seeds; .75 is what the quickstart's differences have."""


@dataclass(frozen=True)
class Counted:
    """In how many of so many simulated experiments something happened, and in what share it may."""

    name: str
    events: int
    trials: int
    at_least: float
    at_most: float
    binding: bool


def drawn(random: np.random.Generator, ratio: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """An experiment whose arm changes nothing: sums over documents (s, d), and tokens (d,)."""
    tokens_d = np.ceil(random.lognormal(4, 0.7, DOCUMENTS))
    seed_s = random.normal(size=(SEEDS, 1))
    document_d = ratio * np.sqrt(DOCUMENTS / SEEDS) * random.normal(size=DOCUMENTS)
    both_sd = random.normal(size=(SEEDS, DOCUMENTS))
    return (seed_s + document_d + both_sd) * tokens_d, tokens_d


def audit_texts(random: np.random.Generator, experiments: int) -> Iterator[Counted]:
    """How often an interval over seeds alone, and one over seeds and text, leave out the truth about other text.

    There is a verdict exactly where the interval leaves out zero, which here is the truth: these are the false claims.
    """
    for name, ratio in RATIOS.items():
        alone = wide = 0
        for _ in range(experiments):
            difference_sd, tokens_d = drawn(random, ratio)
            sample = (difference_sd.sum(axis=1) / tokens_d.sum()).tolist()
            one = Comparison(sample, p=sign_flip_p(sample))
            confirm([one])
            alone += one.significant
            cover_texts(one, two_way(difference_sd, tokens_d), ALPHA)
            wide += one.significant
        title = f"false claims of other text, whose noise is {name} that of {SEEDS} seeds"
        yield Counted(f"{title}: seeds alone", alone, experiments, 0.0, ALPHA, binding=False)
        yield Counted(f"{title}: seeds and text", wide, experiments, 0.0, ALPHA, binding=True)
