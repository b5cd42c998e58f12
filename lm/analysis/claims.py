"""Claims that an experiment carries, and the numbers that its results have for them."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Required, TypedDict

import numpy as np

from lm.analysis.pace import steps_ahead
from lm.analysis.relations import RELATIONS, STEPS_AHEAD, check_numbers, check_pace
from lm.analysis.results import Records, value
from lm.config.keys import Also, Name, Text
from lm.config.nodes import one_of
from lm.config.reading import Seeds, read_seeds
from lm.config.tree import InputError
from lm.config.usual_names import suggest
from lm.store.metrics import METRICS, ON_CORPUS, is_at_length, is_of_task
from lm.store.paths import SECTIONS, path_error
from lm.store.record import Manifest, Record, Registration

TIERS = ("C", "G")
KINDS = ("published", "ours", "identity")
UNKNOWN = "unknown kind"  # kind of claims whose manifest is older than the kinds


class ClaimNode(TypedDict, total=False):
    """A statement that the results are to bear out."""

    claim: Required[Annotated[Text, "The statement, in words."]]
    kind: Required[
        Annotated[str, "Published by others, our own, or an identity that holds by construction.", Also(enum=[*KINDS])]
    ]
    source: Annotated[Text, "Where the statement is from."]
    tier: Annotated[
        str | None, "The size at which it is claimed; all of them where left out.", Also(enum=[*TIERS, None])
    ]
    metric: Required[
        Annotated[
            str,
            "A quantity, one at a length such as nll@512, a path into the records such as initial/entropy/0/1, or "
            "two of these with ' - ' or ' / ' between them; 'log ' before it takes the logarithm. 'steps ahead' counts "
            "the last steps for which arm stays ahead of against in validation loss.",
        ]
    ]
    arm: Annotated[Name, "The arm it speaks of."]
    against: Annotated[Name, "The arm it is compared with; the baseline where left out."]
    contrast: Annotated[
        dict[str, float], "A weight for each of several arms, instead of arm and against.", Also(minProperties=1)
    ]
    over: Annotated[
        dict[str, Annotated[float, Also(exclusiveMinimum=0)]],
        "For a slope: a number above 0 for each of some arms.",
        Also(minProperties=1),
    ]
    relation: Required[Annotated[str, "What the number should be.", Also(enum=list(RELATIONS))]]
    margin: Annotated[float, "What less, greater and equivalent refer to."]
    low: Annotated[float, "The lower end of a range or a slope."]
    high: Annotated[float, "The upper end of a range or a slope."]
    exact: Annotated[bool, "Whether it must hold on every seed and needs no test.", Also(default=False)]
    seen: Annotated[
        Seeds | None, "Seeds whose results were known when the claim was written: it is judged on others, or post hoc."
    ]


@dataclass(frozen=True)
class Claim:
    """One statement that a number can bear out.

    A number a seed is made from the arms: a weighted sum of their metric (`contrast`), or the slope of its logarithm
    over the logarithm of a number for each arm (`over`). One arm against another is a contrast of +1 and -1, one arm
    alone of +1. `seeds` are those that its experiment declares; `ClaimNode` describes the other fields.
    """

    claim: str
    metric: str
    relation: str
    contrast: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    margin: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    exact: bool = False
    source: str = ""
    tier: str = ""
    kind: str = UNKNOWN
    seeds: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    @property
    def arms(self) -> list[str]:
        """The arms it speaks of."""
        return list(self.over or self.contrast)

    @property
    def quantities(self) -> list[str]:
        """The quantities that its metric is made of, without paths into a record."""
        return [part for part in _parts(self.metric) if "/" not in part and part != STEPS_AHEAD]

    @property
    def before_training(self) -> bool:
        """True if it is about initial models alone."""
        return all(part.startswith("initial/") for part in _parts(self.metric))

    @property
    def has_sign(self) -> bool:
        """False for a number that is positive by its nature, such as the loss of an arm or a ratio of two losses."""
        is_difference = " - " in self.metric or self.metric.startswith("log ")
        return bool(self.over) or is_difference or math.isclose(sum(self.contrast.values()), 0, abs_tol=1e-9)

    def at(self, tier: str) -> bool:
        """Return whether the claim is made at this size."""
        return self.tier in ("", tier)

    def expected(self) -> str:
        """Expected value of the number, in a few words."""
        if self.relation in ("less", "greater"):
            return f"{'<' if self.relation == 'less' else '>'} {self.margin:zg}"
        if self.relation == "equivalent":
            return f"within ±{self.margin:zg}"
        ends = [f"{sign} {end:zg}" for sign, end in (("≥", self.low), ("≤", self.high)) if math.isfinite(end)]
        return ", ".join(ends)


def read_claim(tree: Mapping[str, Any], arms: Sequence[str], baseline: str, path: str) -> Claim:
    """Read a claim of an experiment with such arms. Raises InputError naming `path`."""
    relation, low, high = tree["relation"], tree.get("low", -math.inf), tree.get("high", math.inf)
    weights = _weights(tree.get("over", {}), arms, f"{path}.over")
    check_numbers(tree, path)
    over = weights if relation == "slope" else {}
    metric = _metric(tree["metric"], f"{path}.metric")
    contrast = _weights(tree["contrast"], arms, f"{path}.contrast") if "contrast" in tree and not over else {}
    if not over and not contrast:
        if "arm" not in tree:
            raise InputError(f"{path}: arm is missing; a claim needs arm (and against), or a contrast of several arms")
        arm = one_of(tree["arm"], arms, f"{path}.arm", "arm")
        contrast = {arm: 1.0}
        if relation != "range" or "against" in tree:
            against = one_of(tree.get("against", baseline), arms, f"{path}.against", "arm")
            if against == arm:
                hint = "give another arm, or another against"
                raise InputError(f"{path}.arm: {arm!r} would be compared with itself; {hint}")
            contrast[against] = -1.0
    check_pace(metric, contrast, path)
    return Claim(
        tree["claim"],
        metric,
        relation,
        contrast,
        over,
        tree.get("margin", 0.0),
        low,
        high,
        tree["exact"],
        tree.get("source", ""),
        tree.get("tier") or "",
        tree["kind"],
        seen=[] if tree.get("seen") is None else read_seeds(tree["seen"], f"{path}.seen"),
    )


def _metric(text: str, path: str) -> str:
    """Read a metric whose parts are quantities, quantities at a length, or paths into a part of a record."""
    if text == STEPS_AHEAD:
        return text
    for name in _parts(text):
        start = name.partition("/")[0]
        listed = name in METRICS or name.startswith(ON_CORPUS) or is_at_length(name) or is_of_task(name)
        if not (listed or ("/" in name and start in SECTIONS)):
            raise InputError(f"{path}: no quantity {name!r}.{suggest(name, [*METRICS, *SECTIONS], 'metrics')}")
        if not listed and (reason := path_error(name)):
            raise InputError(f"{path}: {reason}")
    return text


def _parts(metric: str) -> list[str]:
    """Return the quantities of which a metric is made."""
    return [part.strip() for part in re.split(r" - | / ", metric.removeprefix("log "))]


def _weights(weights: Mapping[str, float], arms: Sequence[str], path: str) -> dict[str, float]:
    return {one_of(arm, arms, path, "arm"): weight for arm, weight in weights.items()}


def measured(record: Record, metric: str) -> float:
    """Return a metric of one record, as `Claim.metric` names it; NaN where it was not measured."""
    if metric.startswith("log "):
        inner = measured(record, metric.removeprefix("log "))
        return math.log(inner) if inner > 0 else math.nan
    for sign in (" - ", " / "):
        left, operator, right = metric.partition(sign)
        if operator:
            a, b = value(record, left.strip()), value(record, right.strip())
            return a - b if sign == " - " else a / b if b else math.nan
    return value(record, metric)


def by_seed(results: Records, claim: Claim) -> dict[int, float]:
    """Compute the claim's number for each seed on which all its arms have the metric."""
    if claim.metric == STEPS_AHEAD:
        return steps_ahead(results, claim.contrast)
    numbers: dict[int, float] = {}
    for seed in results.manifest["seeds"]:
        records = {arm: results.records[arm, seed] for arm in claim.arms}
        values = {arm: math.nan if r is None else measured(r, claim.metric) for arm, r in records.items()}
        if claim.over:
            if all(v > 0 and math.isfinite(v) for v in values.values()):
                x, y = np.log([claim.over[arm] for arm in values]), np.log(list(values.values()))
                numbers[seed] = float(np.polyfit(x, y, 1)[0])
            continue
        number = sum(weight * values[arm] for arm, weight in claim.contrast.items())
        if math.isfinite(number):
            numbers[seed] = number
    return numbers


FINGERPRINTED = ("claim", "metric", "relation", "margin", "low", "high", "contrast", "over", "exact", "seeds")


def fingerprint(claim: Claim) -> str:
    """Return what a claim is known by: a hash of its text, number, relation, margins, arms and declared seeds."""
    content = {name: value for name, value in asdict(claim).items() if name in FINGERPRINTED}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def finite_claim(claim: Claim) -> dict[str, Any]:
    """Return a claim as the keys it was written with; ends at infinity are left out."""
    return {key: value for key, value in asdict(claim).items() if not (isinstance(value, float) and math.isinf(value))}


def register(
    claims: Iterable[Claim],
    previous: Mapping[str, Any] | None,
    trained_seeds: Callable[[Claim], list[int]],
    elsewhere: Mapping[str, Registration] | None = None,
) -> dict[str, Registration]:
    """Return the registrations of claims by fingerprint, the earliest of the `previous` manifest and `elsewhere`.

    Claims that neither has are registered now, with `trained_seeds`.
    """
    registered: dict[str, Registration] = dict((previous or {}).get("registered") or {})
    if previous is not None and "registered" not in previous:  # of a version that registered none: when is not known
        for described in previous.get("claims") or []:
            undated = Claim(**described)
            undated = undated if undated.seeds else replace(undated, seeds=list(previous["seeds"]))
            registered[fingerprint(undated)] = {"written": None, "seen": []}
    for key, registration in (elsewhere or {}).items():
        before = registered.get(key)
        if before is None or (before["written"] or "") > (registration["written"] or ""):
            registered[key] = registration
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for claim in claims:
        registered.setdefault(fingerprint(claim), {"written": now, "seen": trained_seeds(claim)})
    return registered


def seen_seeds(manifest: Manifest, claim: Claim) -> set[int]:
    """Return the seeds whose results could be known when a claim was written, by its file and by its registration."""
    registration = manifest.get("registered", {}).get(fingerprint(claim))
    return {*claim.seen, *(registration["seen"] if registration else [])}
