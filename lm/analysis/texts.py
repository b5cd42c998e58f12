"""The noise of the evaluation's text in each difference, where cells kept their losses by document."""

from dataclasses import dataclass

import numpy as np

from lm.analysis.results import HEADLINE, Results
from lm.config.tree import InputError
from lm.stats.two_way import TwoWay, two_way
from lm.store.documents import KEPT, Documents, read_documents
from lm.store.record import Record

FEWEST = 20
"""Documents, or stretches, from which on their noise can be told."""


@dataclass(frozen=True)
class Texts:
    """The noise of each arm's difference in a loss, what stands for documents, and why there is none of other arms."""

    noise: dict[str, TwoWay]
    kind: str
    lacking: dict[str, str]


def generalises(results: Results) -> bool:
    """Whether the headline's interval is to cover other text too, as far as the experiment says."""
    return results.manifest.get("generalise") != "seeds" and not results.manifest.get("adaptive")


def texts(results: Results, quantity: str = HEADLINE) -> Texts:
    """What is known of the noise of the text in a quantity that is kept by document, of each arm but the baseline."""
    found = Texts({}, "document", {})
    kinds, read = set[str](), dict[str, Documents]()
    for arm in results.arms[1:]:
        pairs = list(results.pairs(arm).values())
        if len(pairs) < 2:
            found.lacking[arm] = "it takes two seeds that ended well"
            continue
        try:
            sides = [tuple(_documents(results, record, read, quantity) for record in pair) for pair in pairs]
        except InputError as error:
            found.lacking[arm] = str(error)
            continue
        first = sides[0][0]
        if any(one.kind != first.kind or not np.array_equal(one.tokens_d, first.tokens_d) for s in sides for one in s):
            found.lacking[arm] = "cells were not evaluated on the same documents"
        elif (held := int((first.tokens_d > 0).sum())) < FEWEST:
            found.lacking[arm] = f"{held} {plural(first.kind)} are too few to tell, it takes {FEWEST}"
        else:
            difference_sd = np.array([mine.nll_d - base.nll_d for mine, base in sides])
            found.noise[arm] = two_way(difference_sd, first.tokens_d.astype(np.float64))
            kinds.add(first.kind)
    return Texts(found.noise, next(iter(kinds)) if len(kinds) == 1 else "document", found.lacking)


def plural(kind: str) -> str:
    """More than one of what stands for documents."""
    return f"{kind}es" if kind == "stretch" else f"{kind}s"


def known_texts(results: Results) -> dict[str, Texts]:
    """The same by quantity, of the losses that are kept by document and were measured."""
    measured = [record["metrics"] for record in results.records.values() if record is not None]
    return {name: texts(results, name) for name in KEPT if any(name in metrics for metrics in measured)}


def _documents(results: Results, record: Record, read: dict[str, Documents], quantity: str) -> Documents:
    """The losses by document of a cell, each read once. Raises InputError where there are none."""
    cell = record["id"]
    if not record.get(KEPT[quantity][0]):
        raise InputError("cells have no losses by document")
    if cell not in read:
        read[cell] = read_documents(results.store.documents(cell, quantity), record, quantity)
    return read[cell]


def of_quantity(found: dict[str, Texts], arm: str, quantity: str) -> TwoWay | None:
    """The noise of an arm's difference in a quantity; None where it is not known."""
    return found[quantity].noise.get(arm) if quantity in found else None
