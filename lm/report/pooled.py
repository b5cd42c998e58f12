"""The same arms in several experiments, such as on several texts: a random-effects summary of each."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import stats

from lm.analysis.compare import HEALTHY, reason_not_comparable
from lm.analysis.rates import choice_shifts
from lm.analysis.results import Records, on_texts
from lm.report.claims import cells_of_arms, shared_cells
from lm.report.render import Section, TableCell
from lm.report.tables import signed
from lm.stats.meta import FEWEST, over_experiments
from lm.stats.tests import seeds_needed
from lm.stats.verdicts import DIRECTIONS, direction
from lm.store.archive import TWINS
from lm.store.metrics import describe

COLUMNS = ("arm", "difference [95 % CI]", "tau", "I²", "verdict")
NOTES = (
    "Random effects, of differences with standard errors over seeds and documents. tau: standard deviation of true "
    "differences. I²: their share of the variance. See docs/verdicts.md.",
    f"Verdict of a mean: over texts of these kinds, or in settings like these. It takes {FEWEST} experiments, each fit "
    "to be compared and with the seeds for a verdict of its own, which speaks of its setting alone. Open: the CI, "
    "corrected for no other arm, holds 0.",
)


@dataclass(frozen=True)
class SharedArm:
    """The difference of an arm in one experiment."""

    experiment: str
    difference: float
    error: float  # its standard error
    unfit: str  # why no verdict may rest on it; empty where one may
    lower: float  # by how much it may lie lower, and higher, had each side the best of its learning rates
    higher: float
    low: float
    high: float
    bold: bool
    verdict: str  # in its experiment alone
    cells: frozenset[str]  # ids of its runs and the baseline's


def pooled_section(experiments: Sequence[tuple[Records, pd.DataFrame]]) -> Section | None:
    """Build the table of arms that experiments of different names compare with the same baseline, in one quantity.

    Each arm has a row of its mean and one for each experiment, which is called by its text where one file has all.
    An experiment made of another one here, such as NAME.shared of NAME, is none more: it has the same seeds and text.
    Nor is one that shares cells with another.
    """
    repeats = list[str]()
    arms: dict[tuple[str, str, str], dict[str, SharedArm]] = {}
    all_names = {results.manifest["name"] for results, _ in experiments}
    twins = sorted(all_names & {name + end for name in all_names for end in TWINS})
    counted = [(results, table) for results, table in experiments if results.manifest["name"] not in twins]
    crossed = on_texts([results.manifest for results, _ in counted])
    for place, (results, table) in enumerate(counted):
        name, baseline, quantity = results.manifest["name"], results.manifest["baseline"], results.headline
        for row in table[(table.metric == quantity) & table.difference.notna()].itertuples():
            shared = _shared_arm(results, row, crossed.texts[place] if crossed else name)
            group = arms.setdefault((str(row.arm), baseline, quantity), {})
            if any(shared.cells & other.cells for other in group.values()):
                repeats += [name] * (name not in group)
            elif shared.error > 0:
                group[name] = shared
    groups = {key: list(by_name.values()) for key, by_name in arms.items() if len(by_name) > 1}
    over, sharing = "Over texts" if crossed else "Over experiments", shared_cells(repeats)
    if not groups:
        return Section(over, notes=sharing) if sharing else None
    names = list(dict.fromkeys(shared.experiment for group in groups.values() for shared in group))
    problems = [
        f"! {arm} in {shared.experiment}: {shared.unfit}."
        for (arm, *_), group in groups.items()
        for shared in group
        if shared.unfit
    ]
    quantities = list(dict.fromkeys(quantity for *_, quantity in groups))
    title = over if len(quantities) > 1 else f"{over}: {describe(quantities[0]).label}"
    kind = "text" if crossed else "experiment"
    rows = [row for key, group in groups.items() for row in _rows(*key, group, len(quantities) > 1, kind)]
    left_out = [f"Not counted, as they repeat the text of others here: {', '.join(twins)}."] if twins else []
    left_out += sharing
    chosen = any(shared.lower or shared.higher for group in groups.values() for shared in group)
    of_rates = ["CIs and intervals hold what the choice of learning rates on few seeds leaves open."] if chosen else []
    means = f"In the row of an arm: the mean of true differences over {kind}s like {', '.join(names)}; below it each"
    has_next = max(map(len, groups.values())) >= FEWEST
    means += f", and where the true difference of another such {kind} lies in 95 of 100 cases." if has_next else "."
    notes = [means, *left_out, *NOTES, *of_rates, *problems]
    return Section(title, COLUMNS, rows, notes)


def _shared_arm(results: Records, row: Any, called: str) -> SharedArm:
    """Describe the difference of an arm in an experiment of which a report of several speaks by this name."""
    arm, baseline = str(row.arm), results.manifest["baseline"]
    lower, higher = choice_shifts(results, {arm: 1.0, baseline: -1.0})
    return SharedArm(
        called,
        float(row.difference),
        standard_error(row),
        _unfit(results, arm, row.pairs),
        lower,
        higher,
        float(row.low),
        float(row.high),
        bool(row.bold),
        _own_verdict(row),
        cells_of_arms(results.manifest, [arm, baseline]),
    )


def _unfit(results: Records, arm: str, pairs: int) -> str:
    """Explain why no verdict may rest on an arm's difference; empty where one may."""
    baseline = results.manifest["baseline"]
    reasons = [f"{results.health[side]} ({side})" for side in (arm, baseline) if results.health[side]]
    if pairs < seeds_needed(1):
        reasons.append(f"{pairs} seeds, and a verdict takes {seeds_needed(1)}")
    if results.first_look().pairs:
        reasons.append("seeds were added after a look at the others")
    reasons += filter(None, [reason_not_comparable(results, arm, results.headline)])
    return "; ".join(reasons)


def standard_error(row: Any) -> float:
    """Return the standard error of a difference over seeds and text, or over seeds; NaN without one."""
    for name in ("se_both", "se_seeds"):
        if math.isfinite(error := getattr(row, name, math.nan)):
            return float(error)
    if row.pairs < 2:
        return math.nan
    return float((row.plain_high - row.plain_low) / 2 / stats.t.ppf(0.975, row.pairs - 1))


def _own_verdict(row: Any) -> str:
    """Return the verdict of one experiment in few words, as notes give its reasons."""
    words = re.split(r" \(|: found at", str(row.verdict))[0]
    return f"{words} (unhealthy)" if row.health != HEALTHY or "unhealthy" in row.verdict else words


def _rows(
    arm: str, baseline: str, quantity: str, group: Sequence[SharedArm], is_named: bool, kind: str
) -> list[list[str]]:
    """Return the row of the mean over experiments or texts, as `kind` says, and one for each of them."""
    parts = [(shared.difference, shared.error, shared.lower, shared.higher) for shared in group]
    summary = over_experiments(*zip(*parts, strict=True))
    digits = describe(quantity).digits
    sound = len(group) >= FEWEST and not any(shared.unfit for shared in group)
    text = signed(summary.mean, summary.low, summary.high, digits)
    is_significant = sound and not summary.low <= 0 <= summary.high
    mean = TableCell(text, bold=is_significant)
    population = "over texts of these kinds" if kind == "text" else "in such settings"
    verdict = f"{direction(summary.mean, describe(quantity).better)} {population}" if is_significant else "open"
    label = f"{arm} - {baseline}" + (f" ({describe(quantity).label})" if is_named else "")
    spread = [f"{summary.tau:z.{digits}f}", f"{summary.i2:z.0%}"]
    rows = [[label, mean, *spread, verdict if sound else "-"]]
    for part in group:
        own = TableCell(signed(part.difference, part.low, part.high, digits), bold=part.bold)
        words, parenthesis, reason = part.verdict.partition(" (")
        if kind == "text" and words.split()[0] in (*DIRECTIONS, "equivalent"):
            words += " on this text"
        rows.append([f"· {part.experiment}", own, "", "", words + parenthesis + reason])
    if not math.isnan(summary.next_low):
        low, high = (f"{end:+z.{digits}f}" for end in (summary.next_low, summary.next_high))
        rows.append([f"· another {kind}", f"{low} to {high}", "", "", ""])
    return rows
