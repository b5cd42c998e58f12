"""Sections of a ladder: arms by rung, trends, forecast, rungs; and its long tables for CSV files."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.compare import compare
from lm.analysis.ladder import ArmOf, LadderResults, losses
from lm.analysis.verdict_text import display_verdict
from lm.report.answer import MOST_NAMES, answer, directed
from lm.report.figures.differences import sorted_rows
from lm.report.render import Section, TableCell
from lm.report.run import describe_autotune
from lm.report.tables import DIFFERENCE, heading, number, signed
from lm.stats.compute_gain import Beyond, Gain
from lm.stats.tests import seeds_needed
from lm.stats.trend import MIN_PAIRS, Estimate, Trend
from lm.stats.verdicts import DIRECTIONS
from lm.store.metrics import describe
from lm.store.validation import is_number

BEYOND: dict[Beyond, str] = {"": "", "above": " (above the top rung)", "below": " (below the first rung)", "floor": ""}
"""Suffixes of gains for which the law is extrapolated."""

NOT_BRACKETED = ", rate not bracketed"
"""Suffix of a gain at whose rung no learning-rate curve brackets the arm's rate or the baseline's."""

DECIDED = re.compile(rf"(?:exploratory: )?(?:{'|'.join(DIRECTIONS)}|equivalent|within|inconclusive)\b")
"""Verdicts of table.csv on enough seeds, whatever they say."""

ALPHA_P = 0.01  # p below which the law is reported to miss a rung by more than seeds' noise


def digits(results: LadderResults) -> int:
    """Return the number of decimals of the judged loss."""
    return describe(results.manifest["metric"]).digits


def factor(log: Estimate) -> str:
    """Format a log gain as a factor with its interval."""
    value, low, high = (exp(end) for end in (log.value, log.low, log.high))
    if math.isnan(value):
        return "-"
    interval = "" if math.isnan(low) else f" [{times(low)}, {times(high)}]"
    return f"{times(value)}{interval}"


def exp(log: float) -> float:
    """Return the exponential, infinite where it would overflow."""
    return math.inf if log > 300 else math.exp(log)


def times(value: float) -> str:
    """Format a factor."""
    return "∞" if math.isinf(value) else f"{value:z,.2f}" if value < 100 else f"{value:z,.3g}"


def gain(estimate: Gain | None) -> str:
    """Format the compute gain of a rung."""
    if estimate is None:
        return "-"
    if estimate.beyond == "floor":
        low = f", at least {times(exp(estimate.log.low))}" if math.isfinite(estimate.log.low) else ""
        return f"below the law's floor{low}"
    return factor(estimate.log) + BEYOND[estimate.beyond]


def ladder_answer(results: LadderResults) -> str:
    """State what is certain on the largest rung that has a verdict, by how much, and the trends of the differences."""
    names = [rung["name"] for rung in results.manifest["rungs"]]
    judged = {at.rung for arm in results.arms for at in arm.at if DECIDED.match(at.verdict)}
    index = max((index for index, name in enumerate(names) if name in judged), default=len(names) - 1)
    compared, is_top = compare(results.rungs[index]), index == len(names) - 1
    clauses = [answer(results.rungs[index], compared).removesuffix(".")]
    if not is_top:
        rows = sorted_rows(compare(results.rungs[-1]), results.rungs[-1].headline, None)
        means = [f"{row.arm} is {directed(row)}" for row in rows if directed(row)][:MOST_NAMES]
        clauses += [f"in the mean of the largest, {names[-1]}, {', '.join(means)}"] if means else []
    if unsure := [arm.name for arm in results.arms for at in arm.at if at.rung == names[index] and at.not_bracketed]:
        clauses.append(f"learning rate not bracketed: {', '.join(unsure)}")
    trends: dict[str, list[str]] = {}
    for arm in results.arms:
        kind = arm.scaling.of_difference.kind if arm.scaling and not arm.withheld else "none"
        if kind in ("grows", "fades", "turns", "holds"):
            trends.setdefault(kind + ", exploratory" * arm.explored, []).append(arm.name)
    named = [f"{kind}: {', '.join(arms)}" if len(results.arms) > 1 else kind for kind, arms in trends.items()]
    trend = f"With more compute the difference {'; '.join(named)}." if named else "No trend over compute is certain."
    return f"At {names[index]}, the largest rung{' with a verdict' * (not is_top)}: {'; '.join(clauses)}. {trend}"


# the arms by rung ----------------------------------------------------------------------------------------------------


def worth_section(results: LadderResults) -> Section:
    """Build the table of difference and gain of each arm at each rung."""
    rows: list[list[str]] = []
    for rung in results.manifest["rungs"]:
        for arm in results.arms:
            index = next((k for k, at in enumerate(arm.at) if at.rung == rung["name"]), None)
            if index is None or arm.scaling is None:
                nothing = f"no pair to compare{arm.lost_runs.get(rung['name'], '')}"
                rows.append([rung["name"], arm.name, "0", "-", "-", nothing])
                continue
            at, estimate = arm.at[index], arm.scaling.differences[index]
            arm_gain = arm.scaling.gains[index] if arm.scaling.gains else None
            difference = TableCell(signed(estimate.value, estimate.low, estimate.high, digits(results)), at.bold)
            text = gain(arm_gain) + (NOT_BRACKETED if arm_gain is not None and at.not_bracketed else "")
            verdict = display_verdict(at.verdict, results.manifest["metric"])
            rows.append([rung["name"], arm.name, str(at.pairs), difference, text, verdict])
    columns = ["rung", "arm", "n", DIFFERENCE, "gain in compute [95 % CI]", "verdict"]
    return Section("Arms by rung", columns, rows, worth_notes(results))


# trends --------------------------------------------------------------------------------------------------------------


def trend_section(results: LadderResults) -> Section:
    """Build the table of the trends of each arm's difference and gain over compute."""
    rows, quantities = list[list[str]](), ("difference", "gain, a factor")
    for arm in results.arms:
        if arm.scaling is None:
            rows += [[arm.name, quantity, "-", "no pair to compare"] for quantity in quantities]
            continue
        first, second = arm.scaling.of_difference, arm.scaling.of_gain
        slopes = [signed(first.slope.value, first.slope.low, first.slope.high, digits(results)), factor(second.slope)]
        texts = [trend_text(first, f"{first.margin:z.3g}", arm), trend_text(second, gain_margin(second), arm)]
        for quantity, slope, text, strong in zip(quantities, slopes, texts, arm.bold, strict=True):
            rows.append([arm.name, quantity, TableCell(slope, strong), text])
    return Section("With more compute", ("arm", "of", "a decade of compute", "verdict"), rows, trend_notes(results))


def gain_margin(trend: Trend) -> str:
    """Format the margin within which a gain holds."""
    return f"a factor of {exp(trend.margin):z.3g}"


def trend_text(trend: Trend, margin: str, arm: ArmOf) -> str:
    """Describe a trend, or why it has no verdict, and name the rungs with unhealthy runs."""
    words = {
        "none": "-",
        "too few": f"too few seeds: it takes {MIN_PAIRS} pairs on each rung",
        "holds": f"holds within {margin}",
        "turns": "turns: it changes, and in the middle it does not differ from zero",
    }
    if arm.withheld and trend.kind != "none":
        return arm.withheld
    unhealthy = [at.rung for at in arm.at if at.ill]
    text = ("exploratory: " if arm.explored and trend.kind != "none" else "") + words.get(trend.kind, trend.kind)
    return display_verdict(text + (f" (unhealthy on {', '.join(unhealthy)}: see there)" if unhealthy else ""))


# the forecast --------------------------------------------------------------------------------------------------------


def forecast_rows(results: LadderResults) -> list[list[str]]:
    """Return the forecast for the top rung from those below it, beside the trained value."""
    base, top = results.manifest["baseline"], results.rungs[-1]
    rows: list[list[str]] = []
    for arm in results.arms:
        if arm.scaling is None or arm.scaling.forecast is None:
            continue
        forecast, of_arm, of_base = arm.scaling.forecast, losses(top, arm.name), losses(top, base)
        if not rows:
            rows.append(_forecast_row(base, forecast.baseline, float(np.nanmean(of_base)), results, False))
        rows.append(_forecast_row(arm.name, forecast.arm, float(np.nanmean(of_arm)), results, False))
        difference = float(np.nanmean(of_arm - of_base))
        rows.append(_forecast_row(f"{arm.name} - {base}", forecast.difference, difference, results, True))
    return rows


def _forecast_row(name: str, estimate: Estimate, trained: float, results: LadderResults, sign: bool) -> list[str]:
    places = digits(results)
    if sign:
        forecast = signed(estimate.value, estimate.low, estimate.high, places)
        texts = [forecast, signed(trained, math.nan, math.nan, places)]
    else:
        interval = f" [{number(estimate.low, places)}, {number(estimate.high, places)}]"
        texts = [number(estimate.value, places) + interval, number(trained, places)]
    return [name, *texts, "holds it" if estimate.low <= trained <= estimate.high else "misses it"]


# the rungs -----------------------------------------------------------------------------------------------------------


def rung_section(results: LadderResults) -> Section:
    """Build the table of size, loss and fitted loss of the baseline at each rung."""
    rows, base = [], results.manifest["baseline"]
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        values = losses(rung_results, base)
        finite = values[np.isfinite(values)]
        spread = f" ± {number(float(finite.std(ddof=1)), digits(results))}" if len(finite) > 1 else ""
        mean = number(float(finite.mean()), digits(results)) + spread if len(finite) else "-"
        compute = rung["compute"][base]
        law = "-" if results.law is None else number(float(results.law.law.loss(compute)), digits(results))
        counts = [f"{rung['parameters']:,}", f"{rung['tokens']:,}", f"{rung['steps']:,}"]
        rows.append([rung["name"], *counts, f"{compute:z.2e}", str(len(finite)), mean, law])
    columns = ["rung", "parameters", "tokens", "steps", "FLOPs", "n", heading(results.manifest["metric"]), "law"]
    return Section("Rungs", columns, rows, law_notes(results))


def law_notes(results: LadderResults) -> list[str]:
    """Describe the baseline's scaling law in a line, and whether it fits."""
    fit, places = results.law, digits(results)
    if fit is None:
        return [results.no_law + " Gains in compute need one."]
    law, base = fit.law, results.manifest["baseline"]
    a, floor = fit.exponent, fit.floor
    bounds = ["" if math.isnan(x.low) else f" [{x.low:z.3f}, {x.high:z.3f}]" for x in (floor, a)]
    lines = [
        f"Law of {base}: L = E + A (C / {law.reference:z.3g} FLOPs)^-a with E = {number(float(law.floor), places)}"
        f"{bounds[0]}, A = {number(float(law.scale), places)}, a = {float(law.exponent):z.3f}{bounds[1]}; Huber's loss "
        "on log L, over all rungs."
    ]
    largest, p = fit.misses
    if p < ALPHA_P:
        lines.append(
            f"It misses a rung by {largest:z.1%}, more than seeds' noise explains (p {p:z.2g}): these sizes do not "
            "follow one law, which CIs of gains and forecasts leave out."
        )
    elif not math.isnan(p):
        lines.append(f"It misses no rung by more than {largest:z.1%}, which seeds' noise explains (p {p:z.2g}).")
    return lines


# notes ---------------------------------------------------------------------------------------------------------------


def worth_notes(results: LadderResults) -> list[str]:
    """Explain how to read the numbers by rung."""
    base = results.manifest["baseline"]
    lines = [
        *_rates(results),
        f"Differences are to {base}, paired by seed; the verdict is that of the rung's own report.",
        *_over_text(results),
        f"Gain: the compute that {base} needs for the arm's loss, by its law, over the arm's own; above 1 the arm is "
        "worth more. Its CI covers the noise of law and seeds, not that another law might fit.",
    ]
    if any(at.not_bracketed for arm in results.arms for at in arm.at):
        lines.append(
            f"Rate not bracketed: no learning-rate curve of that size has the rate of the arm, or of {base}, as its "
            "best with a worse one on each side. The gain may be the rate's, and no trend over such a rung has a "
            "verdict: in simulations 65 of 100 show a trend that is not there."
        )
    kinds = {estimate.beyond for arm in results.arms if arm.scaling for estimate in arm.scaling.gains or []} - {""}
    if kinds & {"above", "below"}:
        lines.append("Above the top rung or below the first, the law is extrapolated.")
    if "floor" in kinds:
        lines.append(f"Below the law's floor: a loss that {base} would reach at no compute, by its law.")
    incomplete = []
    for rung, of_rung in zip(results.manifest["rungs"], results.rungs, strict=True):
        ok = [record for record in of_rung.records.values() if record is not None and record["status"] == "ok"]
        incomplete += [f"rung {rung['name']}"] * (len(ok) < len(rung["seeds"]) * len(rung["compute"]))
    if incomplete:
        lines.append(f"Runs are lost or missing on {', '.join(incomplete)}; see the reports of these rungs.")
    return lines + ([describe_autotune(autotuned)] if (autotuned := results.manifest.get("ways")) else [])


def brief_ladder_notes(results: LadderResults) -> list[str]:
    """Explain the numbers by rung in a line or two, for the terminal."""
    base = results.manifest["baseline"]
    lines = [f"Gain: the compute that {base} needs for the arm's loss, over the arm's own."]
    if any(at.not_bracketed for arm in results.arms for at in arm.at):
        lines.append("Rate not bracketed: the gain may be the learning rate's; trends have no verdict.")
    return lines


def _rates(results: LadderResults) -> list[str]:
    """List the learning rates of the arms by rung, where some arm has more than one."""
    rates_of_arms: dict[str, list[float]] = {}
    for arm in shown_arms(results):
        raw_rates: list[Any] = [(rung.configuration(arm).get("optim") or {}).get("lr") for rung in results.rungs]
        rates_of_arms[arm] = [float(rate) if is_number(rate) else math.nan for rate in raw_rates]
    if all(len({rate for rate in rates if not math.isnan(rate)}) < 2 for rates in rates_of_arms.values()):
        return []
    texts = {arm: ["-" if math.isnan(r) else f"{r:z.3g}" for r in rates] for arm, rates in rates_of_arms.items()}
    listed = "; ".join(f"{arm} {', '.join(of_arm)}" for arm, of_arm in texts.items())
    return [f"Learning rates, from rung to rung: {listed}."]


def _over_text(results: LadderResults) -> list[str]:
    """State which intervals of differences cover text, where any does."""
    pairs = [(f"{arm.name} on {at.rung}", at.noise is not None) for arm in results.arms for at in arm.at]
    seeds_only = ", ".join(name for name, over_text in pairs if not over_text)
    if not any(over_text for _, over_text in pairs):
        return ["CIs cover other seeds, not other text."]
    some = f" (seeds alone: {seeds_only})" if seeds_only else ""
    return [f"CIs of differences cover other seeds and other text{some}; those of gains and trends other seeds alone."]


def trend_notes(results: LadderResults) -> list[str]:
    """Explain how trends are judged."""
    arms = sum(not arm.explored for arm in results.arms)
    shared = f", shared by {arms} arms" if arms > 1 else ""
    within = (
        "Holds: two one-sided tests find the slope within the margin per decade of compute."
        if results.manifest["margin"]
        else "No margin was declared, so nothing can be found to hold."
    )
    lines = [
        f"Trend: the slope over log compute, rungs weighted by seeds and steepness, at 5 %{shared}, with its CI at "
        f"that level. It grows where the effect, good or bad, becomes larger, and fades where smaller. {within}"
    ]
    needed = seeds_needed(arms)
    rungs = [at for arm in results.arms if not arm.explored for at in arm.at]
    if few := {f"{at.rung} has {at.pairs}" for at in rungs if at.pairs < needed}:
        lines.append(f"Bold takes {needed} pairs on every rung, and healthy arms; {', '.join(sorted(few))}.")
    return lines


def forecast_notes(results: LadderResults) -> list[str]:
    """Explain how a forecast is made, or why there is none."""
    if not results.manifest["forecast"]:
        return []
    if any(arm.scaling and arm.scaling.forecast for arm in results.arms):
        return [
            "By the laws of baseline and arm through the rungs below the top one. The CI covers the noise of the laws "
            "and of the seeds. It holds under the law alone: with the top rung 2 % off the law, it covers 64 of 100."
        ]
    return ["No forecast: it takes three rungs below the top one with two pairs each, and losses that fall."]


def ladder_sections(results: LadderResults) -> list[Section]:
    """Return the tables of a ladder."""
    columns = ("of the top rung", "forecast [95 % CI]", "trained", "the interval")
    forecast = Section("Forecast", columns, forecast_rows(results), forecast_notes(results))
    sections = [worth_section(results), trend_section(results), forecast, rung_section(results)]
    return [section for section in sections if section.rows or section.notes]


def shown_arms(results: LadderResults) -> Sequence[str]:
    """Return all arms, the baseline first."""
    base = results.manifest["baseline"]
    return [base, *(arm for arm in results.manifest["arms"] if arm != base)]


# long tables ---------------------------------------------------------------------------------------------------------


def worth_table(results: LadderResults) -> pd.DataFrame:
    """Return a row for each rung and arm; gains are factors, compute is in FLOPs.

    The baseline has its loss alone.
    """
    rows = []
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        for name in results.manifest["arms"]:
            values = losses(rung_results, name)
            finite = values[np.isfinite(values)]
            mean, sd = finite.mean() if len(finite) else math.nan, finite.std(ddof=1) if len(finite) > 1 else math.nan
            row: dict[str, object] = {"rung": rung["name"], "arm": name, "metric": results.manifest["metric"]}
            row |= {"compute": rung["compute"][name], "n": len(finite), "mean": mean, "sd": sd}
            rows.append(row | _worth(results, rung["name"], name))
    return pd.DataFrame(rows)


def _worth(results: LadderResults, rung: str, name: str) -> dict[str, object]:
    arm = next((arm for arm in results.arms if arm.name == name), None)
    index = next((k for k, at in enumerate(arm.at) if at.rung == rung), None) if arm else None
    if arm is None or arm.scaling is None or index is None:
        empty = dict.fromkeys(("beyond", "rate_bracketed", "verdict"), "")
        return {"pairs": 0, **_columns("difference"), "over": "", **_columns("gain"), **empty}
    gain = arm.scaling.gains[index] if arm.scaling.gains else None
    logs = gain.log if gain else Estimate()
    of_gain = Estimate(*(exp(x) if not math.isnan(x) else x for x in (logs.value, logs.low, logs.high)))
    return {
        "pairs": arm.at[index].pairs,
        **_columns("difference", arm.scaling.differences[index]),
        "over": "seeds" if arm.at[index].noise is None else "seeds and text",
        **_columns("gain", of_gain),
        "beyond": gain.beyond if gain else "",
        "rate_bracketed": not arm.at[index].not_bracketed,
        "verdict": arm.at[index].verdict,
    }


def _columns(name: str, estimate: Estimate | None = None) -> dict[str, float]:
    values = estimate or Estimate()
    return {name: values.value, f"{name}_low": values.low, f"{name}_high": values.high}


def trend_table(results: LadderResults) -> pd.DataFrame:
    """Return a row for each arm and kind of trend; slopes of gains are of ln(gain) per decade of compute."""
    rows = []
    for arm in results.arms:
        kinds = (("difference", arm.scaling.of_difference), ("log gain", arm.scaling.of_gain)) if arm.scaling else ()
        for kind, trend in kinds:
            says = arm.withheld if arm.withheld and trend.kind != "none" else trend.kind
            row: dict[str, object] = {"arm": arm.name, "of": kind, "says": says, "margin": trend.margin}
            rows.append(row | _columns("slope", trend.slope) | _columns("middle", trend.middle))
    return pd.DataFrame(rows)
