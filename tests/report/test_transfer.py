"""How often cheaper settings answer as the dearest one does."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
from helpers import Capture
from messages import CheckMessage, RefusedCommand

from lm.cli import main
from lm.report.transfer import SettingAnswer, group_by_question, summary_section

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def answer(title: str, flops: float, verdict: str, difference: float = 1.0) -> SettingAnswer:
    return SettingAnswer(title, "arm - base", "arm", verdict, difference, 8, flops)


def test_answers_are_compared_with_the_dearest_setting() -> None:
    groups = group_by_question(
        [
            *(answer("a", 100, "better", -0.3), answer("a", 20, "better", -0.1), answer("a", 99.5, "worse", 0.1)),
            *(answer("b", 20, "worse", 0.2), answer("b", 100, "better", -0.2)),
            *(answer("c", 100, "open", -0.1), answer("c", 25, "better", -0.1)),
            *(answer("d", 15, "open", -0.1), answer("d", 100, "equivalent", -0.1)),
            answer("alone", 100, "better"),
            *(answer("free", float("nan"), "better"), answer("free", 100, "better")),
        ]
    )
    assert [[one.flops for one in group] for group in groups] == [[20, 100], [20, 100], [25, 100], [15, 100]]
    (row,) = summary_section(groups).rows
    saving, compute, count, experiments, *shares = row
    assert (saving, compute, count, experiments) == ("size or length", "10% to 30%", "4", "4")
    assert [share.partition(" ")[0] for share in shares] == ["1/3", "1/3", "1/3", "1/1", "2/3"]
    positive = [replace(one, has_sign=False) for one in groups[0]]
    (row,) = summary_section([positive, *groups[1:]]).rows
    assert [share.partition(" ")[0] for share in row[4:]] == ["1/3", "1/3", "1/3", "1/1", "1/2"]


def test_intervals_are_over_experiments() -> None:
    def cheaper(title: str, verdict: str, count: int = 1) -> list[SettingAnswer]:
        pairs = [(i, *pair) for i in range(count) for pair in ((verdict, 20), ("better", 100))]
        return [SettingAnswer(title, str(i), "arm", verdict, 1.0, 8, flops) for i, verdict, flops in pairs]

    def same(*answers: list[SettingAnswer]) -> str:
        (row,) = summary_section(group_by_question([one for listed in answers for one in listed])).rows
        return row[4]

    others = [cheaper(title, "better") for title in "bcde"]
    assert same(cheaper("a", "better", 50), *others) == "54/54", "five experiments are too few"
    assert same(cheaper("a", "better", 50), *others, cheaper("f", "better")) == "55/55 [54%, 100%]"
    assert scipy.stats.binomtest(6, 6).proportion_ci(method="exact").low == pytest.approx(0.5407, abs=1e-4)
    low, high = same(cheaper("a", "worse", 50), *others, cheaper("f", "better")).removeprefix("5/55 [").split(", ")
    assert float(low.rstrip("%")) < 5 < 100 == float(high.rstrip("%]")), "one experiment of 50 answers weighs most"


def test_packs_of_two_sizes_make_a_table(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    names = ("parallel", "parallel.s120k")
    packs = [str(REFERENCE / f"{name}.lmpack") for name in (*names, "char_tiny")]
    assert main(["transfer", *packs, "--to", str(tmp_path / "transfer.md")]) == 0
    rows = [line.split(" | ") for line in (tmp_path / "transfer.md").read_text().splitlines() if line.startswith("| ")]
    (answers,) = [row[3] for row in rows if row[1] == "parallel - sequential"]
    expected = []
    for name in names:
        with (REFERENCE / name / "table.csv").open() as file:
            (of_arm,) = [row for row in csv.DictReader(file) if (row["arm"], row["metric"]) == ("parallel", "nll")]
        expected.append(f"{of_arm['verdict']} {float(of_arm['difference']):+.3f} ({of_arm['pairs']})")
    assert answers == " → ".join(expected)
    assert "not reproduced" in next(row[3] for row in rows if row[1].startswith("Parallel and sequential"))
    assert "char" not in (tmp_path / "transfer.md").read_text()
    title = (tmp_path / "transfer.md").read_text().partition("\n")[0].removeprefix("# ")
    check_message(title)
    assert title in capsys.readouterr().out


def test_rungs_are_settings(tmp_path: Path, capsys: Capture) -> None:
    assert main(["transfer", str(REFERENCE / "ladder_tying.lmpack"), "--to", str(tmp_path / "transfer.md")]) == 0
    (row,) = [line for line in (tmp_path / "transfer.md").read_text().splitlines() if "untied - tied" in line]
    assert row.count(" → ") == 7  # four sizes, two of them at three lengths


def test_a_claim_on_one_text_is_cheaper_than_over_texts(tmp_path: Path) -> None:
    names = [f"tying_texts.{text}" for text in ("python", "drama", "captions")]
    packs, to = [str(REFERENCE / f"{name}.lmpack") for name in names], tmp_path / "transfer.md"
    assert main(["transfer", *packs, "--to", str(to)]) == 0
    rows = [line.strip("| ").split(" | ") for line in to.read_text().splitlines() if "one text of several" in line]
    (dropout,) = [row for row in rows if any("Without dropout" in cell for cell in row)]
    answers = next(cell for cell in dropout if " → " in cell).split(" → ")
    with (REFERENCE / "claims" / "table.csv").open() as file:
        found = [
            f"{row['verdict']} {float(row['estimate']):+.3f} ({row['seeds']})"
            for row in csv.DictReader(file)
            if row["experiment"] in names and "Without dropout" in row["claim"]
        ]
    assert sorted(answers[:3]) == sorted(found)
    assert answers[3].startswith("not reproduced -0.093")
    summary = next(row for row in rows if row[0] == "one text of several")
    assert summary[2:4] == ["6", "1"]
    assert summary[4].startswith("3/3"), "of the dropout claim, the other is open over the texts"


def test_a_claim_of_one_setting_has_its_cost(tmp_path: Path) -> None:
    to = tmp_path / "transfer.md"
    assert main(["transfer", str(REFERENCE / "norm_type.lmpack"), "--to", str(to)]) == 0
    (row,) = [line for line in to.read_text().splitlines() if "equivalent" in line and line.startswith("| ")]
    flops, needed = row.strip("| ").split(" | ")[-2:]
    assert needed == f"{flops} (100%)"


def test_shares_of_the_training_are_settings(tmp_path: Path) -> None:
    to = tmp_path / "transfer.md"
    assert main(["transfer", str(REFERENCE / "quickstart_budgets.lmpack"), "--to", str(to)]) == 0
    (row,) = [line for line in to.read_text().splitlines() if " → " in line]
    assert [answer.split()[0] for answer in row.strip("| ").split(" | ")[3].split(" → ")] == ["better"] * 3
    assert "(25%)" in row


def test_a_share_that_was_not_trained_is_left_out(tmp_path: Path) -> None:
    out, to = tmp_path / "out", tmp_path / "transfer.md"
    assert main(["unpack", str(REFERENCE / "quickstart_budgets.lmpack"), "--out", str(out)]) == 0
    shutil.rmtree(out / "quickstart_budgets.budget_25")
    assert main(["transfer", str(out / "quickstart_budgets"), "--to", str(to)]) == 0
    (row,) = [line for line in to.read_text().splitlines() if " → " in line]
    assert row.count(" → ") == 1
    assert "(50%)" in row


def test_a_missing_folder_is_one_line(
    tmp_path: Path, capsys: Capture, refused_command: RefusedCommand, check_message: CheckMessage
) -> None:
    refused_command(["transfer", tmp_path / "none"])
    assert main(["transfer", "--out", str(tmp_path)]) == 0
    check_message(capsys.readouterr().out)
