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
from lm.report.ladder_page import body_of as body_of_ladder
from lm.report.ladder_page import show_ladder
from lm.report.search import importance_of
from lm.report.study import Study, importance_lines, load_study, terminal
from lm.report.tables import cells, difference, interval_heading, signed
from lm.report.web.numbers import label
from lm.report.web.parts import MOST_VERDICTS
from lm.report.web.search import Found, best_line, search_body
from lm.report.web.several import Included, Line, several_html
from lm.report.write import Findings, body_of, find, show


@dataclass(frozen=True)
class Search:
    """A search with the importances of its parameters, or why there are none."""

    study: Study
    importance: Found


Told = Findings | LadderResults | Search

KINDS: dict[type, tuple[str, str]] = {
    Findings: ("experiment", "experiments"),
    LadderResults: ("ladder", "ladders"),
    Search: ("search", "searches"),
}


def read(folder: Path) -> Told:
    """What a folder tells of. Raises InputError where there is nothing that this version reads."""
    if os.path.isfile(folder / "study.json"):
        study = load_study(folder)
        return Search(study, importance_of(study))
    return load_ladder(folder) if os.path.isfile(folder / FILE) else find(folder)


def show_any(told: Told, console: Console) -> None:
    """Prints its tables."""
    if isinstance(told, Search):
        terminal(told.study, importance_lines(told.importance), console)
    elif isinstance(told, LadderResults):
        show_ladder(told, console)
    else:
        show(told, console)


def damaged(told: Told) -> bool:
    """Whether a record or a curve is no longer what training wrote."""
    return not isinstance(told, Search) and told.damaged


def page_of(found: Sequence[Told]) -> str:
    """The page, in the order given."""
    return several_html(f"Report of {_counted(found)}", [_included(one) for one in found])


def _counted(found: Sequence[Told]) -> str:
    """How many there are of each kind."""
    counts = Counter(type(one) for one in found)
    said = [f"{counts[one]} {names[counts[one] > 1]}" for one, names in KINDS.items() if counts[one]]
    return " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))


def _included(told: Told) -> Included:
    if isinstance(told, Search):
        body = search_body(told.study, told.importance)
        return Included(told.study.manifest["name"], "", [], best_line(told.study), body)
    return _of_ladder(told) if isinstance(told, LadderResults) else _of_experiment(told)


def _of_experiment(found: Findings) -> Included:
    """The arms by its headline; of many the baseline and those that stand out."""
    results = found.results
    judged = found.table[found.table.metric == results.headline]
    kind, labelled = interval_heading(judged)
    rows = list(judged.itertuples())
    if len(rows) > MOST_VERDICTS + 1:
        rows = sorted(rows, key=lambda row: (row.verdict != "baseline", not row.bold))
    lines = [
        Line(str(row.arm), cells(row), difference(row, labelled), str(row.verdict), str(row.health), bool(row.bold))
        for row in rows[: MOST_VERDICTS + 1]
    ]
    left = len(rows) - len(lines)
    more = f"And {left} more arm{'s' * (left > 1)} in its own table." if left else ""
    of = f"{kind} of {label(results.headline)}" if len(rows) > 1 else ""
    return Included(results.manifest["name"], of, lines, more, body_of(found))


def _of_ladder(results: LadderResults) -> Included:
    """The arms at its top rung."""
    top, lines = results.manifest["rungs"][-1]["name"], []
    for arm in results.arms:
        if arm.scaling is None or arm.at[-1].rung != top:
            nothing = f"no pair to compare{arm.lost.get(top, '')}"
            lines.append(Line(arm.name, "0", "-", nothing, arm.health.get(top, NO_RUN), bold=False))
            continue
        at, of = arm.at[-1], arm.scaling.differences[-1]
        text = signed(of.value, of.low, of.high, digits(results))
        lines.append(Line(arm.name, str(at.pairs), text, at.verdict, at.ill or HEALTHY, at.bold))
    judged = f"difference [95 %] of {label(results.manifest['metric'])} at the top rung, {top}"
    return Included(results.manifest["name"], judged, lines, "", body_of_ladder(results))
