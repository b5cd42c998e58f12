"""The page: safe whoever named the arms, whole without a network, and the same numbers as table.csv."""

import io
import itertools
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import known
from messages import CheckMessage
from pages import Page
from records import ARM_NAMES, BASE, BETTER, CELLS, IMAGE, SCRIPT, MakeExperiment
from rich.console import Console

from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.report import figures as figures_package
from lm.report.experiment import ExperimentReport
from lm.report.figures import picture, vega
from lm.report.figures.catalogue import FigureInputs, figures
from lm.report.figures.chart import Axis, Bar, Chart, Forest, Heat, Panel, Series
from lm.report.figures.inside import nll_by_length, trained_lengths
from lm.report.figures.palette import COLOURS, dash, style_sheet
from lm.report.figures.training import gradients, gradients_by_step, learning_curve, parts_of
from lm.report.figures.vega import downsample_lttb
from lm.report.pack import open_results
from lm.report.tables import as_csv
from lm.report.web import gallery
from lm.report.web.elements import data, read_asset, tag
from lm.report.web.gallery import MISSING
from lm.report.web.page import page as page_of
from lm.report.web.parts import TERMS, last_lines
from lm.report.write import load_report, write_report

LARGEST = Path(__file__).resolve().parents[2] / "results" / "reference" / "gradient_depth.lmpack"
"""The committed experiment whose page holds the most measurements."""

FOR_MAIL = ("verdict", "table", "charts", "confounds", "lost", "provenance", "again", "all")


def made(folder: Path) -> str:
    return page_of(load_report(folder).body())


@pytest.fixture(scope="module")
def found(nasty: Path) -> Iterator[Page]:
    """The page of arms that nobody vouches for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "library", lambda: "window.vegaEmbed = 1;")
        yield Page(made(nasty))


def test_a_page_runs_only_hashed_scripts_and_loads_nothing(found: Page) -> None:
    found.require_safe()


def test_hostile_names_stay_text(found: Page) -> None:
    assert IMAGE in found.told()
    assert SCRIPT in found.told()
    assert "alert" not in "".join(str(attributes.get("src")) for _, attributes in found.found)
    assert [one.get("id") for one in found.of("script")] == ["report", "specs", "rows", "library", None]
    assert found.json("report")["arms"] == ["base", IMAGE, SCRIPT]
    spec = found.json("specs")["learning_curve"]["panels"]["0"]["spec"]
    assert spec["layer"][1]["encoding"]["color"]["scale"]["domain"] == [*ARM_NAMES.values()]


def test_all_numbers_of_the_csv_are_in_the_page(found: Page, nasty: Path) -> None:
    table = compare(load(nasty))
    kept = found.json("report")["table"]
    again = pd.DataFrame(
        {name: [float(x) if x in ("inf", "-inf") else x for x in column] for name, column in kept.items()}
    )
    assert as_csv(again.astype(table.dtypes)) == as_csv(table)
    shown = found.told()
    for row in table[table.metric == "accuracy"].itertuples():
        assert f"{row.mean:z.4f}" in shown


def test_a_number_leads_to_its_cells_and_commands(found: Page) -> None:
    report = found.json("report")
    buttons = [one for one in found.of("button") if one.get("data-metric")]
    assert {(one["data-metric"], one["data-arm"]) for one in buttons} >= {("nll", "0"), ("nll", "1"), ("accuracy", "2")}
    assert report["cells"][1] == [f"image-{seed}" for seed in range(6)]
    assert report["status"][2] == ["ok", "diverged", "missing", "missing", "missing", "missing"]
    assert report["values"]["nll"][0] == CELLS["base"]
    assert report["trace"][1] == f"lm trace demo '{IMAGE}'"


def test_pages_begin_with_the_verdict_and_list_folding_sections(found: Page) -> None:
    sections = [one["id"] for one in found.of("section")]
    assert sections[:2] == ["verdict", "table"]
    assert set(FOR_MAIL) <= set(sections)
    told = found.told()
    assert "loss not finite at step 3" in told
    links = [str(one["href"]).removeprefix("#") for one in found.of("a")]
    assert links == [*sections, "sure"], "the terms are explained further down"
    assert len(told[: told.index("Comparison\nPoint")]) < 1800
    folds = re.findall(r'<section id="(\w+)"><details( open)?><summary><h2>(.*?)</h2>', found.text)
    assert [(title, bool(is_open)) for name, is_open, title in folds if name in ("table", "charts", "all")] == [
        ("Comparison", True), ("Charts", True), ("All measurements", False),
    ]  # fmt: skip
    contents = re.search(r'<nav class="contents" aria-label="sections">(.*?)</nav>', found.text)
    assert contents is not None
    assert re.findall(r'<a href="#(\w+)">(.*?)</a>', contents[1]) == [(name, title) for name, _, title in folds]


def test_an_axis_is_called_as_what_is_drawn_along_it(found: Page) -> None:
    for name, axis, title in (("costs", "x", "parameters"), ("learning_curve", "y", "validation NLL (nats/token)")):
        layers = found.json("specs")[name]["panels"]["0"]["spec"]["layer"]
        assert {layer["encoding"][axis]["title"] for layer in layers} == {title}


def test_a_page_made_again_elsewhere_is_the_same(found: Page, nasty: Path, tmp_path: Path) -> None:
    shutil.copytree(nasty.parent, tmp_path / "elsewhere")
    assert made(tmp_path / "elsewhere" / nasty.name) == found.text


def test_the_first_screen_answers_then_draws_then_ranks(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    cells = {
        "base": [2.0, 2.1, 2.2, 2.3, 2.4, 2.5],
        "worse": [2.31, 2.4, 2.5, 2.61, 2.7, 2.8],
        "unsure": [1.0, 3.0, 1.2, 3.3, 2.2, 2.1],
        "better": [1.79, 1.9, 2.0, 2.11, 2.2, 2.3],
    }
    page = made(experiment(cells, notes="what the author thinks", confirmatory=[]))
    first = page[page.index("</header>") : page.index('<section id="table">')]
    (answer,) = re.findall('<p class="answer">(.*?)</p>', first)
    check_message(re.sub(r"0\.19\d, 0\.20\d", "N, N", answer))
    assert first.index('class="answer"') < first.index('id="differences"') < first.index('class="verdicts"')
    assert re.findall(r'<li class="([\w ]+)">.*?<strong>(\w+)</strong>', first) == [
        ("better exploratory", "better"), ("none exploratory", "unsure"), ("worse exploratory", "worse"),
    ]  # fmt: skip
    check_message(re.findall('<span class="word">(.*?)</span>', first))
    assert not re.search(r"\b(lower|higher)\b", first)
    headings = re.findall(r'<button type="button" title="(\w+): [^"]*">(\w+)</button>', page)
    assert headings == [("exploratory", "verdict"), ("healthy", "health")]
    for term, meaning in TERMS.items():
        assert f"{term.capitalize()}: {meaning}." in first
    assert page.index('id="table"') < page.index("what the author thinks") < page.index('id="charts"')


def test_a_term_is_explained_where_it_is_used(experiment: MakeExperiment) -> None:
    page = made(experiment({"base": BASE, "better": BETTER}))
    assert "Healthy: " in page
    assert "Exploratory: " not in page
    assert "<abbr" not in page


def test_cards_repeat_no_chart_but_without_scripts(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    cells = {"base": BASE, "better": BETTER}
    page = made(experiment(cells, secondary=["accuracy"]))
    shown, hidden = re.fullmatch(r".*?</figure></div>(.*?)<noscript>(.*?)</noscript>.*", page, re.DOTALL).groups()  # type: ignore[union-attr]
    assert re.findall("<strong>(.*?)</strong>", shown) == ["better, accuracy"]
    check_message(re.findall("<strong>(.*?)</strong>", hidden))


@pytest.mark.parametrize(
    "cells", [{"base": [None], "arm": [None]}, {"base": ["failed"], "arm": ["diverged"]}, {"a": [2.0]}]
)
def test_a_page_of_next_to_nothing(experiment: MakeExperiment, cells: dict[str, Any]) -> None:
    assert Page(made(experiment(cells))).of("section")


def test_without_the_library_the_page_says_what_to_install(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gallery, "library", lambda: "")
    folder = experiment({"base": [2.0], "arm": [1.9]})
    write_report(folder, Console(file=io.StringIO(), width=200))
    found = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert f"No charts: {MISSING}." in found.told()
    assert not [one for one in found.of("div") if one.get("class") == "chart"]
    assert capsys.readouterr().err == f"lm: {folder / 'report.html'}: {MISSING}\n"


def palettes() -> dict[str, dict[str, str]]:
    """The colours that the style declares, by where: in the light, in the dark, in print."""
    of_page, of_arms = (
        re.findall(r":root \{(.*?)\}", text, re.DOTALL) for text in (read_asset("page.css"), style_sheet())
    )
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block + arms))
        for name, block, arms in zip(("light", "dark", "print"), of_page, of_arms, strict=True)
    }


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("where", ["light", "dark", "print"])
def test_every_colour_has_enough_contrast(where: str) -> None:
    palette = palettes()[where]
    assert {f"arm-{place}" for place in range(COLOURS)} <= palette.keys()
    for name, colour in palette.items():
        if name in ("page", "box", "line"):
            continue
        for ground in ("page", "box"):
            dark, light = sorted([luminance(colour), luminance(palette[ground])])
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{name} on {ground}"


def test_forty_arms_have_distinct_looks() -> None:
    looks = [(vega.colour(at), tuple(dash(at)), vega.shape(at)) for at in range(40)]
    assert len({look[:2] for look in looks}) == len({look[::2] for look in looks}) == 40
    for one, other in itertools.pairwise(looks):
        assert one[0] != other[0]
        assert one[2] != other[2]
    assert [tuple(dash(at)) for at in range(7)] == [(1, 0)] * 6 + [(8, 3)], "dashes from the seventh on"
    drawn = [picture.look(at) for at in range(24)]
    assert [one["linestyle"] == "-" for one in drawn[:7]] == [True] * 6 + [False]
    assert len({(one["color"], str(one["linestyle"]), one["marker"]) for one in drawn}) == 24


def test_bands_are_drawn_beside_arms_of_one_seed() -> None:
    series = [Series("a", [1, 2], [1.0, 2.0], member=0), Series("b", [1, 2], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5], 1)]
    panel = Panel(Axis("x"), Axis("y"), series)
    spec, sets = vega.draw(Chart("", [panel], ["a", "b"]), panel)
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["area", "line", "point"]
    assert [row.get("low") for row in sets["set0"]] == [None, None, 0.5, 1.5]


def test_a_thinned_curve_keeps_its_ends_and_its_peak() -> None:
    x = np.arange(5000.0)
    y = np.sin(x / 500)
    y[1234] = 50.0
    kept = downsample_lttb(x, y, 100)
    assert len(kept) == len(set(kept)) == 100
    assert (kept[0], kept[-1]) == (0, 4999)
    assert 1234 in kept
    assert (np.diff(kept) > 0).all()
    assert downsample_lttb(x[:50], y[:50], 100).tolist() == list(range(50))


def test_curves_are_means_over_seeds(experiment: MakeExperiment) -> None:
    chart = learning_curve(ExperimentReport.load(experiment({"base": [2.0, 2.2], "arm": [1.9, None]})).figure_inputs)
    assert chart is not None
    _, sets = vega.draw(chart, chart.panels[0])
    frame = pd.DataFrame(sets["set0"])
    (base,) = frame[(frame.arm == 0) & (frame.x == 10)].itertuples()
    assert (base.y, base.n) == (3.1, 2)
    assert base.sd == pytest.approx(0.1 * np.sqrt(2), abs=1e-5)
    (arm,) = frame[(frame.arm == 1) & (frame.x == 10)].itertuples()
    assert (arm.y, arm.n, arm.low, arm.high) == (2.9, 1, 2.9, 2.9)


def test_gradient_columns_name_the_parts_of_a_model(tmp_path: Path) -> None:
    names = ["embedding.all", "embedding", "embedding.embedding", "blocks.0", "query", "blocks.0.query", "final_norm"]
    heads = ["step", "train_loss", "gradient_norm", *(f"gradient_norm/{name}" for name in [*names, "final_norm.norm"])]
    assert list(parts_of(heads)) == ["embedding", "blocks.0", "final_norm"]
    assert parts_of(heads)["embedding"] == "gradient_norm/embedding.all"
    rows = [",".join(heads), "1,2,3,4,5,6,7,8,9,10,11", "2,2" + "," * 9, "3,2,3,0.5,5,6,,8,9,0,11"]
    (tmp_path / "history.csv").write_text("\n".join(rows) + "\n")
    assert gradients(tmp_path / "history.csv") == [
        ("embedding", 1, 4),
        ("blocks.0", 1, 7),
        ("final_norm", 1, 10),
        ("embedding", 3, 0.5),
    ]
    assert gradients(tmp_path / "none.csv") == []


def test_a_heat_map_is_the_mean_over_seeds(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": [2.0, 2.2, 2.1], "arm": [1.9, None, None]}))
    heads = "step,gradient_norm/blocks.0,gradient_norm/blocks.0.query"
    for place, record in enumerate(results.of("base")):
        later = "3,8,1" if place == 0 else "3,,"
        results.store.history(record["id"]).write_text(f"{heads}\n1,{place + 1},1\n{later}\n")
    chart = gradients_by_step(FigureInputs(results, compare(results)))
    assert chart is not None
    (heat,) = chart.panels
    assert isinstance(heat, Heat)
    assert (heat.y.names, heat.x.names, heat.values.tolist()) == (["blocks.0"], ["1", "3"], [[2.0, 8.0]])


def test_the_length_that_was_trained_with_is_marked(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def measured(arm: str, seed: int, record: dict[str, Any]) -> None:
        at = {"nll": 2.0, "sliding_nll": 2.0, "by_position": [2.0, 1.0]}
        record["evaluations"] = {"lengths": {"8": at, "16": at}}

    folder = experiment({"base": [2.0], "arm": [1.0]}, measured)
    results = load(folder)
    assert trained_lengths(results) == {}
    for arm, context in (("base", 8), ("arm", 16)):
        for record in results.of(arm):
            (results.store.directory(record["id"]) / "config.yaml").write_text(
                f"data: {{init_args: {{context: {context}}}}}\n"
            )
    assert trained_lengths(results) == {8: "trained", 16: "trained"}
    page = Page(made(folder))
    note = known(nll_by_length(ExperimentReport.load(folder).figure_inputs)).note
    check_message(note)
    assert note in page.told()
    specs = json.dumps(page.json("specs"))
    assert '"title": "tokens of context", "scale": {"type": "log", "nice": false}, "axis": {"values": [8, 16],' in specs


def test_last_log_lines_are_those_of_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert last_lines(log) == ""
    log.write_bytes(
        b"\n".join(b"line %d" % at for at in range(50)) + b"\nstep 1\rstep 2\r\n\x1b[31mred\x1b[0m \x07<b>\n"
    )
    assert last_lines(log).splitlines()[-3:] == ["line 49", "step 2", "red <b>"]
    assert len(last_lines(log).splitlines()) == 12


def test_a_figure_in_a_file_of_its_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from lm.report.figures.catalogue import Figure\nFIGURES = (Figure('mine', 1, lambda inputs: None),)\n"
    )
    monkeypatch.setattr(figures_package, "__path__", [*figures_package.__path__, str(tmp_path)])
    figures.cache_clear()
    names = list(figures())
    figures.cache_clear()
    assert names[:2] == ["mine", "differences"]


def test_text_is_escaped_wherever_it_stands() -> None:
    assert tag("b", "<", title='"&') == '<b title="&quot;&amp;">&lt;</b>'
    assert tag("b", ["<", tag("i", ">")]) == "<b>&lt;<i>&gt;</i></b>"
    inside = data("x", {"<!--": "</script>\u2028"})
    assert re.fullmatch('<script type="application/zlib" id="x">[A-Za-z0-9+/=]+</script>', inside)
    assert Page(inside).json("x") == {"<!--": "</script>\u2028"}


LINES = [
    Series("a", [1, 10, 100], [1.0, 2.0, math.nan], [0.5, -1.0, 0.0], [2.0, 3.0, 0.0], 0, tips={"n": [3, 3, 3]}),
    Series("b", [1, 10], [1.0, 2.0], member=1, mark="points", marker="*"),
    Series("b", [1], [1.0], [0.5], [1.5], 1, mark="points", bars=True, hollow=True),
    Series("", [1, 2], [1.0, 2.0], mark="curve", style="thin"),
    Series("", [0, 1, 2], [1.0, 2.0], member=0, mark="bins"),
]
LOG = Axis("x,\nin words", "step", log=True, ticks=[1, 10])
PANELS: list[Panel | Heat | Forest] = [
    Panel(LOG, Axis("y", log=True), LINES, verticals={8: "trained"}, horizontal=1.0),
    Panel(Axis("", names=["p", "q"]), Axis("", limits=(0, 1), hidden=True), [Series("", [0, 1], [0, 1], shade=0.5)],
          texts=[(0.0, 1.0, "high")], shades=("loss", True)),
    Heat(Axis("head", names=["1", "2"]), Axis("", names=["a"]), np.array([[0.1, 1.0]]), ("norm", 0.1, 1.0), log=True),
    Forest(Axis("difference"), ["a"], [Bar("a", 0.1, 0.0, 0.2, bold=True)], [Bar("a", 0.1, tips={"seed": 1})]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("panel", PANELS, ids=["lines", "shades", "heat", "forest"])
def test_both_drawers_draw_every_kind_of_panel(panel: Panel | Heat | Forest) -> None:
    chart = Chart("", [panel], ["a", "b"], styles={"thin": "--"}, markers={"best": "*"})
    assert picture.draw(chart).axes
    convert = pytest.importorskip("vl_convert", reason="charts are drawn by vl-convert-python")
    spec, sets = vega.draw(chart, panel)
    assert convert.vegalite_to_vega({**spec, "datasets": sets, "width": 300})["marks"]
    assert "\\n" not in json.dumps(spec), "Vega draws no chart whose title has a line break"


def test_points_of_long_curves_have_tooltips_and_do_not_show() -> None:
    series = [Series("a", np.arange(1000), np.sin(np.arange(1000.0)), member=0, mark="curve")]
    panel = Panel(Axis("x"), Axis("y"), series)
    spec, sets = vega.draw(Chart("", [panel], ["a"]), panel)
    assert len(sets["set0"]) == vega.POINTS
    assert spec["layer"][-1]["mark"]["opacity"] == 0


def test_points_that_a_logarithmic_axis_lacks_are_left_out() -> None:
    _, sets = vega.draw(Chart("", PANELS[:1], ["a", "b"]), PANELS[0])
    first = {"series": 0, "arm": 0, "x": 1, "y": 1.0, "low": 1.0, "high": 2.0, "n": 3}
    assert sets["set0"] == [first, {**first, "x": 10, "y": 2.0, "high": 3.0}]


@pytest.mark.extra
def test_pages_name_the_library_by_hash_below_a_megabyte(library: str) -> None:
    with open_results(LARGEST) as results:
        found = Page(made(results.folder))
    found.require_safe()
    assert found.unpacked("library") == library
    assert "vegaEmbed" in library
    assert len(found.text.encode()) < 1_000_000
