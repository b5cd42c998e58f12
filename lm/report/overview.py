"""A page of several experiments, ladders and searches."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lm.analysis.compare import HEALTHY, NO_RUN
from lm.analysis.ladder import FILE, LadderResults, load_ladder
from lm.report.ladder import digits
from lm.report.ladder_page import ladder_report_body as body_of_ladder
from lm.report.ladder_page import show_ladder
from lm.report.search import importance_of
from lm.report.study import Study, importance_lines, load_study, terminal
from lm.report.tables import DIFFERENCE, difference, format_run_counts, format_verdict_cell, several_intervals, signed
from lm.report.web.numbers import label
from lm.report.web.overview import ArmLine, OverviewEntry, overview_html
from lm.report.web.parts import MOST_VERDICTS
from lm.report.web.search import ImportancesOrReason, best_line, search_body
from lm.report.write import ExperimentReport, load_report, report_body, show


@dataclass(frozen=True)
class Search:
    """A search with the importances of its parameters, or why there are none."""

    study: Study
    importance: ImportancesOrReason


ReportSource = ExperimentReport | LadderResults | Search

KINDS: dict[type, tuple[str, str]] = {
    ExperimentReport: ("experiment", "experiments"),
    LadderResults: ("ladder", "ladders"),
    Search: ("search", "searches"),
}


def load_source(folder: Path) -> ReportSource:
    """Load the experiment, ladder or search in a folder. Raises InputError where it cannot be read."""
    if os.path.isfile(folder / "study.json"):
        study = load_study(folder)
        return Search(study, importance_of(study))
    return load_ladder(folder) if os.path.isfile(folder / FILE) else load_report(folder)


def show_source(source: ReportSource, console: Console) -> None:
    """Print its tables."""
    if isinstance(source, Search):
        terminal(source.study, importance_lines(source.importance), console)
    elif isinstance(source, LadderResults):
        show_ladder(source, console)
    else:
        show(source, console)


def is_damaged(source: ReportSource) -> bool:
    """Return True if a record or a curve was changed since training wrote it."""
    return not isinstance(source, Search) and source.damaged


def overview_page(sources: Sequence[ReportSource]) -> str:
    """Format the page, in the order of the sources."""
    return overview_html(f"Report of {_count_kinds(sources)}", [_entry(source) for source in sources])


def _count_kinds(sources: Sequence[ReportSource]) -> str:
    """Count the sources of each kind, in words."""
    counts = Counter(map(type, sources))
    counted = [f"{counts[kind]} {names[counts[kind] > 1]}" for kind, names in KINDS.items() if counts[kind]]
    return " and ".join(filter(None, [", ".join(counted[:-1]), counted[-1]]))


def _entry(source: ReportSource) -> OverviewEntry:
    if isinstance(source, Search):
        body = search_body(source.study, source.importance)
        return OverviewEntry(source.study.manifest["name"], "", [], best_line(source.study), body)
    return _ladder_entry(source) if isinstance(source, LadderResults) else _experiment_entry(source)


def _experiment_entry(report: ExperimentReport) -> OverviewEntry:
    """List the arms by the headline quantity; of many, the baseline and those with significant differences."""
    results = report.results
    judged = report.table[report.table.metric == results.headline]
    labelled = several_intervals(judged)
    rows = list(judged.itertuples())
    if len(rows) > MOST_VERDICTS + 1:
        rows = sorted(rows, key=lambda row: (row.verdict != "baseline", not row.bold))
    lines = [
        ArmLine(
            str(row.arm),
            format_run_counts(row),
            difference(row, labelled),
            format_verdict_cell(str(row.verdict)),
            str(row.health),
            bool(row.bold),
        )
        for row in rows[: MOST_VERDICTS + 1]
    ]
    left = len(rows) - len(lines)
    more = f"And {left} more arm{'s' * (left > 1)} in its own table." if left else ""
    of = f"{DIFFERENCE} of {label(results.headline)}" if len(rows) > 1 else ""
    return OverviewEntry(results.manifest["name"], of, lines, more, report_body(report))


def _ladder_entry(results: LadderResults) -> OverviewEntry:
    """List the arms at the top rung."""
    top, lines = results.manifest["rungs"][-1]["name"], []
    for arm in results.arms:
        if arm.scaling is None or arm.at[-1].rung != top:
            nothing = f"no pair to compare{arm.lost.get(top, '')}"
            lines.append(ArmLine(arm.name, "0", "-", nothing, arm.health.get(top, NO_RUN), bold=False))
            continue
        at, of = arm.at[-1], arm.scaling.differences[-1]
        text = signed(of.value, of.low, of.high, digits(results))
        lines.append(
            ArmLine(arm.name, str(at.pairs), text, format_verdict_cell(at.verdict), at.ill or HEALTHY, at.bold)
        )
    judged = f"{DIFFERENCE} of {label(results.manifest['metric'])} at the top rung, {top}"
    return OverviewEntry(results.manifest["name"], judged, lines, "", body_of_ladder(results))
