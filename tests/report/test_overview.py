"""A page of several: each told apart whatever it is called, all of it safe, and an overview that leads to each."""

import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ladders import make_ladder
from messages import CheckMessage, RefusedCommand
from pages import Page
from records import IMAGE, SCRIPT, MakeExperiment

from lm.cli import main
from lm.report.base import Report
from lm.report.web import gallery
from lm.report.web.elements import nested, tag
from lm.report.write import ReportRequest, load_report, report_files

NASTY = f"{IMAGE}{SCRIPT}"


@pytest.fixture(scope="module")
def two(nasty: Path) -> list[Report]:
    """An experiment, and another of the same name with the same arms."""
    return [load_report(nasty)] * 2


def page_of(reports: list[Report]) -> str:
    return str(report_files(reports, ReportRequest(("html",)))["report.html"])


@pytest.fixture(scope="module")
def found(two: list[Report]) -> Iterator[Page]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "library", lambda: "window.vegaEmbed = 1;")
        yield Page(page_of(two))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_equal_names_share_no_ids_and_links_resolve(found: Page) -> None:
    found.require_safe()
    assert {"overview", "e1", "e1-verdict", "e1-comparison", "e2-filter", "e2-chart-learning_curve"} <= {*found.ids()}
    assert [one["id"] for one in found.of("script") if one.get("id") != "library" and one.get("id")] == [
        f"{prefix}-{name}" for prefix in ("all", "e1", "e2") for name in ("report", "specs", "rows")
    ]
    assert found.unpacked("library") == "window.vegaEmbed = 1;"
    assert found.ids().count("library") == 1
    assert [one.get("data-report") for one in found.of("details") if one.get("class") == "report"] == ["e1-", "e2-"]


def test_names_of_several_stay_text(found: Page, check_message: CheckMessage) -> None:
    assert found.of("img") == []
    headings = [text for kind, text in found.texts if kind == "h2"]
    assert headings == ["Overview", f"1. {NASTY}", f"2. {NASTY}"]
    check_message([text for kind, text in found.texts if kind == "h1"])
    assert found.json("e2-report")["arms"] == ["base", IMAGE, SCRIPT]


def test_an_attribute_that_ends_like_an_id_is_left_alone() -> None:
    one = tag("td", tag("input", hidden=True, id="a"), data_v=" id=", title='x href="#a"')
    assert nested(one, "e1-") == ('<td data-v=" id=" title="x href=&quot;#a&quot;"><input hidden id="e1-a"></td>')


def test_the_overview_has_each_reports_answer_with_a_link(found: Page, check_message: CheckMessage) -> None:
    text = found.text
    overview = text[text.index('<section id="overview"') :].partition("</section>")[0]
    links = re.findall(r'<li><a href="#(.*?)">(.*?)</a><p>(.*?)</p>', overview)
    assert [link[:2] for link in links] == [(f"e{place}", html.escape(NASTY)) for place in (1, 2)]
    check_message([link[2] for link in links])


@pytest.mark.extra
def test_ladders_and_searches_are_parts_of_it_too(
    hostile: MakeExperiment,
    search: Path,
    tmp_path: Path,
    refused_command: RefusedCommand,
    check_message: CheckMessage,
) -> None:
    folders = [str(hostile()), str(search), str(make_ladder(tmp_path / "ladder"))]
    out = str(tmp_path / "both")
    assert main(["report", *folders, "--out", out, "--format", "html"]) == 0
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["report.html"]
    found = Page((tmp_path / "both" / "report.html").read_text(encoding="utf-8"))
    found.require_safe()
    answers = re.findall('<p class="answer">(.*?)</p>', found.text)
    check_message([*(text for kind, text in found.texts if kind == "h1"), *answers])
    assert [found.text.count(f">{answer}</p>") for answer in answers] == [2, 2, 2], "each is in the overview too"
    for kind in ("md", "html,csv"):
        refused_command(["report", *folders, "--out", out, "--format", kind])


def test_equal_names_are_refused_in_formats_keyed_by_name(
    experiment: MakeExperiment, tmp_path: Path, refused_command: RefusedCommand
) -> None:
    folder = experiment({"base": [2.0], "arm": [1.9]})
    other = Path(shutil.copytree(tmp_path / "out", tmp_path / "elsewhere")) / folder.name
    given = ["report", str(folder), str(other), "--out", str(tmp_path / "both")]
    refused_command([*given, "--format", "html,csv"])
    assert main([*given, "--format", "html"]) == 0


def test_without_the_library_it_is_said_once(two: list[Report], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "library", lambda: "")
    found = Page(page_of(two))
    assert found.told().count("No charts: ") == 1
    assert not [one for one in found.of("div") if one.get("class") == "chart"]


def test_several_experiments_are_compared_in_one_chart_at_the_top(found: Page) -> None:
    assert found.text.index('id="all-chart-differences"') < found.text.index('<ol class="answers">')
    assert [one.get("data-report") for one in found.of("section") if one.get("id") == "overview"] == ["all-"]
    panel = found.json("all-specs")["differences"]["panels"]["0"]
    rows = found.json("all-rows")[panel["sets"]["set0"]]
    assert [row["name"] for row in rows] == [f"{number}. demo\n{arm}" for number in (1, 2) for arm in (IMAGE, SCRIPT)]
