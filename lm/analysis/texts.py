"""The noise of the evaluation's text in what cells are compared by, where they kept their losses by document.

Items of a task take the place of documents where cells are compared by one of its quantities.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lm.analysis.results import HEADLINE, Records, value
from lm.config.tree import InputError
from lm.stats.tests import item_flip_p
from lm.stats.two_way import TwoWay, two_way
from lm.store.documents import KEPT, Documents, entry_of, read_documents
from lm.store.metrics import is_of_task
from lm.store.record import Record

MIN_DOCUMENTS = 20  # documents, or stretches, from which on their noise can be told

# Quantities whose noise over text is known, and the loss by document that each is a multiple of. Bits per byte are
# nats per token times the tokens of a byte of this split, which counts as known: its own noise is a share of the
# difference that hardly matters, and none where the difference is zero.
LOSS_OF = {**{name: name for name in KEPT}, "bits_per_byte": "nll"}

DocumentCache = dict[tuple[str, str], Documents]  # losses by document that were read, by cell and loss


@dataclass(frozen=True)
class Texts:
    """Noise of each arm's difference in a quantity, the unit of text, and why some arms have none."""

    noise: dict[str, TwoWay]
    kind: str
    lacking: dict[str, str]


def generalises(results: Records) -> bool:
    """Return whether the experiment wants intervals of judged quantities to cover other text."""
    return results.manifest.get("generalise") != "seeds" and not results.manifest.get("adaptive")


def texts(results: Records, quantity: str = HEADLINE) -> Texts:
    """Estimate the noise of text in a quantity of LOSS_OF, for each arm but the baseline."""
    read: DocumentCache = {}
    noises, lacking, kinds = dict[str, TwoWay](), dict[str, str](), set[str]()
    for arm in results.arms[1:]:
        weights, seeds = {arm: 1.0, results.arms[0]: -1.0}, list(results.pairs(arm))
        try:
            noises[arm], kind = noise_over_texts(results, weights, quantity, seeds, read)
            kinds.add(kind)
        except InputError as error:
            lacking[arm] = str(error)
    return Texts(noises, next(iter(kinds)) if len(kinds) == 1 else "document", lacking)


def noise_over_texts(
    results: Records, weights: Mapping[str, float], quantity: str, seeds: Sequence[int], read: DocumentCache
) -> tuple[TwoWay, str]:
    """Estimate the noise of a weighted sum of arms over seeds and documents, and name the unit of text.

    The quantity is a key of LOSS_OF, or of a task. What was `read` is used and added to. Raises InputError where it is
    not known.
    """
    if len(seeds) < 2:
        raise InputError("it takes two seeds that ended well")
    loss, cells, values = LOSS_OF.get(quantity, quantity), list[Documents](), list[list[float]]()
    for record in (results.records[arm, seed] for seed in seeds for arm in weights):
        if record is None or not entry_of(record, loss):
            raise InputError("cells have no scores by item" if is_of_task(loss) else "cells have no losses by document")
        key = record["id"], loss
        read[key] = read.get(key) or read_documents(results.store.documents(*key), record, loss)
        cells.append(read[key])
        values.append([value(record, quantity), value(record, loss)])
    tokens_d, kind = cells[0].tokens_d, cells[0].kind
    if any(cell.kind != kind or not np.array_equal(cell.tokens_d, tokens_d) for cell in cells):
        raise InputError("cells were not evaluated on the same documents")
    if (held := int((tokens_d > 0).sum())) < MIN_DOCUMENTS:
        plural = f"{kind}es" if kind == "stretch" else f"{kind}s"
        raise InputError(f"{held} {plural}, and at least {MIN_DOCUMENTS} are needed")
    factor = 1.0
    if quantity != loss:
        factor = values[0][0] / values[0][1] if values[0][1] else 0.0
        columns = np.array(values).T
        if not np.allclose(columns[0], factor * columns[1], rtol=1e-6, atol=0):
            raise InputError("cells were not evaluated on the same bytes")
    sides = [cells[start : start + len(weights)] for start in range(0, len(cells), len(weights))]
    sums = [sum(weight * cell.nll_d for weight, cell in zip(weights.values(), side, strict=True)) for side in sides]
    return two_way(factor * np.array(sums), tokens_d.astype(np.float64)), kind


def texts_by_quantity(results: Records) -> dict[str, Texts]:
    """Estimate the noise of text in each measured quantity that has losses by document or is judged."""
    measured = [record["metrics"] for record in results.records.values() if record is not None]
    names = [name for name in LOSS_OF if name in (*KEPT, *results.judged)]
    names += dict.fromkeys(name for metrics in measured for name in metrics if is_of_task(name))
    return {name: texts(results, name) for name in names if any(name in metrics for metrics in measured)}


def items_p(results: Records, arm: str, quantity: str) -> float:
    """Return the exact p of an arm's difference over the items of a task, on the seeds that were trained.

    NaN where scores by item are missing, or cells were not measured on as many.
    """
    sums, read = list[np.ndarray](), functools.partial(read_scores, results, quantity=quantity)
    try:
        sums = [read(x) - read(y) for x, y in results.pairs(arm).values()]
        return item_flip_p(np.sum(sums, axis=0)) if sums else math.nan
    except (InputError, ValueError):  # not kept, or of other items
        return math.nan


def read_scores(results: Records, record: Record, quantity: str) -> np.ndarray:
    """Read the scores of a record's items behind a quantity. Raises InputError where there are none."""
    if not entry_of(record, quantity):
        raise InputError("cells have no scores by item")
    return read_documents(results.store.documents(record["id"], quantity), record, quantity).nll_d
