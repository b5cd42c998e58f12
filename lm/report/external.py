"""The report of runs that others trained: tables, notes, figures and pages, in the terminal and as files."""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from lm.analysis.external.runs import UNCHECKED, Runs, arms_of_unequal_spread, compare_runs
from lm.analysis.tidy import CELLS
from lm.analysis.verdict_text import seed_ranges
from lm.config.tree import InputError
from lm.report import tables
from lm.report.answer import answer
from lm.report.base import Report
from lm.report.figures.chart import Chart
from lm.report.figures.static_pages import differences, every_run
from lm.report.notes import describe_test, lost_rate, missing_seeds, share_of_alpha
from lm.report.render import Section, TableCell, html_section
from lm.report.tables import ARROWS, DIFFERENCE
from lm.report.web.elements import Html, joined
from lm.report.web.gallery import Charts
from lm.report.web.page import Body, PageSection, page
from lm.report.write import publish
from lm.stats.tests import ALPHA
from lm.stats.unpaired import runs_needed, smallest_unpaired_p
from lm.store.metrics import METRICS, describe

MOST_NAMED = 12  # largest number of lost runs with a line each
OTHERS = ("experiment.json", "study.json", "ladder.json")  # files of folders whose reports are of another kind


def heading(runs: Runs, quantity: str) -> str:
    """Return label and direction of a quantity, the latter also where only these runs define it."""
    return describe(quantity).label + ARROWS[runs.better.get(quantity)]


def judged_sections(runs: Runs, table: pd.DataFrame) -> list[Section]:
    """Build a table for each judged quantity: a row an arm, the best first; the last has the notes."""
    sections = []
    for quantity in runs.judged:
        labelled = tables.several_intervals(table[table.metric == quantity])
        rows = []
        for row in tables.ranked(table, quantity, runs.better.get(quantity)):
            effect = TableCell(tables.difference(row, labelled), bool(row.bold))
            rows.append(
                [str(row.arm), tables.format_run_counts(row), tables.mean_and_sd(row), effect, str(row.verdict)]
            )
        sections.append(Section(quantity, ["arm", "n", heading(runs, quantity), DIFFERENCE, "verdict"], rows))
    sections[-1] = replace(sections[-1], notes=notes(runs, table))
    return sections


def notes(runs: Runs, table: pd.DataFrame) -> list[str]:
    """List the notes on method, directions and lost runs; the last names what could not be checked."""
    lines = [*_method(runs, table)]
    for name in runs.judged:
        direction = runs.better[name]
        if name in runs.assumed and direction == "lower":
            lines.append(f"{name}: lower is better (assumed; --higher-is-better changes it).")
        elif direction is not None and name not in METRICS:
            lines.append(f"{name}: {direction} is better.")
    return [*lines, *_ended(runs, table), *(f"{line[:1].upper()}{line[1:]}." for line in runs.notes), UNCHECKED]


def _method(runs: Runs, table: pd.DataFrame) -> Iterator[str]:
    number, base = len(runs.judged) * (len(runs.arms) - 1), runs.arms[0]
    last = " Each value is the last that the run logged." if runs.source.last else ""
    yield f"Read from {runs.source.path}: {runs.source.kind}, {len(runs.runs)} runs.{last}"
    if runs.paired:
        yield (
            f"Seeds {seed_ranges(runs.seeds)}, paired with {base} by seed. Mean ± sd over seeds. The test also holds, "
            "with less power, where runs of one seed share nothing but its number."
        )
        yield describe_test(len(runs.seeds), number)
    else:
        more = "" if runs.why == "as was asked for" else " Runs that share seeds with the baseline's would show more."
        yield f"Mean ± sd over runs. Differences of means to {base}, unpaired: {runs.why}.{more}"
        yield _unpaired(runs, table, number)
    for quantity in () if runs.paired else runs.judged:
        for arm in arms_of_unequal_spread(runs, quantity):
            yield (
                f"Warning: one of {arm} and {base} spreads over twice as far as the other in {quantity}. If the noise "
                "is skewed too, no test holds: 7 to 17 of 100 equal means are called different."
            )
    plain = "Student's" if runs.paired else "Welch's"
    yield f"Judged: {', '.join(runs.judged)}. Others have a plain CI ({plain}, each by itself) and no verdict."
    if runs.margin == runs.margin:
        yield (
            f"Equivalent: median difference of {runs.judged[0]} over seeds within {runs.margin:zg}, by two one-sided "
            "sign tests (Holm)."
        )
    headline = table[(table.metric == runs.judged[0]) & table.detectable.notna()]
    if detectable_texts := [f"{row.arm} {tables.detectable(row)}" for row in headline.itertuples()]:
        yield f"Detectable effect (80 % power): {', '.join(detectable_texts)}."


def _unpaired(runs: Runs, table: pd.DataFrame, number: int) -> str:
    """Describe the tests of unpaired runs, or why too few runs allow none."""
    sizes = table[table.metric == runs.judged[0]].n.tolist()
    least = min(smallest_unpaired_p(n, sizes[0]) for n in sizes[1:])
    level = share_of_alpha(number)
    if least > ALPHA / number:
        return (
            f"So few runs cannot reach significance ({runs_needed(number)} runs of each arm could): a permutation test "
            f"gives no p below {least:z.3g}, and {level} is needed."
        )
    return (
        f"Verdict: a permutation test of Welch's t and Welch's t-test agree at {level}. The joint CI holds what either "
        "does not reject, and excludes 0 exactly where there is a verdict."
    )


def _ended(runs: Runs, table: pd.DataFrame) -> Iterator[str]:
    not_ok = [(key, run) for key, run in runs.runs.items() if run.status != "ok"]
    for (arm, seed), run in not_ok[:MOST_NAMED]:
        why = f" ({run.source_status})" if run.source_status else ""
        yield f"{arm} seed {seed} {run.status}{why}. Not in any mean."
    if len(not_ok) > MOST_NAMED:
        yield f"{len(not_ok) - MOST_NAMED} more runs ended so; cells.csv has them all."
    for arm in runs.arms if runs.paired else ():
        if missing := [seed for seed in runs.seeds if (arm, seed) not in runs.runs]:
            yield missing_seeds(arm, missing, "missing")
    for row in table[table.metric == runs.judged[0]].itertuples():
        yield from lost_rate(row, len(runs.statuses(str(row.arm))))


def tidy(runs: Runs) -> pd.DataFrame:
    """Return a row for each arm, seed and quantity, in the columns of `lm.analysis.tidy.cells`, without ids."""
    rows = []
    for (arm, seed), run in runs.runs.items():
        for name in runs.measured:
            meaning, direction = describe(name), runs.better[name] or ""
            of_run = (runs.source.path.name, arm, seed, "", run.status, name, meaning.label, meaning.unit, direction)
            rows.append((*of_run, runs.value(arm, seed, name)))
    return pd.DataFrame(rows, columns=list(CELLS)).astype({"value": "float64"})


@dataclass(frozen=True)
class ExternalReport(Report):
    """The report of runs that others trained, with the comparisons of their arms."""

    runs: Runs
    table: pd.DataFrame

    @property
    def name(self) -> str:
        """Name of the file or folder that they were read from."""
        return self.runs.source.path.name or self.runs.source.path.resolve().name

    @property
    def title(self) -> str:
        """Title of the report."""
        return f"{self.name}: {len(self.runs.arms)} arms, external runs"

    def figures(self) -> dict[str, Callable[[], Chart | None]]:
        """Return the differences, and what each run measured."""
        return {"differences": lambda: differences(self.runs, self.table), "runs": lambda: every_run(self.runs)}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the runs, and the comparisons."""
        return {"cells.csv": tidy(self.runs), "table.csv": self.table}

    def printed(self, width: int, everything: bool) -> list[Section]:
        """Return a table for each judged quantity, and the notes."""
        first, *others = judged_sections(self.runs, self.table)
        return [replace(first, title=self.title, text=answer(self.runs, self.table)), *others]

    def sections(self) -> list[Section]:
        """Return the same."""
        first, *others = judged_sections(self.runs, self.table)
        files = Section(text="All metrics: table.csv. Runs: cells.csv.")
        return [replace(first, title=self.title), *others, files]

    def body(self) -> Body:
        """Return the answer, the charts and the tables of every quantity."""
        runs, drawing = self.runs, Charts()
        drawn = joined(drawing.add(name, chart) for name, chart in self.charts())
        shown = [*judged_sections(runs, self.table), tables.details(self.table, functools.partial(heading, runs))]
        sections = [PageSection("figures", "Figures", drawn)]
        for index, part in enumerate(shown):  # two quantities may begin with the same word
            sections.append(PageSection(f"part-{index}", part.title, html_section(part)))
        below = f"{runs.source.path}: {runs.source.kind}; baseline {runs.arms[0]}"
        return Body(self.name, self.title, below, answer(runs, self.table), Html(), sections, drawing)


def write_comparison(runs: Runs, console: Console, into: Path | None) -> None:
    """Print the tables, or write all files into a folder. Raises InputError if it holds another kind of report."""
    report = ExternalReport(runs, compare_runs(runs))
    if into is None:
        report.show(console)
        return
    if others := [name for name in OTHERS if os.path.lexists(into / name)]:
        raise InputError(f"--out {into}: holds {others[0]} and its report; expected a folder of this report's own")
    publish([report], {"report.html": page(report.body()), **report.files()}, into, console)
    print(f"report: {into / 'table.md'}", file=sys.stderr)


def as_json(runs: Runs) -> str:
    """Format comparisons and notes as JSON; non-finite numbers are null."""
    table = compare_runs(runs)
    plain = json.loads(table.to_json(orient="records"))
    return json.dumps({"design": table.design.iloc[0], "comparisons": plain, "notes": notes(runs, table)}, indent=2)
