"""A page of several: each told apart whatever it is called, all of it safe, and an overview that leads to each."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from ladders import make_ladder
from pages import Page
from records import IMAGE, SCRIPT, MakeExperiment

from lm.cli import main
from lm.report.formats import ReportSource, load_source, overview_page
from lm.report.web import page
from lm.report.web.elements import nested, tag
from lm.report.write import ExperimentReport

NASTY = f'" id="e1-verdict" <h2 id=x>{IMAGE}{SCRIPT}'

pytestmark = pytest.mark.usefixtures("no_library")


@pytest.fixture
def two(hostile: MakeExperiment) -> list[ReportSource]:
    """An experiment, and another of the same name with the same arms."""
    return [load_source(hostile(title=NASTY, notes=NASTY))] * 2


def test_equal_names_share_no_ids_and_links_resolve(two: list[ReportSource]) -> None:
    found = Page(overview_page(two))
    found.require_safe(pictures=True)
    assert {"overview", "e1", "e1-verdict", "e1-comparison", "e2-filter", "e2-chart-learning_curve"} <= {*found.ids()}
    assert [one["id"] for one in found.of("script") if one.get("type")] == [
        f"e{place}-{name}" for place in (1, 2) for name in ("report", "specs", "columns")
    ]
    assert found.text.count("window.vegaEmbed = 1;") == 1
    assert [one.get("data-report") for one in found.of("details") if one.get("class") == "report"] == ["e1-", "e2-"]


def test_names_of_several_stay_text(two: list[ReportSource]) -> None:
    found = Page(overview_page(two))
    (picture,) = found.of("img")
    assert picture["alt"] == "differences to the baseline with their intervals"
    headings = [text for kind, text in found.texts if kind == "h2"]
    assert headings == ["Overview", f"1. {NASTY}", f"2. {NASTY}"]
    assert [text for kind, text in found.texts if kind == "h1"] == ["Report of 2 experiments"]
    assert found.json("e2-report")["arms"] == ["base", IMAGE, SCRIPT]


def test_an_attribute_that_ends_like_an_id_is_left_alone() -> None:
    one = tag("td", tag("input", hidden=True, id="a"), data_v=" id=", title='x href="#a"')
    assert nested(one, "e1-") == ('<td data-v=" id=" title="x href=&quot;#a&quot;"><input hidden id="e1-a"></td>')


def test_overview_rows_link_to_the_report_of_each_arm(two: list[ReportSource]) -> None:
    text = overview_page(two)
    overview = text[text.index('<section id="overview">') :].partition("</section>")[0]
    rows = [re.sub(r"<[^>]*>", " ", row) for row in re.findall(r"<tr>(.*?)</tr>", overview)]
    assert len(rows) == 1 + 2 * 3
    assert re.search(r"onerror.* 6 .*-0\.2483 \[.*\].*6 seeds cannot reach significance.*healthy", rows[2])
    assert re.search(r"script.* 1, 1 diverged, 4 missing .*on 1 of 6 seeds", rows[3])
    assert re.findall(r'href="#(.*?)"', overview) == [
        leads for place in (1, 2) for leads in (f"e{place}", *[f"e{place}-verdict"] * 3)
    ]


def test_of_many_arms_the_overview_has_those_that_stand_out(experiment: MakeExperiment) -> None:
    arms = {"base": [2.0, 2.1], **{f"arm_{at:02}": [2.1, 2.0] for at in range(14)}, "last": [1.9, 1.8]}
    told = load_source(experiment(arms))
    assert isinstance(told, ExperimentReport)
    last = told.table.arm == "last"
    table = told.table.assign(bold=last, health=last.map({True: "clipped", False: "healthy"}))
    found = Page(overview_page([replace(told, table=table), told]))
    overview = found.told()[: found.told().index("Question")]
    assert "And 5 more arms in its own table." in overview
    assert overview.index("last") < overview.index("arm_00")
    assert "arm_13" not in overview
    assert overview.count("\N{WARNING SIGN}") == overview.count("clipped") == 1


@pytest.mark.slow
def test_ladders_and_searches_are_parts_of_it_too(
    hostile: MakeExperiment, search: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(hostile()), str(search), str(make_ladder(tmp_path / "ladder"))]
    out = str(tmp_path / "both")
    for more in ([], ["--check"]):
        assert main(["report", *folders, "--out", out, "--format", "html", *more]) == 0
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["report.html"]
    found = Page((tmp_path / "both" / "report.html").read_text(encoding="utf-8"))
    found.require_safe(pictures=True)
    assert "Report of 1 experiment, 1 ladder and 1 search" in found.told()
    assert "Trial 3 is the best of 5" in found.told()
    assert "at the top rung, xl" in found.told()
    (tmp_path / "both" / "report.html").write_text("another")
    assert main(["report", *folders, "--out", out, "--format", "html", "--check"]) == 1
    capsys.readouterr()
    for kind, refused in (("md", "is a search"), ("html,csv", "is a search")):
        assert main(["report", *folders, "--out", out, "--format", kind]) == 2
        assert refused in capsys.readouterr().err


def test_equal_names_are_refused_in_formats_keyed_by_name(
    experiment: MakeExperiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = experiment({"base": [2.0], "arm": [1.9]})
    other = Path(shutil.copytree(tmp_path / "out", tmp_path / "elsewhere")) / folder.name
    given = ["report", str(folder), str(other), "--out", str(tmp_path / "both")]
    assert main([*given, "--format", "html,csv"]) == 2
    assert "two experiments are called demo" in capsys.readouterr().err
    assert main([*given, "--format", "html"]) == 0


def test_without_the_library_it_is_said_once(two: list[ReportSource], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "library", lambda: "")
    found = Page(overview_page(two))
    assert found.told().count("No charts: ") == 1
    assert not [one for one in found.of("div") if one.get("class") == "chart"]
