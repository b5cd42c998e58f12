"""The page in a browser: what it does when it is read, sorted, filtered and pointed at."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ladders import make_ladder
from records import IMAGE, SCRIPT, MakeExperiment

from lm.report.search import SearchReport
from lm.report.study import load_study
from lm.report.write import ReportRequest, load_report, report_files

pytestmark = pytest.mark.extra

LARGEST = 15 * 2**20
"""Bytes of a page; that it opens in three seconds is printed, as it depends on what else the machine does."""

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser, where there is one and something to drive it with."""
    pytest.importorskip("vl_convert", reason="charts are drawn by vl-convert-python")
    driver = pytest.importorskip(
        "playwright.sync_api", reason="a browser is driven by playwright: pip install playwright"
    )
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium and no google-chrome here")
    with driver.sync_playwright() as playwright:
        free = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=free)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of one or of several; at the end there has been no error, and nothing was asked of a network."""
    said: list[str] = []
    asked: list[str] = []
    pages = []

    def open_page(*folders: Path, **how: Any) -> Any:
        path = tmp_path / "report.html"
        searches = [(folder / "study.json").is_file() for folder in folders]
        found = [
            SearchReport(load_study(folder), "too few.") if is_search else load_report(folder)
            for folder, is_search in zip(folders, searches, strict=True)
        ]
        path.write_text(str(report_files(found, ReportRequest(("html",)))["report.html"]), encoding="utf-8")
        page = chromium.new_page(**how)
        page.set_default_timeout(30_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []
    assert [url for url in asked if not url.startswith("file:")] == []


def until(page: Any, expression: str, given: Any = None) -> None:
    """Waits until an expression holds; asked from outside, for the page's policy lets nothing in it be evaluated."""
    for _ in range(600):
        if page.evaluate(expression, given):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came: {expression}")


def column(page: Any, at: int, table: str = "comparison") -> list[str]:
    return [text.strip() for text in page.locator(f"#{table} tbody tr:visible > :nth-child({at})").all_inner_texts()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_within_the_screen(
    hostile: MakeExperiment, show: Callable[..., Any], width: int, scheme: str
) -> None:
    page = show(hostile(), viewport={"width": width, "height": 800}, color_scheme=scheme)
    for chart in page.locator(".chart").all():
        assert chart.locator("svg path, svg line").count() > 5
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("p.warn:visible").count() == 0


def test_hostile_names_stay_text_and_lead_to_cells(hostile: MakeExperiment, show: Callable[..., Any]) -> None:
    page = show(hostile(title=IMAGE + SCRIPT))
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == IMAGE + SCRIPT
    assert column(page, 1) == ["base", IMAGE, SCRIPT]
    assert page.locator("svg text", has_text="onerror").count() > 0
    page.locator("#comparison button[data-arm='1']").first.click()
    assert IMAGE in page.locator("#panel h2").inner_text()
    assert f"lm trace demo '{IMAGE}' nll" in page.locator("#panel pre").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    number, tip = page.locator("#comparison button[data-metric='nll'][data-arm='1']").nth(1), page.locator("#tip")
    number.hover()
    assert "n = 6" in tip.inner_text()
    assert "95 % interval" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    number.focus()
    assert tip.is_visible()
    number.press("Enter")
    assert "image-0" in page.locator("#panel").inner_text()


def test_the_table_sorts_filters_and_lets_columns_be_chosen(hostile: MakeExperiment, show: Callable[..., Any]) -> None:
    page = show(hostile())
    head = page.locator("#comparison thead th", has_text="validation NLL").first
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, 1) == [IMAGE, "base", SCRIPT]
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 1) == [SCRIPT, "base", IMAGE]
    page.locator("#filter").fill("onerror")
    assert column(page, 1) == [IMAGE]
    assert page.locator("#count").inner_text() == "1 of 3 arms"
    page.locator("#filter").fill("")
    page.locator("summary", has_text="Columns").click()
    wide = page.locator("#comparison thead th:visible").count()
    page.get_by_label("training loss ↓", exact=True).check()
    page.get_by_label("verdict", exact=True).uncheck()
    page.get_by_label("health", exact=True).uncheck()
    assert page.locator("#comparison thead th:visible").count() == wide - 1


def test_arms_can_be_hidden_and_points_explain_themselves(hostile: MakeExperiment, show: Callable[..., Any]) -> None:
    page = show(hostile())
    lines = page.locator("#chart-learning_curve .mark-line path")
    assert lines.count() == 3
    page.locator("input[data-shown='1']").uncheck()
    until(page, "document.querySelectorAll('#chart-learning_curve .mark-line path').length === 2")
    page.locator("button[data-all='none']").click()
    until(page, "document.querySelectorAll('#chart-learning_curve .mark-line path').length === 0")
    page.locator("button[data-all='all']").click()
    until(page, "document.querySelectorAll('#chart-learning_curve .mark-line path').length === 3")
    page.locator("#chart-learning_curve .mark-symbol path").first.hover(force=True)
    until(page, "!document.getElementById('tip').hidden")
    assert "step: 10" in page.locator("#tip").inner_text()
    page.locator("select[data-for='reliability']").select_option("1")
    page.locator("[data-log='learning_curve']").check()
    until(page, "document.querySelectorAll('#chart-learning_curve .mark-line path').length === 3")
    page.locator("#chart-reliability svg text", has_text="- confidence").wait_for()
    costs = page.locator("select[data-for='costs']")
    for chosen in costs.locator("option").all():
        title = chosen.inner_text()
        costs.select_option(label=title)
        page.locator("#chart-costs svg text", has_text=title).wait_for()


def test_links_open_folded_sections_and_the_list_of_arms_stays(
    hostile: MakeExperiment, show: Callable[..., Any]
) -> None:
    page = show(hostile(), viewport={"width": 1280, "height": 700})
    assert page.locator("#all table").is_hidden()
    page.locator("main > nav a", has_text="All measurements").click()
    assert page.locator("#all table").is_visible()
    page.locator("#chart-costs").scroll_into_view_if_needed()
    legend, chart = (page.locator(name).bounding_box() for name in (".gallery > fieldset", "#chart-costs"))
    assert 0 <= legend["y"] < 700
    assert legend["x"] >= chart["x"] + chart["width"]
    assert 0 <= page.locator("main > nav").bounding_box()["y"] < 700


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 1000)])
def test_the_first_screen_holds_the_answer_and_the_whole_plot(
    hostile: MakeExperiment, show: Callable[..., Any], width: int, height: int
) -> None:
    page = show(hostile(), viewport={"width": width, "height": height})
    answer, plot = (page.locator(name).bounding_box() for name in (".answer", "#chart-differences svg"))
    assert answer["y"] < plot["y"]
    assert plot["y"] + plot["height"] < height
    assert plot["x"] + plot["width"] <= width
    assert page.evaluate("document.querySelector('#differences').scrollWidth <= document.body.clientWidth")
    texts = page.locator("#chart-differences text").all_text_contents()
    assert any("[" in text for text in texts) == (width > 1000), "where it is narrow intervals are bars alone"
    assert page.locator("ul.verdicts:visible").count() == 0


def test_large_reports_open_quickly(experiment: MakeExperiment, show: Callable[..., Any], tmp_path: Path) -> None:
    arms = {f"arm_{place:02}": [2 + place / 50 + seed / 100 for seed in range(10)] for place in range(40)}
    folder = experiment(arms)
    parts = [f"blocks.{layer}" for layer in range(12)]
    norms = [f"gradient_norm/{name}" for part in parts for name in (part, f"{part}.query")]
    heads = ["step", "train_loss", "gradient_norm", "learning_rate", "validation_nll", *norms]
    steps = range(1, 5001)
    lines = [[step, 2 + 5 / step, 1 / step, 0.1, 3 + 5 / step, *[(step % 97 + 1) / 50] * len(norms)] for step in steps]
    curve = "\n".join([",".join(heads), *(",".join(f"{number:z.4g}" for number in line) for line in lines)]) + "\n"
    for place, cells in enumerate(arms):
        for seed in range(10):
            path = tmp_path / "out" / "cells" / f"{cells}-{seed}" / "history.csv"
            path.write_text(curve.replace("2.", f"2.{place}", 500), encoding="utf-8")
    begun = time.monotonic()
    page = show(folder, viewport={"width": 1280, "height": 900})
    print(f"made and drawn in {time.monotonic() - begun:z.1f} s")
    weighed_and_opened(page, tmp_path)


def weighed_and_opened(page: Any, folder: Path) -> None:
    """Prints how large the page is and in what time it opens."""
    size = (folder / "report.html").stat().st_size
    print(f"{size / 2**20:z.2f} MiB")
    assert size < LARGEST
    begun = time.monotonic()
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    print(f"opened in {time.monotonic() - begun:z.2f} s")


def test_the_page_of_a_search_is_sorted_filtered_and_drawn(search: Path, show: Callable[..., Any]) -> None:
    page = show(search)
    assert page.locator("figure svg.marks").count() == page.locator(".chart").count() > 0
    page.locator("#comparison thead button", has_text="validation NLL").click()
    first = page.locator("#comparison tbody tr").first
    assert first.locator("th").inner_text() == "3"
    page.fill("#filter", "pruned")
    assert page.locator("#comparison tbody tr:visible").count() == 1
    assert page.locator("#count").inner_text() == "1 of 6 trials"
    assert page.locator("img").count() == 0


def test_printed_tables_are_whole_without_controls(experiment: MakeExperiment, show: Callable[..., Any]) -> None:
    arms = {"base": [2.0, 2.1]} | {f"arm_{at}": [1.9, 2.0 + at / 10] for at in range(40)}
    page = show(experiment(arms), viewport={"width": 718, "height": 900}, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#all table").is_visible()
    assert page.locator("nav").is_hidden()
    assert page.locator("#filter").is_hidden()
    cut = "boxes => boxes.filter(one => one.scrollHeight > one.clientHeight + 1).length"
    assert page.eval_on_selector_all(".scroll", cut) == 0
    width = page.evaluate("document.getElementById('comparison').getBoundingClientRect().right")
    assert width <= 718


@pytest.fixture
def two(hostile: MakeExperiment, tmp_path: Path) -> tuple[Path, Path]:
    """An experiment, and one of the same name with the same arms from another folder."""
    first = hostile(title=IMAGE)
    return first, Path(shutil.copytree(tmp_path / "out", tmp_path / "elsewhere")) / first.name


@pytest.mark.parametrize("width", [1280, 390])
def test_several_experiments_are_drawn_within_the_screen(
    two: tuple[Path, Path], search: Path, tmp_path: Path, show: Callable[..., Any], width: int
) -> None:
    page = show(*two, search, make_ladder(tmp_path / "ladder"), viewport={"width": width, "height": 800})
    for chart in page.locator(".chart").all():
        assert chart.locator("svg path, svg line").count() > 5
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(set(ids)) == len(ids)
    assert page.locator("#e4 .chart").count() == 2, "the loss and the gain of the ladder"
    assert page.locator("#e1 > summary").inner_text() == f"1. {IMAGE}"
    assert page.locator("main > nav").bounding_box()["x"] < page.locator("#overview").bounding_box()["x"] or width < 640


def test_interactions_with_one_experiment_leave_others_alone(two: tuple[Path, Path], show: Callable[..., Any]) -> None:
    page = show(*two)
    before = column(page, 1, "e1-comparison")
    page.locator("#e2-comparison thead button", has_text="validation NLL").first.click()
    assert column(page, 1, "e2-comparison") == [IMAGE, "base", SCRIPT]
    page.locator("#e2-filter").fill("onerror")
    assert column(page, 1, "e2-comparison") == [IMAGE]
    assert page.locator("#e2-count").inner_text() == "1 of 3 arms"
    wide = page.locator("#e1-comparison thead th:visible").count()
    page.locator("#e2 summary", has_text="Columns").click()
    page.locator("#e2").get_by_label("verdict", exact=True).uncheck()
    page.locator("#e2 input[data-shown='1']").uncheck()
    until(page, "document.querySelectorAll('#e2-chart-learning_curve .mark-line path').length === 2")
    assert column(page, 1, "e1-comparison") == before == ["base", IMAGE, SCRIPT]
    assert page.locator("#e1-count").inner_text() == ""
    assert page.locator("#e1-comparison thead th:visible").count() == wide
    assert page.locator("#e2-comparison thead th:visible").count() == wide - 1
    assert page.locator("#e1-chart-learning_curve .mark-line path").count() == 3
    page.locator("#e2-comparison button[data-arm='1']").first.click()
    assert f"lm trace demo '{IMAGE}' nll" in page.locator("#panel pre").inner_text()


def test_links_of_several_open_folded_sections(two: tuple[Path, Path], show: Callable[..., Any]) -> None:
    page = show(*two)
    at_top = (
        "id => { const top = document.getElementById(id).getBoundingClientRect().top; return top >= 0 && top < 200; }"
    )
    page.locator("ol.answers a").nth(1).click()
    until(page, at_top, "e2")
    page.locator("#e2 > summary").press("Enter")
    assert page.locator("#e2-comparison").is_hidden()
    page.set_viewport_size({"width": 800, "height": 800})
    page.locator("main > nav a", has_text="demo").nth(1).press("Enter")
    until(page, at_top, "e2")
    page.locator("#e2 nav a", has_text="Charts").click()
    until(page, at_top, "e2-charts")
    until(page, "document.querySelector('#e2-chart-learning_curve svg').getBoundingClientRect().width > 300")


def test_printed_experiments_begin_on_new_unfolded_pages(two: tuple[Path, Path], show: Callable[..., Any]) -> None:
    page = show(*two, viewport={"width": 718, "height": 900})
    page.locator("#e2 > summary").click()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("nav:visible").count() == 0
    assert page.locator("#e2-all table").is_visible()
    assert page.eval_on_selector("#e2", "one => getComputedStyle(one).breakBefore") == "page"
