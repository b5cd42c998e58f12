"""The report of a ladder, and several ladders in one table."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.ladder import ArmOf, LadderResults, Line, load_ladder, losses
from lm.analysis.verdict_text import display_verdict
from lm.report.answer import MOST_NAMES, answer, directed
from lm.report.base import Report
from lm.report.figures.chart import Chart
from lm.report.figures.static_pages import NAME, ladder_chart
from lm.report.notes import author_notes
from lm.report.render import Section, TableCell
from lm.report.run import describe_autotune
from lm.report.tables import DIFFERENCE, as_csv, compared, format_mean, heading, number, signed
from lm.report.web import parts
from lm.report.web.elements import Html, listed
from lm.report.web.gallery import Charts
from lm.report.web.page import Body, PageSection, as_page_section
from lm.stats.compute_gain import Beyond, Gain
from lm.stats.size_length import FittedLaw
from lm.stats.tests import seeds_needed
from lm.stats.trend import MIN_PAIRS, Estimate, Trend
from lm.stats.verdicts import DIRECTIONS
from lm.store.metrics import describe
from lm.store.record import RungOf
from lm.store.validation import is_number

# suffixes of gains for which the law is extrapolated
BEYOND: dict[Beyond, str] = {"": "", "above": " (above the top rung)", "below": " (below the first rung)", "floor": ""}
NO_LAW = "No law of"  # beginning of a note that says why an arm has none
EXTRAPOLATED = " (extrapolated)"  # suffix of a gain by the law of size and length
NOT_BRACKETED = ", rate not bracketed"  # suffix of a gain where no curve brackets the arm's rate or the baseline's

DECIDED = re.compile(rf"(?:exploratory: )?(?:{'|'.join(DIRECTIONS)}|equivalent|within|inconclusive)\b")
"""Verdicts of table.csv on enough seeds, whatever they say."""

TWO_INTERVALS = (
    "The answer has the CI of the rung's report, which its test gives; this table has Student's on each rung."
)

ALPHA_P = 0.01  # p below which the law is reported to miss a rung by more than seeds' noise


def digits(results: LadderResults) -> int:
    """Return the number of decimals of the judged loss."""
    return describe(results.manifest["metric"]).digits


def factors(log: Estimate) -> Estimate:
    """Return the factors of a log gain, infinite where one would overflow."""
    value, low, high = (math.inf if end > 300 else math.exp(end) for end in (log.value, log.low, log.high))
    return Estimate(value, low, high)


def times(value: float) -> str:
    """Format a factor."""
    return "∞" if math.isinf(value) else f"{value:z,.2f}" if value < 100 else f"{value:z,.3g}"


def factor(log: Estimate) -> str:
    """Format a log gain as a factor with its interval."""
    of = factors(log)
    interval = "" if math.isnan(of.low) else f" [{times(of.low)}, {times(of.high)}]"
    return "-" if math.isnan(of.value) else f"{times(of.value)}{interval}"


def gain(estimate: Gain | None, floor: str = "below the law's floor") -> str:
    """Format the gain of a rung, in compute unless `floor` says what else the law has no amount of."""
    if estimate is None:
        return "-"
    if estimate.beyond == "floor":
        low = f", at least {times(factors(estimate.log).low)}" if math.isfinite(estimate.log.low) else ""
        return f"{floor}{low}"
    return factor(estimate.log) + BEYOND[estimate.beyond]


def ladder_answer(results: LadderResults) -> str:
    """State what is certain on the largest rung that has a verdict, by how much, and the trends of the differences."""
    names, top = [rung["name"] for rung in results.manifest["rungs"]], results.dearest
    judged = {rung for (rung, _), at in results.at_rung.items() if DECIDED.match(at.verdict)}
    base = results.manifest["baseline"]
    computes = [rung["compute"][base] for rung in results.manifest["rungs"]]
    places = [place for place, name in enumerate(names) if name in judged]
    index = max(places, key=lambda place: computes[place], default=top)
    is_top = index == top
    clauses = [answer(results.rungs[index], results.tables[index]).removesuffix(".").replace("Nothing", "nothing", 1)]
    if not is_top:
        rows = compared(results.tables[top], results.rungs[top].headline)
        means = [f"{row.arm} is {directed(row)}" for row in rows if directed(row)][:MOST_NAMES]
        clauses += [f"in the mean of the largest, {names[top]}, {', '.join(means)}"] if means else []
    if unsure := [arm for (rung, arm), at in results.at_rung.items() if rung == names[index] and at.not_bracketed]:
        clauses.append(f"learning rate not bracketed: {', '.join(unsure)}")
    trends: dict[str, list[str]] = {}
    for arm in results.arms:
        kind = arm.scaling.of_difference.kind if arm.scaling and not arm.withheld else "none"
        if kind in ("grows", "fades", "turns", "holds"):
            ill = f", unhealthy on {arm.unhealthy}" if arm.unhealthy else ""
            trends.setdefault(kind + ", exploratory" * arm.explored + ill, []).append(arm.name)
    named = [f"{kind}: {', '.join(arms)}" if len(results.arms) > 1 else kind for kind, arms in trends.items()]
    at = f" at {results.lines[0].at}" if results.lines[0].along else ""
    trend = (
        f"With more compute{at} the difference {'; '.join(named)}." if named else "No trend over compute is certain."
    )
    return f"At {names[index]} (the largest rung{' with a verdict' * (not is_top)}) {'; '.join(clauses)}. {trend}"


# tables --------------------------------------------------------------------------------------------------------------


def worth_section(results: LadderResults) -> Section:
    """Build the table of difference and gain of each arm at each rung, with notes on how to read it."""
    rows: list[list[str]] = []
    for rung in results.manifest["rungs"]:
        for arm in results.arms:
            at = results.at_rung.get((rung["name"], arm.name))
            if at is None:
                rows.append([rung["name"], arm.name, "0", "-", "-", no_pair_text(results, rung["name"], arm.name)])
                continue
            of = at.difference
            difference = TableCell(signed(of.value, of.low, of.high, digits(results)), at.bold)
            text = gain(at.gain) + (NOT_BRACKETED if at.gain is not None and at.not_bracketed else "")
            verdict = display_verdict(at.verdict, results.manifest["metric"])
            rows.append([rung["name"], arm.name, str(at.pairs), difference, text, verdict])
    columns = ["rung", "arm", "n", DIFFERENCE, "gain in compute [95 % CI]", "verdict"]
    base = results.manifest["baseline"]
    notes = [
        *_rates(results),
        f"Differences are to {base}, paired by seed; the verdict is that of the rung's own report.",
        *_over_text(results),
        f"Gain: the compute that {base} needs for the arm's loss, by its law, over the arm's own; above 1 the arm is "
        "worth more. Its CI covers the noise of law and seeds, not that another law might fit.",
    ]
    if any(at.not_bracketed for at in results.at_rung.values()):
        notes.append(
            f"Rate not bracketed: no learning-rate curve of that size has the rate of the arm, or of {base}, as its "
            "best with a worse one on each side. The gain may be the rate's, and no trend over such a rung has a "
            "verdict: in simulations 65 of 100 show a trend that is not there."
        )
    kinds = {at.gain.beyond for at in results.at_rung.values() if at.gain}
    if kinds & {"above", "below"}:
        notes.append("Above the top rung or below the first, the law is extrapolated.")
    if "floor" in kinds:
        notes.append(f"Below the law's floor: a loss that {base} would reach at no compute, by its law.")
    incomplete = []
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        ok = [record for record in rung_results.records.values() if record is not None and record["status"] == "ok"]
        incomplete += [f"rung {rung['name']}"] * (len(ok) < len(rung["seeds"]) * len(rung["compute"]))
    if incomplete:
        notes.append(f"Runs are lost or missing on {', '.join(incomplete)}; see the reports of these rungs.")
    if autotuned := results.manifest.get("ways"):
        notes.append(describe_autotune(autotuned))
    return Section("Arms by rung", columns, rows, notes)


def no_pair_text(results: LadderResults, rung: str, arm: str) -> str:
    """State that an arm has no pair at a rung, and the outcomes of its runs."""
    outcomes = (entry.lost_runs.get(rung, "") for entry in results.every_arm if entry.name == arm)
    return "no pair to compare" + "".join(outcomes)


def trend_section(results: LadderResults) -> Section:
    """Build the table of the trends of each arm's difference and gain over compute."""
    rows, quantities = list[list[str]](), ("difference", "gain, a factor")
    for arm in results.arms:
        if arm.scaling is None:
            rows += [[arm.name, quantity, "-", "no pair to compare"] for quantity in quantities]
            continue
        first, second = arm.scaling.of_difference.slope, arm.scaling.of_gain.slope
        slopes = [signed(first.value, first.low, first.high, digits(results)), factor(second)]
        for quantity, slope, text, strong in zip(quantities, slopes, trend_texts(arm), arm.bold, strict=True):
            rows.append([arm.name, quantity, TableCell(slope, strong), text])
    notes = trend_notes(results)
    if (main := results.lines[0]).along:
        rows = [[arm, f"{quantity}, {_along(main)}", *rest] for arm, quantity, *rest in rows]
        for line, arms in zip(results.lines[1:], results.others, strict=True):
            for arm in arms:
                if len(line.rungs) > 1 and arm.scaling is not None:
                    first = arm.scaling.of_difference.slope
                    slope = signed(first.value, first.low, first.high, digits(results))
                    rows.append([arm.name, f"difference, {_along(line)}", slope, trend_texts(arm)[0]])
        notes.append(f"No trend mixes size and length. That along size at {main.at} is judged; others are exploratory.")
    return Section("With more compute", ("arm", "of", "a decade of compute", "verdict"), rows, notes)


def _along(line: Line) -> str:
    return f"along {line.along} {'at' if line.along == 'size' else 'of'} {line.at}"


def trend_texts(arm: ArmOf) -> list[str]:
    """Describe the trends of an arm's difference and of its gain."""
    if arm.scaling is None:
        return ["no pair to compare"] * 2
    first, second = arm.scaling.of_difference, arm.scaling.of_gain
    of_gain = f"a factor of {factors(Estimate(second.margin)).value:z.3g}"
    return [trend_text(first, f"{first.margin:z.3g}", arm), trend_text(second, of_gain, arm)]


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
    text = ("exploratory: " if arm.explored and trend.kind != "none" else "") + words.get(trend.kind, trend.kind)
    return display_verdict(text + (f" (unhealthy on {arm.unhealthy}: see there)" if arm.unhealthy else ""))


def forecast_section(results: LadderResults) -> Section:
    """Build the table of the forecast for the top rung from those below it, beside the trained values."""
    base, top, places = results.manifest["baseline"], results.rungs[results.lines[0].rungs[-1]], digits(results)
    rows: list[list[str]] = []

    def add(name: str, estimate: Estimate, trained: float, sign: str = "") -> None:
        ends = (f"{end:{sign}z,.{places}f}" for end in (estimate.value, estimate.low, estimate.high, trained))
        value, low, high, measured = ends
        verdict = "holds it" if estimate.low <= trained <= estimate.high else "misses it"
        rows.append([name, f"{value} [{low}, {high}]", measured, verdict])

    for arm in results.arms:
        if arm.scaling is not None and (forecast := arm.scaling.forecast) is not None:
            of_arm, of_base = losses(top, arm.name), losses(top, base)
            if not rows:
                add(base, forecast.baseline, float(np.nanmean(of_base)))
            add(arm.name, forecast.arm, float(np.nanmean(of_arm)))
            add(f"{arm.name} - {base}", forecast.difference, float(np.nanmean(of_arm - of_base)), "+")
    notes = []
    if rows:
        notes = [
            "By the laws of baseline and arm through the rungs below the top one. The CI covers the noise of the laws "
            "and of the seeds. It holds under the law alone: with the top rung 2 % off the law, it covers 64 of 100."
        ]
    elif results.manifest["forecast"]:
        notes = ["No forecast: it takes three rungs below the top one with two pairs each, and losses that fall."]
    return Section("Forecast", ("of the top rung", "forecast [95 % CI]", "trained", "the interval"), rows, notes)


def rung_section(results: LadderResults) -> Section:
    """Build the table of size, loss and fitted loss of the baseline at each rung."""
    rows, base, places = [], results.manifest["baseline"], digits(results)
    for place, (rung, rung_results) in enumerate(zip(results.manifest["rungs"], results.rungs, strict=True)):
        values, compute = losses(rung_results, base), rung["compute"][base]
        off = results.law is None or place not in results.lines[0].rungs
        at_rung = "-" if results.law is None or off else number(float(results.law.law.loss(compute)), places)
        counts = [f"{rung['parameters']:,}", f"{rung['tokens']:,}", f"{rung['steps']:,}", f"{compute:z.2e}"]
        count = str(np.isfinite(values).sum())
        rows.append([rung["name"], *counts, count, format_mean(values, places), at_rung])
    columns = ["rung", "parameters", "tokens", "steps", "FLOPs", "n", heading(results.manifest["metric"]), "law"]
    fit = results.law
    if fit is None:
        return Section("Rungs", columns, rows, [f"{results.no_law} Gains in compute need one."])
    law = fit.law
    a, floor = fit.exponent, fit.floor
    bounds = ["" if math.isnan(x.low) else f" [{x.low:z.3f}, {x.high:z.3f}]" for x in (floor, a)]
    notes = [
        f"Law of {base}: L = E + A (C / {law.reference:z.3g} FLOPs)^-a with E = {number(float(law.floor), places)}"
        f"{bounds[0]}, A = {number(float(law.scale), places)}, a = {float(law.exponent):z.3f}{bounds[1]}; Huber's loss "
        f"on log L, over all rungs{f' at {results.lines[0].at}' if results.lines[0].along else ''}."
    ]
    largest, p = fit.misses
    if p < ALPHA_P:
        notes.append(
            f"It misses a rung by {largest:z.1%}, more than seeds' noise explains (p {p:z.2g}): these sizes do not "
            "follow one law, which CIs of gains and forecasts leave out."
        )
    elif not math.isnan(p):
        notes.append(f"It misses no rung by more than {largest:z.1%}, which seeds' noise explains (p {p:z.2g}).")
    return Section("Rungs", columns, rows, notes)


def size_length_section(results: LadderResults) -> Section:
    """Build the table of laws of size and length, and what each arm is worth by them; empty without lengths."""
    title, apart, base = "Size and length apart", results.apart, results.manifest["baseline"]
    if apart is None:
        return Section(title)
    columns = ("arm", "alpha [95 % CI]", "beta [95 % CI]", "gain in compute", "gain in data", "gain in parameters")
    rows, notes, top = list[list[str]](), list[str](), results.manifest["rungs"][results.dearest]["name"]
    for name in results.names:
        law, of_top = apart.laws[name], apart.gains.get((name, top))
        exponents = ["-", "-"]
        if isinstance(law, FittedLaw):
            exponents = [f"{of.value:z.2f} [{of.low:z.2f}, {of.high:z.2f}]" for of in (law.alpha, law.beta)]
        else:
            notes.append(f"{NO_LAW} {name}: {law}.")
        of_axes = ["-"] * 3
        if of_top is not None:
            axes = (of_top.compute, of_top.data, of_top.parameters)
            of_axes = [_of_axis(axis, floor) for axis, floor in zip(axes, FLOORS, strict=True)]
        rows.append([name, *exponents, *of_axes])
    fitted = apart.laws[base]
    if not isinstance(fitted, FittedLaw):
        return Section(title, columns, rows, [*notes, "Without the baseline's law there are no such gains."])
    fit, (largest, p), places = fitted.law, fitted.misses, digits(results)
    parts = [number(float(part), places) for part in (fit.floor, fit.of_size, fit.of_length)]
    missed = "" if math.isnan(p) else f" It misses a rung by up to {largest:z.1%} (p {p:z.2g} by seeds' noise)."
    if p < ALPHA_P:
        missed += " So these rungs do not follow one such law, which the CIs leave out."
    notes += [
        f"L = E + A (N / {fit.parameters:z,.0f})^-alpha + B (D / {fit.tokens:z,.0f})^-beta, of N parameters with the "
        f"embeddings and D tokens; of {base} E = {parts[0]}, A = {parts[1]}, B = {parts[2]}.{missed}",
        f"Gains at {top}: what {base} needs for the arm's loss by its law, over what the arm has: compute at one ratio "
        "of tokens to parameters, tokens at the arm's parameters, parameters at the arm's tokens. CIs cover the seeds.",
    ]
    if any(at.not_bracketed for at in results.at_rung.values()):
        notes.append("Where a rate is not bracketed, what looks like size or length may be the learning rate.")
    return Section(title, columns, rows, notes)


FLOORS = ("below the law's floor", "beyond any amount of data", "beyond any size")  # of gains in compute, data, size


def _of_axis(estimate: Gain, floor: str) -> str:
    far = EXTRAPOLATED if estimate.beyond in ("above", "below") else ""
    return gain(replace(estimate, beyond="" if far else estimate.beyond), floor) + far


def ladder_sections(results: LadderResults) -> list[Section]:
    """Return the tables of a ladder."""
    parts = (worth_section, size_length_section, trend_section, forecast_section, rung_section)
    sections = [make(results) for make in parts]
    return [section for section in sections if section.rows or section.notes]


def _rates(results: LadderResults) -> list[str]:
    """List the learning rates of the arms by rung, where some arm has more than one."""
    rates_of_arms: dict[str, list[float]] = {}
    for arm in results.names:
        raw_rates: list[Any] = [(rung.configuration(arm).get("optim") or {}).get("lr") for rung in results.rungs]
        rates_of_arms[arm] = [float(rate) if is_number(rate) else math.nan for rate in raw_rates]
    if all(len({rate for rate in rates if not math.isnan(rate)}) < 2 for rates in rates_of_arms.values()):
        return []
    texts = {arm: ["-" if math.isnan(r) else f"{r:z.3g}" for r in rates] for arm, rates in rates_of_arms.items()}
    listed = "; ".join(f"{arm} {', '.join(of_arm)}" for arm, of_arm in texts.items())
    return [f"Learning rates, from rung to rung: {listed}."]


def _over_text(results: LadderResults) -> list[str]:
    pairs = [(f"{arm} on {rung}", at.noise is not None) for (rung, arm), at in results.at_rung.items()]
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


# tables of numbers ---------------------------------------------------------------------------------------------------


def worth_table(results: LadderResults) -> pd.DataFrame:
    """Return a row for each rung and arm; gains are factors, compute is in FLOPs. The baseline has its loss alone."""
    rows = []
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        for name in results.manifest["arms"]:
            values = losses(rung_results, name)
            finite = values[np.isfinite(values)]
            mean, sd = finite.mean() if len(finite) else math.nan, finite.std(ddof=1) if len(finite) > 1 else math.nan
            row: dict[str, object] = {"rung": rung["name"], "arm": name, "metric": results.manifest["metric"]}
            row |= {"compute": rung["compute"][name], "n": len(finite), "mean": mean, "sd": sd}
            at = results.at_rung.get((rung["name"], name))
            of_arm = at.gain if at else None
            row |= {"pairs": at.pairs if at else 0, **_columns("difference", at.difference if at else Estimate())}
            row |= {"over": ("seeds" if at.noise is None else "seeds and text") if at else ""}
            row |= {**_columns("gain", factors(of_arm.log if of_arm else Estimate()))}
            row |= {"beyond": of_arm.beyond if of_arm else "", "rate_bracketed": not at.not_bracketed if at else ""}
            rows.append(row | {"verdict": at.verdict if at else "", **_lengths(results, rung, name)})
    return pd.DataFrame(rows)


def _lengths(results: LadderResults, rung: RungOf, arm: str) -> dict[str, object]:
    """Return the columns of a rung and arm that a ladder with several lengths of a size adds."""
    if results.apart is None:
        return {}
    columns: dict[str, object] = {"tokens_per_parameter": rung["tokens_per_parameter"], **rung["sizes"][arm]}
    gains = results.apart.gains.get((arm, rung["name"]))
    for axis in ("compute", "data", "parameters"):
        log = getattr(gains, axis).log if gains else Estimate()
        columns |= _columns(f"gain_{axis}", factors(log))
    return columns


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def trend_table(results: LadderResults) -> pd.DataFrame:
    """Return a row for each arm and kind of trend; slopes of gains are of ln(gain) per decade of compute."""
    rows = []
    for line, arms in zip(results.lines, [results.arms, *results.others], strict=True):
        for arm in arms if len(line.rungs) > 1 or line is results.lines[0] else ():
            both = (("difference", arm.scaling.of_difference), ("log gain", arm.scaling.of_gain)) if arm.scaling else ()
            for kind, trend in both if line.along != "length" else both[:1]:
                says = arm.withheld if arm.withheld and trend.kind != "none" else trend.kind
                row: dict[str, object] = {"arm": arm.name, "of": kind, "says": says, "margin": trend.margin}
                row |= _columns("slope", trend.slope) | _columns("middle", trend.middle)
                rows.append(row | ({"along": line.along, "at": line.at} if line.along else {}))
    return pd.DataFrame(rows)


# the report ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LadderReport(Report):
    """The report of a ladder."""

    results: LadderResults

    kind = ("ladder", "ladders")

    @classmethod
    def load(cls, folder: Path) -> "LadderReport":
        """Load a ladder. Raises InputError where there is none that this version reads."""
        return cls(load_ladder(folder))

    @property
    def name(self) -> str:
        """Name of the ladder."""
        return self.results.manifest["name"]

    @property
    def damaged(self) -> bool:
        """True if a record, a curve or losses by document of a rung were changed."""
        return any(rung.harmed for rung in self.results.rungs)

    def figures(self) -> dict[str, Callable[[], Chart | None]]:
        """Return its figure."""
        return {NAME: lambda: ladder_chart(self.results)}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the arms by rung, and the trends."""
        return {"table.csv": worth_table(self.results), "trends.csv": trend_table(self.results)}

    def printed(self, width: int, everything: bool) -> list[Section]:
        """Return the arms by rung and their trends with a few lines of notes, or all tables with all their notes."""
        first, *others = ladder_sections(self.results)
        brief = (
            f"Gain: the compute that {self.results.manifest['baseline']} needs for the arm's loss, over the arm's own."
        )
        notes = list(first.notes) if everything else [brief]
        if not everything and any(at.not_bracketed for at in self.results.at_rung.values()):
            notes.append("Rate not bracketed: the gain may be the learning rate's; trends have no verdict.")
        title, text = self.results.manifest["title"], ladder_answer(self.results)
        first = replace(first, title=title, text=text, notes=notes)
        if not everything:  # of the next table its numbers, or why there are none
            others = [replace(s, notes=[note for note in s.notes if note.startswith(NO_LAW)]) for s in others[:1]]
        return [first, *others]

    def sections(self) -> list[Section]:
        """Return the tables, and the experiments of the rungs."""
        first, *others = ladder_sections(self.results)
        manifest = self.results.manifest
        rungs = Section("Reports of the rungs", notes=self._rungs())
        first = replace(first, title=manifest["title"])
        return [first, Section(text=author_notes(manifest)), *others, rungs]

    def body(self) -> Body:
        """Return the answer, the chart and the tables."""
        manifest, drawing = self.results.manifest, Charts()
        drawn = drawing.add(NAME, ladder_chart(self.results))
        first, *others = ladder_sections(self.results)
        first = replace(first, notes=[*first.notes, TWO_INTERVALS])
        sections = [
            PageSection("figure", "Figure", drawn),
            *(as_page_section(section, folded=False) for section in (first, *others)),
            PageSection("notes", "Author's notes", parts.author_notes(manifest)),
            PageSection("reports", "Reports of the rungs", listed(self._rungs()), folded=True),
        ]
        arms, rungs = len(manifest["arms"]), len(manifest["rungs"])
        below = f"{self.name}: {arms} arms on {rungs} rungs, baseline {manifest['baseline']}"
        answer = ladder_answer(self.results)
        return Body(self.name, manifest["title"], below, answer, Html(), sections, drawing, lines=self._lines())

    def _rungs(self) -> list[str]:
        return [f"{rung['name']}: {rung['experiment']}" for rung in self.results.manifest["rungs"]]

    def _lines(self) -> list[str]:
        manifest, lines = self.results.manifest, []
        top = manifest["rungs"][-1]["name"]
        for arm in self.results.arms:
            words = [no_pair_text(self.results, top, arm.name)]
            if at := self.results.at_rung.get((top, arm.name)):
                of = at.difference
                size = signed(of.value, of.low, of.high, digits(self.results))
                words = [display_verdict(at.verdict, manifest["metric"]), size, f"{at.pairs} pairs", at.ill]
            lines.append(f"{arm.name}: {', '.join(filter(None, words))}")
        return lines


# several ladders -----------------------------------------------------------------------------------------------------
NOTES = [
    "Gains in compute by rung: the compute that the baseline needs for the arm's loss, by its law, over the arm's own. "
    "Their intervals, the differences and the verdicts of each rung are in the ladder's own report.",
    "The forecast is that of the top rung's difference by the rungs below it. It holds under the law alone.",
    "°: no curve of learning rates at that size has the arm's rate, or the baseline's, as its best one with a worse "
    "one on each side. The gain may be the rate's, and no trend over such a rung has a verdict.",
]

UNSURE = " °"  # mark of a gain at a rung where a rate is not bracketed; the notes explain it


def overview_section(ladders: Sequence[LadderResults], title: str = "") -> Section:
    """Build the table of ladders: a row an arm, its gain at each rung, as the longest orders them, and its trends."""
    longest_first = sorted(ladders, key=lambda ladder: -len(ladder.rungs))
    rungs = list(dict.fromkeys(rung["name"] for ladder in longest_first for rung in ladder.manifest["rungs"]))
    along_law = {rung for ladder in ladders for (rung, _), at in ladder.at_rung.items() if at.gain is not None}
    rungs = [rung for rung in rungs if rung in along_law] or rungs  # other lengths of a size have no gain
    rows: list[list[str]] = []
    for ladder in ladders:
        base = ladder.manifest["baseline"]
        forecasts = {row[0]: row[3] for row in forecast_section(ladder).rows}
        for arm in ladder.arms:
            cells = []
            for rung in rungs:
                at, text = ladder.at_rung.get((rung, arm.name)), "-"
                if at is not None and at.gain is not None:  # none without a law
                    floor = at.gain.beyond == "floor"
                    text = "below the law's floor" if floor else times(factors(at.gain.log).value)
                    text += UNSURE if at.not_bracketed else ""
                cells.append(text)
            trends, forecast = trend_texts(arm)[::-1], forecasts.get(f"{arm.name} - {base}", "-")
            rows.append([ladder.manifest["name"], f"{arm.name}, {base}", *cells, *trends, forecast])
    columns = ["ladder", "arm, against", *rungs]
    columns += ["gain with more compute", "difference with more compute", "forecast"]
    return Section(title, columns, rows, NOTES)


def csv_worth(ladders: Sequence[LadderResults]) -> str:
    """Join the tables of all ladders as CSV, with a row for each ladder, rung and arm."""
    names = [ladder.manifest["name"] for ladder in ladders]
    return as_csv(pd.concat(map(worth_table, ladders), keys=names, names=["ladder"]).reset_index("ladder"))
