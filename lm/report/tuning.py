"""Results of tuning and of learning-rate curves: best settings, arms compared at these, optima at an edge, budgets."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lm.analysis.answers import DECIDED, Answer, stands
from lm.analysis.compare import compare
from lm.analysis.rates import RateCurve, rate_curve, sensitivity_difference, shifted
from lm.analysis.results import Records, is_outdated, is_part, load
from lm.analysis.verdict_text import display_verdict, list_seeds
from lm.config.plain import shown
from lm.config.tree import InputError
from lm.report.claims import answers
from lm.report.notes import SEE
from lm.report.render import Section
from lm.report.study import Study, edge, load_study, warnings_of
from lm.report.tables import DIFFERENCE, difference, format_mean, mean_and_sd, signed
from lm.stats.verdicts import DIRECTIONS
from lm.store.archive import CURVE, SHARED
from lm.store.files import read_json
from lm.store.formats import RATES, TUNED
from lm.store.metrics import describe
from lm.store.record import TunedManifest
from lm.store.validation import check_shape

FOLDER = "tune"
LEAST_GAIN = 0.0005  # of a parabola between rates that is worth a word
OPEN_BETWEEN = "open between the learning rates that were tried"  # beside a verdict on arms at rates of their own
TUNED_COLUMNS = (
    "arm", "shared settings", DIFFERENCE, "verdict", "tuned", DIFFERENCE, "verdict", "trials", "the winner's settings",
)  # fmt: skip


Tuning = tuple[dict[str, Any], Records, dict[str, Study]]  # what was tuned, the winners' results, searches by arm


def tuning_of(results: Records, folder: Path) -> Tuning | None:
    """Load tuning, winners' results and each arm's study; None where incomplete. Raises InputError for damage."""
    described, twin = folder / FOLDER / "tuned.json", folder.parent / f"{folder.name}.tuned"
    if not described.is_file() or not is_part(results, twin):
        return None
    studies = {arm: load_study(folder / FOLDER / arm) for arm in results.arms}
    tuning = TUNED.read(read_json(described), described)
    check_shape(tuning, TunedManifest, described, "run `lm ablate` again")
    if missing_arms := [arm for arm in results.arms if arm not in tuning["arms"]]:
        raise InputError(f"{described}: is damaged, has nothing of arm {shown(missing_arms[0])}; run `lm ablate` again")
    return tuning, load(twin), studies


def compared(results: Records) -> dict[str, list[str]]:
    """Return for each arm its headline mean and spread, its difference to the baseline, and the verdict."""
    table = compare(results)
    return {
        str(row.arm): [mean_and_sd(row), difference(row), display_verdict(str(row.verdict), str(row.metric))]
        for row in table[table.metric == results.headline].itertuples()
    }


def at_one_rate_words(results: Records, short: bool) -> dict[str, str]:
    """Return for each arm what is found at one shared learning rate: the difference, with its interval, and verdict."""
    words, table = {}, compare(results)
    for row in table[table.metric == results.headline].itertuples():
        digits, verdict = describe(str(row.metric)).digits, display_verdict(str(row.verdict), str(row.metric))
        low, high = (math.nan, math.nan) if short else (row.low, row.high)
        change = signed(row.difference, low, high, digits)
        words[str(row.arm)] = (
            verdict if change == "-" else f"{change}, {verdict.partition(' (')[0] if short else verdict}"
        )
    return words


def tuning_section(results: Records, tuning: dict[str, Any], twin: Records, studies: dict[str, Study]) -> Section:
    """Build the table of each arm at shared and at tuned settings; winners at the end of a range are named."""
    rows, shared, tuned = [], compared(results), compared(twin)
    for arm in results.arms:
        cells = [arm, *shared[arm], *tuned[arm]]
        edges = [
            f"{side} at the {end} end of {name}"
            for side in dict.fromkeys((arm, results.arms[0]))
            for _, best in studies[side].best.head(1).iterrows()
            for name, described in studies[side].space.items()
            if (end := edge(best[name], described))
        ]
        cells[-1] += f" ({', '.join(edges)})" if edges else ""
        counts = studies[arm].trials.state.value_counts()
        spent = ", ".join(f"{counts[state]} {state}" for state in ("complete", "pruned", "failed") if state in counts)
        winner = tuning["arms"][arm]["changes"]
        texts = {k: f"{value:z.3g}" if isinstance(value, float) else value for k, value in (winner or {}).items()}
        settings = ", ".join(f"{path} = {text}" for path, text in texts.items())
        rows.append([*cells, spent, settings or "none: the shared ones"])
    notes = [
        f"Every arm had the same budget: {tuning['trials']} trials on {list_seeds(tuning['seeds'])} "
        f"by {tuning['sampler']['name']}, pruner {tuning['pruner']['name']}. The winner was frozen and trained "
        "on the seeds of the table, none of which chose it. Pruned trials enter nothing."
    ]
    notes += [f"{arm}: {warning}" for arm, study in studies.items() for warning in warnings_of(study)]
    return Section("Tuning", TUNED_COLUMNS, rows, notes)


DESCRIBED = "lr_curve.json"
THERE, AT_SHARED = "mean ± sd there", "mean ± sd at the shared one"
RATE_COLUMNS = (
    "arm", "shared rate", "best rate", THERE, DIFFERENCE, "verdict", "sensitivity",
    "difference in it [95 % CI]",
)  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """The learning-rate curves of an experiment."""

    shared: dict[str, float]  # learning rate of each arm in the table
    curves: dict[str, RateCurve]  # learning-rate curve of each arm
    grid: Records  # results of the runs behind the curves
    twin: Records  # results of all arms, each at its best rate, or at the shared one if the experiment's are at theirs


def rates_of(results: Records, folder: Path) -> Rates | None:
    """Load the curves of an experiment; None without any, or if training is incomplete. Raises InputError."""
    end = SHARED if "rates" in results.manifest else ".tuned"
    path, twin = folder / DESCRIBED, folder.parent / f"{folder.name}{end}"
    over_rates = folder.parent / f"{folder.name}{CURVE}"
    if not path.is_file() or not is_part(results, twin) or is_outdated(results, over_rates):
        return None
    described = RATES.read(read_json(path), path)
    try:
        of_arms: dict[str, Any] = {arm: described["arms"][arm] for arm in results.arms}
        names = {arm: {float(rate): str(name) for rate, name in of["names"].items()} for arm, of in of_arms.items()}
        shared = {arm: float(of["shared"]) for arm, of in of_arms.items()}
        grid = load(over_rates)
        if not all(names.values()):
            raise ValueError("no rates")
        curves = {arm: rate_curve(grid, of_arm) for arm, of_arm in names.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__}); run `lm ablate` again") from None
    return Rates(shared, curves, grid, load(twin))


def claims_of(results: Records, rates: Rates | None, tier: str = "") -> list[Answer]:
    """Judge the claims, with what each comes to at one shared learning rate where arms have rates of their own.

    One about the headline says so where it may not hold at rates between those that were tried.
    """
    if rates is None or "rates" not in results.manifest:
        return answers(results, tier)
    judged, gains = answers(results, tier, rates.twin), gains_between(rates)
    for place, answer in enumerate(judged):
        if answer.claim.metric == results.headline and not answer.claim.over and answer.verdict in DECIDED:
            below, above = shifted(results, answer.claim.contrast, gains)
            if not (answer.claim.exact or stands(answer, answer.low - below, answer.high + above)):
                judged[place] = replace(answer, note="; ".join(filter(None, [OPEN_BETWEEN, answer.note])))
    return judged


def gains_between(rates: Rates) -> dict[str, float]:
    """Return by how much each arm is better between the rates that were tried, by the parabola of its curve."""
    return {arm: 0.0 if math.isnan(gain := curve.between[1]) else gain for arm, curve in rates.curves.items()}


def open_between(results: Records, rates: Rates, table: pd.DataFrame) -> list[str]:
    """Name the arms whose verdict may not hold at learning rates between those that were tried; empty for none."""
    if "rates" not in results.manifest:
        return []
    gains, base, arms = gains_between(rates), results.arms[0], list[str]()
    for row in table[(table.metric == results.headline) & (table.arm != base)].itertuples():
        below, above = shifted(results, {str(row.arm): 1.0, base: -1.0}, gains)
        low, high, verdict = row.low - below, row.high + above, str(row.verdict)
        direction = verdict.partition(",")[0].removeprefix("exploratory: ")
        if direction in DIRECTIONS and low <= 0 <= high:
            arms.append(f"{row.arm} {direction}")
        elif verdict.startswith("equivalent") and not -row.margin < low <= high < row.margin:
            arms.append(f"{row.arm} equivalent")
    if not arms:
        return []
    return [f"Learning rates: open between those that were tried, where an arm may be better: {', '.join(arms)}.{SEE}"]


def rates_section(results: Records, rates: Rates) -> Section:
    """Build the table of best rates, of arms compared at these, and of their sensitivity."""
    digits, rows, are_own, better = describe("nll").digits, [], "rates" in results.manifest, list[str]()
    base, twin = rates.curves[results.arms[0]], compared(rates.twin)
    seeds = ", ".join(map(str, rates.grid.manifest["seeds"]))
    elsewhere = " (other arms: around their own)" if len({curve.rates for curve in rates.curves.values()}) > 1 else ""
    notes = [
        f"Every arm was trained at {len(base.rates)} rates from {base.rates[0]:z.3g} to {base.rates[-1]:z.3g}"
        f"{elsewhere} on seeds {seeds}. The best rate is that of the best mean, of rates at which every seed "
        "ended well; each arm was trained with its own on the seeds of the table, none of which chose it.",
        "Sensitivity: the mean over the rates, drawn evenly in their logarithm, of the loss, or of ln(vocabulary) "
        "where that is less, minus the best loss (Wortsman et al. 2023), in nats; its difference is paired by seed, "
        "the interval Student's. A run that diverged counts with ln(vocabulary).",
    ]
    for arm in results.arms:
        curve = rates.curves[arm]
        comparison = list(twin[arm])
        sides = {"its": curve} if curve is base else {"its": curve, "the baseline's": base}
        edges = [f"{whose} rate at the {side.edge} end of the grid" for whose, side in sides.items() if side.edge]
        comparison[2] += f" ({', '.join(edges)})" if edges and not are_own else ""
        best = "none" if curve.best is None else f"{curve.rates[curve.best]:z.3g}"
        other = "" if curve is base else signed(*sensitivity_difference(curve, base), digits)
        sensitivity = format_mean(curve.sensitivity_s, digits)
        rows.append([arm, f"{rates.shared[arm]:z.3g}", best, *comparison, sensitivity, other])
        if curve.edge:
            which = "lowest" if curve.edge == "low" else "highest"
            remedy = "raise at_most or change optim.lr" if are_own else "widen it"
            notes.append(f"{arm}: the best rate is the {which} of the grid: {remedy}, or the best may be missed.")
        if (vertex := curve.between)[1] >= LEAST_GAIN:
            better.append(f"{arm} {vertex[1]:z.{digits}f} at {vertex[0]:z.2g}")
        if any(curve.lost_r):
            pairs = zip(curve.rates, curve.lost_r, strict=True)
            lost_runs = ", ".join(f"{count} at {rate:z.3g}" for rate, count in pairs if count)
            notes.append(f"{arm}: runs that diverged or failed: {lost_runs}.")
    if better:
        notes.append(
            f"Between the rates tried, the parabola through an arm's best one and its neighbours is better: "
            f"{', '.join(better)}."
        )
    columns = [AT_SHARED if are_own and name == THERE else name for name in RATE_COLUMNS]
    return Section("Learning rates", columns, rows, notes)
