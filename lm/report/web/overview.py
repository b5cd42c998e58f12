"""Several reports on one page: an overview that links to each, and each as on its own page."""

from collections.abc import Sequence
from dataclasses import dataclass

from lm.analysis.compare import HEALTHY
from lm.report.web.elements import SENTENCE, Html, joined, nested, tag
from lm.report.web.page import Body, charts_credit, embedded, missing_charts_note, page_file
from lm.report.web.parts import MARKS, kind
from lm.report.web.static import Picture, static_picture

COLUMNS = ("arm", "n", "difference", "verdict", "health")


@dataclass(frozen=True)
class ArmLine:
    """An arm in the overview.

    Args:
        arm: its name.
        n: number of successful cells, and of lost and missing ones.
        difference: difference to the baseline, with its interval.
        verdict: verdict on the difference.
        health: `healthy`, its training problem, or that no run ended well.
        bold: True for a significant difference of healthy arms.
    """

    arm: str
    n: str
    difference: str
    verdict: str
    health: str
    bold: bool


@dataclass(frozen=True)
class OverviewEntry:
    """A report beside others on a page.

    Args:
        name: name in the list of reports.
        judged: description of its differences; empty where there are none.
        lines: its arms.
        more: a line below them; empty for none.
        body: content of its own page.
    """

    name: str
    judged: str
    lines: Sequence[ArmLine]
    more: str
    body: Body


def overview_html(title: str, entries: Sequence[OverviewEntry], picture: Picture | None = None) -> str:
    """Format the file. Reports are distinguished by their position, whatever they are called.

    Args:
        title: title of the file.
        entries: the reports.
        picture: picture in the overview; None for none.
    """
    numbered = list(enumerate(entries, 1))
    links = [tag("li", tag("a", entry.name, href=f"#e{number}")) for number, entry in numbered]
    charts = any(entry.body.data for entry in entries)
    credit = charts_credit() if charts else ""
    main = tag(
        "main",
        tag("header", tag("h1", title), missing_charts_note() if charts else ""),
        tag("nav", tag("a", "Overview", href="#overview"), tag("ol", links), class_="contents", aria_label="reports"),
        tag(
            "div",
            _overview(numbered, picture),
            [_report(*entry) for entry in numbered],
            credit,
        ),
        class_="several",
    )
    return page_file(
        title, main, joined(embedded(entry.body, _id_prefix(number)) for number, entry in numbered), several=True
    )


def _id_prefix(number: int) -> str:
    """Return the prefix of a report's ids."""
    return f"e{number}-"


def _report(number: int, entry: OverviewEntry) -> Html:
    """Format a report below one heading, which folds it."""
    inside = [tag("p", entry.body.below, class_="soft"), entry.body.shown]
    return tag(
        "details",
        tag("summary", tag("h2", f"{number}. {entry.body.title}")),
        nested(joined(inside), _id_prefix(number)),
        class_="report",
        id=f"e{number}",
        open=True,
        data_report=_id_prefix(number) if entry.body.data else False,
    )


# the overview --------------------------------------------------------------------------------------------------------


def _overview(numbered: Sequence[tuple[int, OverviewEntry]], picture: Picture | None) -> Html:
    """Format a table with a group of rows for each report, and a picture below it."""
    heads = tag("thead", tag("tr", [tag("th", column, scope="col") for column in COLUMNS]))
    inside = tag("table", heads, [_group(*entry) for entry in numbered])
    box = tag("div", inside, class_="scroll overview", tabindex="0", role="region", aria_label="overview")
    below = static_picture(*picture) if picture else ""
    return tag("section", tag("h2", "Overview"), box, below, id="overview")


def _group(number: int, entry: OverviewEntry) -> Html:
    about = f"{entry.body.below}{'; ' * bool(entry.judged)}{entry.judged}"
    leads = tag("a", f"{number}. {entry.body.title}", href=f"#e{number}")
    top = tag("th", leads, tag("div", about, class_="hint"), colspan=len(COLUMNS), scope="rowgroup")
    more = tag("tr", tag("td", entry.more, colspan=len(COLUMNS))) if entry.more else ""
    verdict = f"{_id_prefix(number)}verdict" if entry.body.data else f"e{number}"
    return tag("tbody", tag("tr", top, class_="of"), [_row(line, verdict) for line in entry.lines], more)


def _row(line: ArmLine, leads: str) -> Html:
    which = kind(line.verdict)
    mark = tag("span", f"{MARKS[which]} ", aria_hidden="true") if which in MARKS else ""
    ill = line.health != HEALTHY
    return tag(
        "tr",
        tag("th", tag("a", line.arm, href=f"#{leads}"), scope="row"),
        tag("td", line.n, class_="n" if line.n.isdecimal() else "warn"),
        tag("td", tag("strong", line.difference) if line.bold else line.difference),
        tag("td", mark, line.verdict, class_=f"{which}{' long' * (len(line.verdict) > SENTENCE)}"),
        tag("td", tag("span", "⚠ ", aria_hidden="true") if ill else "", line.health, class_="warn" if ill else "hint"),
    )
