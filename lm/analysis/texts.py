"""The noise of the evaluation's text in what cells are compared by, where they kept their losses by document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lm.analysis.results import HEADLINE, Results, value
from lm.config.tree import InputError
from lm.stats.two_way import TwoWay, two_way
from lm.store.documents import KEPT, Documents, read_documents
from lm.store.record import Record

MIN_DOCUMENTS = 20
"""Documents, or stretches, from which on their noise can be told."""

LOSS_OF = {**{name: name for name in KEPT}, "bits_per_byte": "nll"}
"""Quantities whose noise over text is known, and the loss by document that each is a multiple of.

Bits per byte are nats per token times the tokens of a byte of this split, which counts as known: its own noise is a
share of the difference that hardly matters, and none where the difference is zero.
"""


DocumentCache = dict[tuple[str, str], Documents]
"""Losses by document that were read already, by cell and by which loss they are of."""


@dataclass(frozen=True)
class Texts:
    """Noise of each arm's difference in a quantity, the unit of text, and why some arms have none."""

    noise: dict[str, TwoWay]
    kind: str
    lacking: dict[str, str]


def generalises(results: Results) -> bool:
    """Return whether the experiment wants intervals of judged quantities to cover other text."""
    return results.manifest.get("generalise") != "seeds" and not results.manifest.get("adaptive")


def texts(results: Results, quantity: str = HEADLINE) -> Texts:
    """Estimate the noise of text in a quantity of LOSS_OF, for each arm but the baseline."""
    read: DocumentCache = {}
    collected, kinds = Texts({}, "document", {}), set[str]()
    for arm in results.arms[1:]:
        try:
            noise, kind = noise_over_texts(
                results, {arm: 1.0, results.arms[0]: -1.0}, quantity, list(results.pairs(arm)), read
            )
        except InputError as error:
            collected.lacking[arm] = str(error)
            continue
        collected.noise[arm] = noise
        kinds.add(kind)
    return Texts(collected.noise, next(iter(kinds)) if len(kinds) == 1 else "document", collected.lacking)


def noise_over_texts(
    results: Results, weights: Mapping[str, float], quantity: str, seeds: Sequence[int], read: DocumentCache
) -> tuple[TwoWay, str]:
    """Estimate the noise of a weighted sum of arms over seeds and documents, and name the unit of text.

    Args:
        results: of the experiment.
        weights: of each arm.
        quantity: a key of LOSS_OF.
        seeds: on which all these arms have it.
        read: what was read before, to which others are added.

    Raises:
        InputError: in words, where it is not known.
    """
    if len(seeds) < 2:
        raise InputError("it takes two seeds that ended well")
    sides = [
        [(weight, _documents(results, results.records[arm, seed], read, quantity)) for arm, weight in weights.items()]
        for seed in seeds
    ]
    first = sides[0][0][1]
    every = [documents for side in sides for _, documents in side]
    if any(
        documents.kind != first.kind or not np.array_equal(documents.tokens_d, first.tokens_d) for documents in every
    ):
        raise InputError("cells were not evaluated on the same documents")
    if (held := int((first.tokens_d > 0).sum())) < MIN_DOCUMENTS:
        raise InputError(f"{held} {plural(first.kind)} are too few to tell, it takes {MIN_DOCUMENTS}")
    factor = _multiple([results.records[arm, seed] for arm in weights for seed in seeds], quantity)
    sum_sd = factor * np.array([sum(weight * documents.nll_d for weight, documents in side) for side in sides])
    return two_way(sum_sd, first.tokens_d.astype(np.float64)), first.kind


def plural(kind: str) -> str:
    """Return the plural of the unit of text."""
    return f"{kind}es" if kind == "stretch" else f"{kind}s"


def texts_by_quantity(results: Results) -> dict[str, Texts]:
    """Estimate the noise of text in each measured quantity that has losses by document or is judged."""
    measured = [record["metrics"] for record in results.records.values() if record is not None]
    names = [name for name in LOSS_OF if name in (*KEPT, *results.judged)]
    return {name: texts(results, name) for name in names if any(name in metrics for metrics in measured)}


def noise_of_quantity(by_quantity: dict[str, Texts], arm: str, quantity: str) -> TwoWay | None:
    """Return the noise of an arm's difference in a quantity; None where it is not known."""
    return by_quantity[quantity].noise.get(arm) if quantity in by_quantity else None


def keeps_documents(record: Record) -> bool:
    """Return whether a cell stored losses by document, of either split."""
    return any(record.get(part) for part, _ in KEPT.values())


def _documents(results: Results, record: Record | None, read: DocumentCache, quantity: str) -> Documents:
    """Read the losses by document behind a quantity of a cell, each once.

    Raises:
        InputError: where there are none.
    """
    loss = LOSS_OF[quantity]
    if record is None or not record.get(KEPT[loss][0]):
        raise InputError("cells have no losses by document")
    cell = record["id"]
    if (cell, loss) not in read:
        read[cell, loss] = read_documents(results.store.documents(cell, loss), record, loss)
    return read[cell, loss]


def _multiple(records: Sequence[Record | None], quantity: str) -> float:
    """Return the factor between a quantity and its loss, equal in all records.

    Raises:
        InputError: where it differs.
    """
    loss = LOSS_OF[quantity]
    if quantity == loss:
        return 1.0
    values = np.array([[value(record, quantity), value(record, loss)] for record in records if record is not None])
    factor = float(values[0, 0] / values[0, 1]) if values[0, 1] else 0.0
    if not np.allclose(values[:, 0], factor * values[:, 1], rtol=1e-6, atol=0):
        raise InputError("cells were not evaluated on the same bytes")
    return factor
