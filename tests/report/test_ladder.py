"""The report of a ladder: what it says, where it says less, and how a damaged one is answered."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ladders import COMPUTE, loss, make_ladder, usual
from messages import CheckMessage, Refused, RefusedCommand
from pages import Page
from records import IMAGE, SCRIPT
from rich.console import Console
from scipy import stats

from lm.analysis.ladder import LadderResults, load_ladder, read_ladder
from lm.analysis.results import load
from lm.cli import main
from lm.cli.options import experiment_folder
from lm.report.figures.picture import draw
from lm.report.figures.static_pages import ladder_chart
from lm.report.ladder import (
    NOT_BRACKETED,
    TWO_INTERVALS,
    LadderReport,
    csv_worth,
    forecast_section,
    gain,
    ladder_answer,
    ladder_sections,
    overview_section,
    rung_section,
    trend_section,
    trend_table,
    worth_section,
    worth_table,
)
from lm.report.render import is_bold, markdown_page
from lm.report.web.page import page as page_of
from lm.report.write import write_report
from lm.stats.compute_gain import Gain
from lm.stats.trend import Estimate
from lm.store.documents import described, packed
from lm.store.files import write_atomic
from lm.store.store import Store


def made(out: Path, *outcome: Any, **how: Any) -> LadderResults:
    return load_ladder(make_ladder(out, *outcome, **how))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LadderResults:
    """The usual ladder."""
    return made(tmp_path_factory.mktemp("whole"))


def markdown(found: LadderResults) -> str:
    return markdown_page(LadderReport(found).sections())


def printed(found: LadderResults, width: int) -> str:
    LadderReport(found).show(Console(file=(stream := io.StringIO()), width=width))
    return stream.getvalue()


def test_a_ladder_reports_gains_trends_and_forecasts(whole: LadderResults, check_message: CheckMessage) -> None:
    found = whole
    (arm,) = found.arms
    assert arm.scaling is not None
    assert arm.scaling.gains is not None
    for one in arm.scaling.gains:
        assert one.log.low < math.log(1.3) < one.log.high
    assert [at.verdict for at in arm.at] == ["better"] * 4
    assert arm.scaling.of_gain.kind == "holds"
    assert arm.bold[1]
    rows = worth_section(found).rows
    bold = list(map(is_bold, rows))
    assert [row[:3] for row in rows] == [[name, "arm", "6"] for name in ("s", "m", "l", "xl")]
    assert bold == [True] * 4
    assert [row[3] for row in forecast_section(found).rows] == ["holds it"] * 3
    assert found.law is not None
    assert float(found.law.law.loss(COMPUTE[1])) == pytest.approx(loss(COMPUTE[1]), rel=0.01)
    check_message(re.sub(r"\d+(\.\d+)?", "N", rung_section(found).notes[1]))
    check_message([*worth_section(found).notes])


def test_the_page_the_tables_and_the_terminal_say_the_same(whole: LadderResults, check_message: CheckMessage) -> None:
    files = {name: str(content) for name, content in LadderReport(whole).files().items()}
    assert set(files) == {"table.csv", "trends.csv", "table.md", "ladder.png", "ladder.svg"}
    for title in ("# A climb", "## With more compute", "## Forecast", "## Rungs", "## Figures"):
        assert f"{title}\n" in files["table.md"]
    assert "What it is about." in files["table.md"]
    assert max(map(len, printed(whole, 80).splitlines())) <= 80
    assert printed(whole, 400).splitlines()[0] == ladder_answer(whole)
    check_message(of_gain := trend_section(whole).rows[1][3])
    assert f"{of_gain} |" in files["table.md"]
    rows = list(csv.DictReader(io.StringIO(files["table.csv"])))
    assert [row["rung"] for row in rows if row["arm"] == "arm"] == ["s", "m", "l", "xl"]
    (arm,) = whole.arms
    assert arm.at[0].gain is not None
    assert float(rows[1]["gain"]) == pytest.approx(math.exp(arm.at[0].gain.log.value))
    assert [row["of"] for row in csv.DictReader(io.StringIO(files["trends.csv"]))] == ["difference", "log gain"]
    check_message(forecast_section(whole).notes[0])


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_the_answer_is_of_the_largest_rung_with_enough_seeds(
    tmp_path: Path, whole: LadderResults, check_message: CheckMessage
) -> None:
    check_message(ladder_answer(whole))
    check_message(ladder_answer(made(tmp_path / "few", seeds=(6, 6, 6, 3))))
    check_message(ladder_answer(made(tmp_path / "rate", bracketed={"xl": ["base"]})))
    check_message(ladder_answer(made(tmp_path / "none", seeds=(3, 3, 3, 3))))


@pytest.mark.slow
def test_few_seeds_yield_nothing_bold(tmp_path: Path, check_message: CheckMessage) -> None:
    found = made(tmp_path, seeds=(6, 6, 5, 3))
    assert found.arms[0].bold == (False, False)
    assert "**" not in "".join(line for line in markdown(found).splitlines() if "| arm |" in line and "xl" in line)
    check_message([note for note in trend_section(found).notes if "xl" in note])
    two = made(tmp_path / "two", seeds=(6, 6, 6, 2))
    check_message(trend_section(two).rows[1][3])


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_unbracketed_rates_withhold_verdicts_on_trends(
    tmp_path: Path, whole: LadderResults, check_message: CheckMessage
) -> None:
    found = made(tmp_path, bracketed={"l": ["base"], "xl": []})
    rows = worth_section(found).rows
    assert [row[4].endswith(NOT_BRACKETED) for row in rows] == [False, False, True, True]
    trends = trend_section(found).rows
    bold = list(map(is_bold, trends))
    (reason,) = {row[3] for row in trends}
    check_message(reason)
    assert bold == [False, False]
    assert set(trend_table(found)["says"]) == {reason}
    assert worth_table(found).query("arm == 'arm'").rate_bracketed.tolist() == [True, True, False, False]
    check_message([note for note in worth_section(found).notes if note not in worth_section(whole).notes])
    manifest = json.loads((tmp_path / "climb" / "ladder.json").read_text())
    for rung in manifest["rungs"]:  # of an older version, which knew of no curve
        del rung["rates"]
    (tmp_path / "climb" / "ladder.json").write_text(json.dumps(manifest))
    old = trend_section(load_ladder(tmp_path / "climb"))
    check_message(old.rows[0][3])


def test_of_an_arm_that_is_only_explored_nothing_is_claimed(tmp_path: Path, check_message: CheckMessage) -> None:
    found = made(tmp_path, of_rungs={"confirmatory": []})
    rows = trend_section(found).rows
    bold = list(map(is_bold, rows))
    check_message(rows[1][3])
    assert not any(bold)


def test_unhealthy_rungs_are_named_beside_the_trend(tmp_path: Path, check_message: CheckMessage) -> None:
    def ill(arm: str, place: int, seed: int, stored: Any) -> None:
        stored["steps"] = 100
        if arm == "arm" and place == 1:
            stored["metrics"]["clipped_share"] = 0.9

    found = made(tmp_path, change=ill)
    rows = trend_section(found).rows
    bold = list(map(is_bold, rows))
    check_message([row[3] for row in rows])
    assert not any(bold)
    check_message(worth_section(found).rows[1][5])
    assert [is_bold(row) for row in worth_section(found).rows] == [True, False, True, True]
    check_message(ladder_answer(found))


def test_lost_cells_leave_what_is_there_and_are_told(tmp_path: Path, check_message: CheckMessage) -> None:
    def lost(arm: str, place: int, seed: int) -> float | str | None:
        if place == 3 and (arm == "arm" or seed > 2):
            return None
        return "diverged" if (arm, place, seed) == ("arm", 1, 0) else usual(arm, place, seed)

    found = made(tmp_path, lost)
    rows = worth_section(found).rows
    assert [row[2] for row in rows] == ["6", "5", "6", "0"]
    check_message(rows[3][5])
    apart = load_ladder(
        make_ladder(tmp_path / "apart", lambda arm, at, seed: "diverged" if at == 3 else lost(arm, at, seed))
    )
    check_message(worth_section(apart).rows[3][5])
    check_message([note for note in worth_section(found).notes if "xl" in note])
    assert found.arms[0].scaling is not None
    assert found.arms[0].scaling.forecast is None
    check_message([*forecast_section(found).notes])
    nothing = made(tmp_path / "none", lambda *_: None)
    check_message([*rung_section(nothing).notes])


@pytest.mark.slow
def test_a_rung_of_lost_runs_withholds_the_trend(tmp_path: Path, check_message: CheckMessage) -> None:
    found = made(tmp_path, lambda arm, at, seed: "diverged" if (arm, at) == ("arm", 2) else usual(arm, at, seed))
    reason = "rung l: no pair to compare (6 diverged)"
    assert [row[3] for row in trend_section(found).rows] == [reason, reason]
    check_message(ladder_answer(found))
    untrained = made(tmp_path / "part", lambda arm, at, seed: None if (arm, at) == ("arm", 2) else usual(arm, at, seed))
    assert found.arms[0].bold == untrained.arms[0].bold == (False, False)


def test_learning_rates_that_change_from_rung_to_rung_are_said(tmp_path: Path, check_message: CheckMessage) -> None:
    def at(rates: dict[tuple[str, int], float]) -> list[str]:
        out = tmp_path / str(len(rates))
        folder = make_ladder(out, seeds=(6, 6, 6))
        for (arm, place), rate in rates.items():
            cell = Store(out).directory(f"{'sml'[place]}-{arm}-0")
            write_atomic(cell / "config.yaml", f"optim: {{lr: {rate}}}\n")
        return [line for line in worth_section(load_ladder(folder)).notes if line.startswith("Learning rates")]

    same = {("base", place): 0.016 for place in range(3)}
    assert at(same) == []
    check_message(at({**same, ("arm", 0): 0.032, ("arm", 2): 0.008}))


def test_no_law_without_three_rungs_or_a_falling_loss(tmp_path: Path, check_message: CheckMessage) -> None:
    two = made(tmp_path, seeds=(6, 6))
    check_message([*rung_section(two).notes])
    assert worth_section(two).rows[0][4] == "-"
    risen = made(tmp_path / "up", lambda arm, place, seed: 2.0 + place + usual(arm, 0, seed))
    check_message(rung_section(risen).notes[0])
    assert draw(ladder_chart(risen))


def test_extrapolated_gains_are_marked(check_message: CheckMessage) -> None:
    log = Estimate(math.log(2), math.log(1.5), math.inf)
    check_message(gain(Gain(log, "above")))
    check_message(gain(Gain(Estimate(math.inf, math.log(3), math.inf), "floor")))


def test_the_figure_is_drawn_of_all_that_there_is(whole: LadderResults) -> None:
    left, right = draw(ladder_chart(whole)).axes
    assert [line.get_label() for line in right.lines if not str(line.get_label()).startswith("_")] == ["arm"]
    assert len(left.containers) == 4  # the means of both arms, and a forecast of each
    assert right.get_yscale() == "log"
    assert len(right.get_yticks()) >= 3


def test_html_pages_run_only_hashed_scripts_and_fetch_nothing(tmp_path: Path) -> None:
    found = made(tmp_path, title=IMAGE, notes=SCRIPT)
    page = page_of(LadderReport(found).body())
    Page(page).require_safe()
    assert f'<p class="answer">{ladder_answer(found)}</p>' in page
    assert page.count("<strong>") == sum(is_bold(row) for section in ladder_sections(found) for row in section.rows)
    assert "<li>xl: climb.xl</li>" in page
    assert TWO_INTERVALS in page.replace("&#x27;", "'")


@pytest.mark.extra
def test_the_report_is_written_again_from_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused_command: RefusedCommand
) -> None:
    folder = make_ladder(tmp_path)
    write_report(folder, Console(quiet=True))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["report", str(folder)]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert trend_section(load_ladder(folder)).title in capsys.readouterr().out
    Store(tmp_path).directory("xl-arm-0").joinpath("record.json").unlink()
    assert main(["report", str(folder)]) == 0
    assert (folder / "table.csv").read_bytes() != before["table.csv"]
    refused_command(["report", folder, "--format", "csv"])


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(format=99),
        lambda one: one.pop("metric"),
        lambda one: one["rungs"][0].update(experiment="../up"),
        lambda one: one["rungs"][0].update(name="\ud800"),
        lambda one: one.update(rungs=[]),
        lambda one: one["rungs"][1]["compute"].pop("arm"),
        lambda one: one["rungs"][1]["compute"].update(arm=10**400),
        lambda one: one["rungs"][1]["compute"].update(arm=-1),
        lambda one: one["margin"].update(gain=-1),
        lambda one: one["margin"].update(difference=0),
        lambda one: one.update(baseline="bass"),
        lambda one: one.update(arms=["base"]),
    ],
)
def test_a_damaged_ladder_is_one_line(tmp_path: Path, refused: Refused, change: Any) -> None:
    folder = make_ladder(tmp_path, seeds=(1, 1))
    content = json.loads((folder / "ladder.json").read_text())
    change(content)
    (folder / "ladder.json").write_text(json.dumps(content))
    with refused():
        load_ladder(folder)


def test_a_number_of_a_rung_is_traced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused_command: RefusedCommand,
    check_message: CheckMessage,
) -> None:
    folder = make_ladder(tmp_path / "results", seeds=(1, 1, 1, 1))
    monkeypatch.chdir(tmp_path)
    assert experiment_folder(Path("climb")).resolve() == folder
    assert experiment_folder(Path("climbing")) == Path("climbing")
    assert main(["pack", str(folder)]) == 0
    for given in ("climb", str(folder), f"{folder}.lmpack"):
        capsys.readouterr()
        assert main(["trace", given, "xl.arm"]) == 0
        check_message(capsys.readouterr().out.splitlines()[0])
        for words in (["xk.arm"], []):
            refused_command(["trace", given, *words])


def test_rungs_elsewhere_are_not_read_and_ladders_told_from_experiments(tmp_path: Path, refused: Refused) -> None:
    folder = make_ladder(tmp_path / "out", seeds=(1, 1))
    rung = folder.with_name("climb.s")
    with refused():
        load(folder)
    with refused():
        read_ladder(rung)
    rung.rename(tmp_path / "elsewhere")
    rung.symlink_to(tmp_path / "elsewhere")
    with refused():
        load_ladder(folder)


def test_differences_cover_text_where_documents_are_kept(tmp_path: Path, check_message: CheckMessage) -> None:
    random, tokens_d = np.random.default_rng(0), np.full(30, 40)
    of_text_d = 0.2 * random.normal(size=30)
    of_text_d -= of_text_d.mean()

    def keep(arm: str, place: int, seed: int, stored: Any) -> None:
        if place == 1:
            losses = (stored["metrics"]["nll"] + of_text_d * (arm == "arm")) * tokens_d
            content = packed(losses, tokens_d)
            write_atomic(Store(tmp_path).work(stored["id"]) / "documents.npz", content)
            stored["documents"] = described(content, "document", 1, 30)

    kept = made(tmp_path, seeds=(6, 6), change=keep)
    (arm,) = kept.arms
    for place, found in enumerate(at.difference for at in arm.at):
        pairs_s = [usual("arm", place, seed) - usual("base", place, seed) for seed in range(6)]
        seeds, text = np.var(pairs_s, ddof=1) / 6, np.var(of_text_d, ddof=1) / 30
        alone = stats.t.interval(0.95, 5, np.mean(pairs_s), np.sqrt(seeds))
        if place != 1:
            assert (found.low, found.high) == pytest.approx(alone)
            continue
        # Seeds and documents do not act on one another here: the variances add up.
        freedom = (seeds + text) ** 2 / (seeds**2 / 5 + text**2 / 29)
        low, high = stats.t.interval(0.95, freedom, np.mean(pairs_s), np.sqrt(seeds + text))
        assert low < alone[0]
        assert alone[1] < high
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)
    check_message([at.verdict for at in arm.at])
    check_message([note for note in worth_section(kept).notes if "arm on s" in note])
    rows = worth_table(kept)
    assert rows[rows.arm == "arm"].over.tolist() == ["seeds", "seeds and text"]


# several in one table


def test_each_arm_is_a_row_with_gains_by_rung(
    tmp_path: Path, whole: LadderResults, check_message: CheckMessage
) -> None:
    section = overview_section([made(tmp_path, seeds=(6, 6, 6)), whole], "Worth")
    assert section.columns == [
        *("ladder", "arm, against", "s", "m", "l", "xl"),
        *("gain with more compute", "difference with more compute", "forecast"),
    ]
    short, long = section.rows
    assert short[:2] == long[:2] == ["climb", "arm, base"]
    assert [float(cell) for cell in long[2:6]] == pytest.approx([1.3] * 4, abs=0.1)
    assert short[5] == "-"
    check_message([*long[6:]])
    assert short[8] == "-", "three rungs forecast nothing"
    lines = list(csv.DictReader(io.StringIO(csv_worth([whole]))))
    assert [(line["ladder"], line["rung"], line["arm"]) for line in lines[:3]] == [
        ("climb", "s", "base"), ("climb", "s", "arm"), ("climb", "m", "base")
    ]  # fmt: skip


def test_what_an_arm_has_not_is_said(tmp_path: Path, check_message: CheckMessage) -> None:
    lost = made(tmp_path / "lost", lambda arm, at, seed: usual(arm, at, seed) if arm == "base" else None)
    (row,) = overview_section([lost]).rows
    assert [*row[2:6], row[8]] == ["-"] * 5
    check_message([*row[6:8]])
    floor = made(tmp_path / "floor", lambda arm, at, seed: usual(arm, at, seed) - (arm == "arm"))
    check_message(overview_section([floor]).rows[0][5])
