"""How an experiment's differences are judged, as its file says it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm.ablation.design import Design
from lm.ablation.equal import KINDS
from lm.ablation.files import AXES, COSTS, DIGITS, GENERALISE
from lm.analysis.results import HEADLINE
from lm.config.plain import shown
from lm.config.reading import read_changes
from lm.config.tree import InputError, Tree, nearest
from lm.store.metrics import AT_LENGTH, METRICS, VALIDATION_METRICS, nearest_metric, parse_average


@dataclass(frozen=True)
class Inference:
    """How an experiment's differences are judged.

    Args:
        metric: the quantity that the table leads with and that arms are judged by.
        secondary: other quantities that they are judged by; alpha is shared with these.
        margin: for some quantities, the difference below which arms count as equivalent, declared beforehand.
        confirmatory: the arms whose comparisons are tested together; the others are explored.
        declared: for some arms, the costs in which they are meant to differ from the baseline.
        axes: for some dotted paths, whether they are `scientific`, `nuisance` or `fixed`.
        looks: numbers of seeds after which to look and perhaps to stop; none where all seeds are trained at once.
        equal: what arms have the same of: steps, tokens, flops or seconds.
        generalise: what the intervals of judged quantities and of claims cover: other `seeds`, or other `text` too.
    """

    metric: str = HEADLINE
    secondary: list[str] = field(default_factory=list)
    margin: dict[str, float] = field(default_factory=dict)
    confirmatory: list[str] = field(default_factory=list)
    declared: dict[str, list[str]] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    looks: tuple[int, ...] = ()
    equal: str = "steps"
    generalise: str = "text"

    @property
    def comparisons(self) -> int:
        """How many tests share alpha: of every confirmatory arm in every judged quantity."""
        return len(self.confirmatory) * (1 + len(self.secondary))


def read_inference(tree: Tree, design: Design, path: Path) -> Inference:
    """How the differences of an experiment file are judged. Raises InputError."""
    metric = str(tree.get("metric", HEADLINE))
    _quantity(metric, f"{path}: metric")
    secondary = _secondary(tree.get("secondary"), metric, f"{path}: secondary")
    others = [arm for arm in design.arms if arm != design.baseline]
    chosen = tree.get("confirmatory", True)
    if not isinstance(chosen, (bool, list)):
        raise InputError(f"{path}: confirmatory: expected true, false, or a list of arms, found {shown(chosen)}")
    listed = chosen if isinstance(chosen, list) else others if chosen else []
    declared = {
        one_of(arm, others, f"{path}: declared", "arm"): [
            one_of(cost, COSTS, f"{path}: declared.{arm}", "cost") for cost in _list(costs, f"{path}: declared.{arm}")
        ]
        for arm, costs in read_changes(tree.get("declared"), f"{path}: declared").items()
    }
    axes = {
        dotted: one_of(kind, AXES, f"{path}: axes.{dotted}", "kind of axis")
        for dotted, kind in read_changes(tree.get("axes"), f"{path}: axes").items()
    }
    confirmatory = [one_of(arm, others, f"{path}: confirmatory", "arm") for arm in listed]
    if len(set(confirmatory)) < len(confirmatory):
        raise InputError(f"{path}: confirmatory: an arm is given twice in {confirmatory}")
    margin = _margins(tree.get("margin"), [metric, *secondary], f"{path}: margin")
    equal = one_of(tree.get("equal", "steps"), KINDS, f"{path}: equal", "cost to hold equal")
    generalise = one_of(tree.get("generalise", "text"), GENERALISE, f"{path}: generalise", "kind of noise to cover")
    return Inference(metric, secondary, margin, confirmatory, declared, axes, equal=equal, generalise=generalise)


def one_of(name: Any, known: Iterable[str], path: str, kind: str) -> str:
    """A known name. Raises InputError naming the nearest."""
    names = list(known)
    if str(name) not in names:
        raise InputError(f"{path}: no {kind} {str(name)!r}.{nearest(str(name), names)} Choose from {', '.join(names)}")
    return str(name)


def _quantity(name: str, path: str) -> None:
    """Refuses what no table holds. Raises InputError."""
    base, at, length = name.partition("@")
    if "~" in name:
        if parse_average(name) is None:
            raise InputError(
                f"{path}: no quantity {name!r}; means of the last N are {'~N, '.join(VALIDATION_METRICS)}~N, N from 2"
            )
    elif not at:
        if name not in METRICS:
            near = nearest_metric(name, list(METRICS))
            raise InputError(f"{path}: no quantity {name!r}.{near} Choose from {', '.join(METRICS)}")
    elif base not in AT_LENGTH or not (length.isascii() and length.isdecimal()) or len(length) > DIGITS:
        raise InputError(f"{path}: no quantity {name!r}; at a length there are {'@N, '.join(AT_LENGTH)}@N")


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{path}: expected a list, found {shown(value)}")
    return value


def _secondary(given: Any, metric: str, path: str) -> list[str]:
    """The quantities that are judged beside the headline."""
    names = [] if given is None else [str(name) for name in _list(given, path)]
    for name in names:
        _quantity(name, path)
    if len({metric, *names}) <= len(names):
        raise InputError(f"{path}: a quantity is given twice in {', '.join([metric, *names])}")
    return names


def _margins(given: Any, judged: Sequence[str], path: str) -> dict[str, float]:
    """The margin of each judged quantity that has one; a number alone is the headline's."""
    alone = not isinstance(given, Mapping) and given is not None
    margins = {judged[0]: given} if alone else read_changes(given, path)
    for quantity, margin in margins.items():
        _quantity(str(quantity), path)
        if quantity not in judged:
            raise InputError(
                f"{path}.{quantity}: is not judged, {', '.join(judged)} is; name it in metric or secondary"
            )
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 < margin < math.inf:
            raise InputError(f"{path}.{quantity}: expected a number above 0, found {margin!r}")
    return {str(quantity): float(margin) for quantity, margin in margins.items()}
