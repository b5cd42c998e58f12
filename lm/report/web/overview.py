"""Several reports on one page: their differences in one chart, their answers, and each report as on its own page."""

from collections.abc import Sequence
from dataclasses import dataclass

from lm.report.figures.chart import Chart
from lm.report.web.elements import Html, joined, listed, nested, tag
from lm.report.web.gallery import FIRST
from lm.report.web.page import Body, charts_credit, charts_notes, embedded, new_charts, page_file
from lm.report.web.parts import contents

ALL = "all-"  # prefix of the ids of the chart of all differences


@dataclass(frozen=True)
class OverviewEntry:
    """A report beside others on a page.

    Args:
        name: name in the list of reports.
        answer: what it came to, in a sentence.
        body: content of its own page.
        lines: what it came to for each arm, where no chart shows that.
    """

    name: str
    answer: str
    body: Body
    lines: Sequence[str] = ()


def overview_html(title: str, entries: Sequence[OverviewEntry], differences: Chart | None) -> str:
    """Format the file. Reports are distinguished by their position, whatever they are called.

    Args:
        title: its heading.
        entries: the reports.
        differences: chart of the differences of all experiments; None without any.
    """
    numbered, drawing = list(enumerate(entries, 1)), new_charts()
    chart = nested(tag("div", drawing.add(FIRST, differences), id="differences"), ALL)
    answers = tag("ol", [_answer(*entry) for entry in numbered], class_="answers")
    overview = tag("section", tag("h2", "Overview"), chart, answers, id="overview", data_report=ALL)
    links = [tag("a", f"{number}. {entry.name}", href=f"#e{number}") for number, entry in numbered]
    charts = any(entry.body.data for entry in entries)
    main = tag(
        "main",
        tag("header", tag("h1", title), charts_notes() if charts else ""),
        tag("nav", tag("a", "Overview", href="#overview"), links, class_="contents", aria_label="reports"),
        tag("div", overview, [_report(*entry) for entry in numbered], charts_credit() if charts else ""),
        class_="page",
    )
    numbers = [embedded(entry.body.data, f"e{number}-") for number, entry in numbered]
    drawn = {"report": {}, "specs": drawing.specs, "columns": drawing.columns}
    return page_file(title, main, joined(embedded(drawn, ALL), numbers), "overview")


def _answer(number: int, entry: OverviewEntry) -> Html:
    """Format what a report came to, below a link to it."""
    link = tag("a", entry.body.title, href=f"#e{number}")
    return tag("li", link, tag("p", entry.answer), listed(entry.lines), tag("p", entry.body.below, class_="hint"))


def _report(number: int, entry: OverviewEntry) -> Html:
    """Format a report below one heading, which folds it."""
    inside = [tag("p", entry.body.below, class_="soft"), contents(entry.body.parts), entry.body.shown]
    heading, prefix = tag("summary", tag("h2", f"{number}. {entry.body.title}")), f"e{number}-"
    attributes: dict[str, str | bool] = {"class_": "report", "id": f"e{number}", "open": True}
    attributes["data_report"] = prefix if entry.body.data else False
    return tag("details", heading, nested(joined(inside), prefix), **attributes)
