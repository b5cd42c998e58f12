"""The table says what the analysis found, letter for letter, and the same every time."""

import io
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from messages import CheckMessage
from records import BASE, BETTER, MIXED, MakeExperiment
from rich.console import Console
from scipy import stats

from lm.analysis.compare import compare
from lm.analysis.pace import StepsToBaselineLoss
from lm.analysis.results import HEADLINE, Records, load
from lm.report.experiment import ExperimentReport
from lm.report.notes import MOST_NOTES, axes, brief_notes, grouped, notes
from lm.report.render import escape, is_bold, markdown_page
from lm.report.tables import (
    as_csv,
    details,
    difference,
    format_steps_ratio,
    heading,
    main_table,
    mean_and_sd,
    number,
)
from lm.report.write import write_report
from lm.stats.tests import ALPHA
from lm.store.metrics import SUMMARY_METRICS


def page(folder: Path) -> str:
    return markdown_page(ExperimentReport.load(folder).sections())


def printed(folder: Path, width: int = 200, everything: bool = False) -> str:
    text = io.StringIO()
    ExperimentReport.load(folder).show(Console(file=text, width=width), everything)
    return text.getvalue()


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table in a page, as a Markdown parser that is not ours reads them."""
    found: list[list[list[str]]] = []
    inside = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            found.append([])
            inside = True
        elif token.type == "table_close":
            inside = False
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and inside:
            found[-1][-1].append("".join(child.content for child in token.children or []))
    return found


# cells


def test_a_number_has_its_decimals() -> None:
    texts = {1.23456: "1.2346", math.nan: "-", -0.00004: "0.0000", -0.00006: "-0.0001"}
    assert [number(value, 4) for value in texts] == [*texts.values()]
    assert [number(value, 3) for value in (12345.6, math.inf, -0.0)] == ["12,345.600", "inf", "0.000"]


def row_of(**values: Any) -> Any:
    given = {"metric": "nll", "mean": 1.5, "sd": 0.25, "difference": -0.125, "low": -0.25, "high": 0.0625}
    given |= {"plain_low": -0.2, "plain_high": 0.05}
    given = {**given, "interval": "joint", **values}
    (found,) = pd.DataFrame([given]).itertuples()
    return found


def test_means_have_their_spread_and_differences_sign_and_interval(check_message: CheckMessage) -> None:
    assert mean_and_sd(row_of()) == "1.5000 ± 0.2500"
    assert mean_and_sd(row_of(sd=math.nan)) == "1.5000"
    assert mean_and_sd(row_of(mean=math.nan, sd=math.nan)) == "-"
    assert difference(row_of()) == "-0.1250 [-0.2500, +0.0625] joint"
    assert difference(row_of(), labelled=False) == "-0.1250 [-0.2500, +0.0625]"
    endless = row_of(low=-math.inf, high=math.inf)
    assert difference(endless, labelled=False) == "-0.1250 [-∞, +∞], plain [-0.2000, +0.0500]"
    assert difference(row_of(low=-math.inf, high=math.inf, plain_low=math.nan)) == "-0.1250 [-∞, +∞] joint"
    assert difference(row_of(low=math.nan, high=math.nan)) == "-0.1250"
    assert difference(row_of(difference=math.nan)) == "-"
    tokens = row_of(metric="tokens_per_second", difference=1234.0, low=1.0, high=2500.0, interval="plain")
    assert difference(tokens) == "+1,234 [+1, +2,500] plain"
    assert difference(row_of(difference=-1e-17, low=-1e-9, high=-0.0), False) == "+0.0000 [+0.0000, +0.0000]"
    assert (heading("nll"), heading("accuracy")) == ("validation NLL ↓", "accuracy ↑")
    check_message(heading("gradient_norm"))


def test_negative_zero_is_zero_in_a_csv_file() -> None:
    table = pd.DataFrame({"arm": ["-0.0", "b"], "n": [0, 1], "p": [-0.0, -0.5], "q": [math.nan, -0.0]})
    assert as_csv(table) == "arm,n,p,q\n-0.0,0,0.0,\nb,1,-0.5,0.0\n"


def test_the_table_of_the_page_is_the_golden_one(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    folder = experiment({"base": BASE, "better": BETTER, "mixed": [2.1, "diverged", 1.95, None, "failed", 1.9]})
    check_message([" | ".join(row) for table in tables(page(folder))[:2] for row in table])


def test_details_have_a_row_for_each_measurement(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    section = details(compare(load(experiment({"base": BASE, "better": BETTER}, at_length))))
    check_message([" | ".join(row) for row in (section.columns, *section.rows)])


MEASURED = {
    "nll",
    "bits_per_byte",
    "accuracy",
    "ece",
    "train_loss",
    "gradient_norm",
    "parameters",
    "tokens",
    "train_seconds",
    "tokens_per_second",
    "peak_memory",
}


def at_length(arm: str, seed: int, record: dict[str, Any]) -> None:
    if record["status"] == "ok":
        record["metrics"] |= {"nll@512": 1.0 + seed, "nll@64": 2.0 + seed, "brier": None}


def test_an_experiment_may_be_judged_at_a_length(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    folder = experiment({"base": BASE, "better": BETTER}, at_length, metric="nll@512")
    header, *rows = tables(page(folder))[0]
    check_message(header[2])
    assert [row[2] for row in rows] == ["3.5000 ± 1.8708"] * 2
    assert header[2].split()[0] in printed(folder)


def test_an_ece_stands_beside_its_floor_where_that_is_known(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if arm == "arm":
            record["metrics"]["ece_floor"] = 0.005

    header, *rows = tables(page(experiment({"base": BASE, "arm": MIXED}, change)))[1]
    place = header.index(heading("ece"))
    assert {row[0]: row[place] for row in rows} == {"base": "0.0100", "arm": "0.0100 (floor 0.0050)"}


@pytest.mark.parametrize(
    "manifest",
    [{}, {"confirmatory": []}, {"confirmatory": ["better"]}, {"adaptive": {"looks": [6], "maximum": 6}}],
)
def test_the_note_on_equivalence_names_the_correction(
    experiment: MakeExperiment, manifest: dict[str, Any], check_message: CheckMessage
) -> None:
    results = load(experiment({"base": BASE, "better": BETTER, "mixed": MIXED}, margin={"nll": 0.1}, **manifest))
    check_message([note for note in notes(results, compare(results)) if "one-sided" in note])


def bold(text: str) -> list[str]:
    """The arms whose row in the page holds anything bold."""
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|") and "**" in line]


def test_bold_is_what_a_test_found_significant_and_nothing_else(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "better": BETTER})
    table = compare(load(folder))
    assert (table[table.metric == HEADLINE].p_adjusted <= ALPHA).tolist() == [False, True]
    assert bold(page(folder)) == ["better"]
    assert bold(page(experiment({"base": BASE, "mixed": MIXED}))) == []
    assert (
        bold(page(experiment({"base": BASE, "better": BETTER, "mixed": MIXED}))) == []
    )  # 0.031 before Holm's correction
    assert bold(page(experiment({"base": BASE[:3], "better": BETTER[:3]}))) == []
    results = load(experiment({"base": BASE, "better": BETTER, "gone": ["diverged"] * 6}))
    for row in main_table(results, compare(results)).rows:
        assert is_bold(row) == (row[4] in ("better", "worse"))


NASTY = [
    "<script>alert(1)</script>",
    "a & b &amp; c",
    "x_1 * y_2 * z",
    "a | b",
    "two\nlines",
    "`code` and `more`",
    "[a link](http://example.org)",
    "back\\slash \\| and \\*star\\*",
    "two \\\\ back\\\\slashes",
    "~~struck~~",
    "<http://example.org>",
    "<!-- a comment --> and an arrow -> here",
    "[+0.1, -0.2](http://example.org)",
    "an interval [+0.1, +0.2], [1] [2]: x",
    "_a_b_ snake_case_ _c",
]


@pytest.mark.parametrize("text", NASTY)
def test_any_text_is_shown_letter_for_letter(text: str) -> None:
    (paragraph,) = [
        t for t in MarkdownIt("gfm-like", {"linkify": False}).parse(f"# {escape(text)}") if t.type == "inline"
    ]
    assert {child.type for child in paragraph.children or []} <= {"text", "text_special"}
    assert "".join(child.content for child in paragraph.children or []) == text.replace("\n", " ")


@pytest.mark.slow
def test_no_title_note_or_error_breaks_the_page(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if record["status"] == "failed":
            record["error"] = text

    cells = {"base": [2.0, 2.1, "failed"], "arm": [1.9, 1.8, 2.0]}
    plain = tables(page(experiment(cells)))
    for text in NASTY:
        found = page(experiment(cells, change, title=text, notes=text))
        assert tables(found) == plain, text
        assert "<script" not in MarkdownIt("commonmark").enable("table").render(found), text


# notes


def unpaired(arm: str, seed: int, record: dict[str, Any]) -> None:
    """Give one run of the arm another order of batches and another device."""
    if (arm, seed) == ("arm", 1):
        record["pairing"]["order"] = "another"
        record["provenance"]["device"] = "gpu"


def flagged(arm: str, seed: int, record: dict[str, Any]) -> None:
    """Flag some runs of the arm, two of them at several steps."""
    if arm == "arm" and seed in (1, 4):
        record["flags"] = [f"step {step}: attention is all on one token" for step in (10, 20)]
        for layer, step in [(layer, step) for layer in (2, 3) for step in (10, 20)]:
            record["flags"].append(f"step {step}: layer {layer} of 4: at most 0.0{step + seed}, under 0.05")
    if arm == "arm" and seed == 2:
        record["flags"] = ["step 10: attention is uniform", "not compiled"]


LOST = {"base": [2.0, 2.1, 1.9, 2.0], "arm": [1.9, "diverged", "failed", None]}
EIGHT = {"base": [*BASE, 2.0, 2.05], "better": [*BETTER, 1.7, 1.75]}
NOTED: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "lost": (LOST, None, {}),
    "missing": ({"base": BASE, "arm": [2.0, None, 2.0, None, None, 2.0]}, None, {}),
    "one seed": ({"base": BASE[:1], "arm": MIXED[:1]}, None, {}),
    "three seeds": ({"base": BASE[:3], "arm": MIXED[:3]}, None, {}),
    "six seeds": ({"base": BASE, "arm": MIXED}, None, {}),
    "unpaired": ({"base": BASE, "arm": MIXED}, unpaired, {}),
    "flagged": ({"base": BASE, "arm": MIXED}, flagged, {}),
    "two judged": (EIGHT, None, {"secondary": ["accuracy"], "margin": {"nll": 0.02}}),
    "stages": ({"base": BASE, "arm": MIXED}, None, {"adaptive": {"looks": [6, 9, 12], "maximum": 12}}),
}


@pytest.mark.parametrize("case", NOTED)
def test_notes_are_the_golden_ones(experiment: MakeExperiment, check_message: CheckMessage, case: str) -> None:
    cells, change, manifest = NOTED[case]
    results = load(experiment(cells, change or (lambda *_: None), **manifest))
    table = compare(results)
    brief = brief_notes(results, table)
    assert len(brief) <= MOST_NOTES
    assert all(len(line) <= 80 for line in brief)
    check_message(notes(results, table))
    check_message(brief)


def test_the_table_leads_with_the_headline_metric(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if arm == "arm":
            record["metrics"]["bits_per_byte"] = BETTER[seed]
        else:
            record["metrics"]["bits_per_byte"] = BASE[seed]
        record["data"]["tokenizer"] = arm

    folder = experiment({"base": MIXED, "arm": MIXED}, change, metric="bits_per_byte")
    header, *rows = tables(page(folder))[0]
    shown = [name for name in SUMMARY_METRICS if name in MEASURED - {"bits_per_byte"}]
    assert header == ["arm", "n", heading("bits_per_byte"), "difference [95 % CI]", "verdict"]
    assert rows[0] == ["arm", "6", "1.7683 ± 0.1048", "-0.2650 [-0.3000, -0.2200]", "better"]
    more, *means = tables(page(folder))[1]
    assert more == ["arm", "health", heading("nll"), *map(heading, shown)]
    assert means[0][:3] == ["arm", "healthy", "2.0417"]
    assert bold(page(folder)) == ["arm"]
    check_message(grouped(load(folder), compare(load(folder)))["comparability"])
    assert header[2].split()[0] in printed(folder)


def test_exploratory_arms_are_named_as_such_and_never_bold(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    folder = experiment({"base": BASE, "better": BETTER, "more": BETTER}, confirmatory=["better"])
    results = load(folder)
    told = notes(results, compare(results))
    check_message([note for note in told if re.search(r"\b(better|more)[:.]", note)])
    assert bold(page(folder)) == ["better"]
    verdicts = {row[0]: row[4] for row in tables(page(folder))[0]}
    assert verdicts["more"] == "better (exploratory, q=.031)"


def test_each_interval_names_its_kind_where_there_are_several(experiment: MakeExperiment) -> None:
    cells = {"base": BASE, "better": BETTER, "more": BETTER}
    _, *rows = tables(page(experiment(cells, confirmatory=["better"])))[0]
    assert {row[0]: row[3].split()[-1] for row in rows} == {"base": "-", "better": "joint", "more": "plain"}
    _, *rows = tables(page(experiment(cells, confirmatory=[])))[0]
    assert {row[0]: row[3][-1] for row in rows} == {"base": "-", "better": "]", "more": "]"}


@pytest.mark.parametrize("count", [10, 79, 80, 81, 300])
def test_long_notes_are_cut_at_a_sentence(experiment: MakeExperiment, count: int, check_message: CheckMessage) -> None:
    sentences = [f"S{index} has four words." for index in range(count // 4)] + ["x"] * (count % 4)
    text = page(experiment({"base": BASE}, notes=" ".join(sentences)))
    (line,) = [line for line in text.splitlines() if line.startswith("S0")]
    assert len(line.split()) <= 80
    if count <= 80:
        assert line == " ".join(sentences)
    else:
        kept, pointer = re.split(r" (?=\()", line)
        assert kept.endswith("words.")
        check_message(pointer)


def test_runs_that_were_lost_are_a_rate_with_its_interval(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": BASE, "arm": [*BETTER[:5], "diverged"]}))
    low, high = stats.binomtest(1, 6).proportion_ci(method="exact")
    rate = f"arm: 1 of 6 runs diverged or failed: 0.17 [{low:.2f}, {high:.2f}]"
    assert any(line.startswith(rate) for line in notes(results, compare(results)))


def test_arms_are_listed_with_what_they_change_and_labelled_axes(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    given = {"model.block": "scientific", "optim.lr": "nuisance", "model.width": "scientific", "data.context": "fixed"}
    given |= {"model.block.shared_norm": "scientific", "model.block.dropout": "nuisance"}  # the first is shown no more
    results = load(experiment({"base": BASE, "arm": MIXED}, axes=given))
    (line,) = axes(results)
    check_message(line)
    folder = experiment({"base": BASE, "arm": MIXED}, axes=given)
    assert f"\n- arm: model.block: PostNorm -> PreNorm\n- {line}\n" in page(folder)
    assert axes(load(experiment({"base": BASE, "arm": MIXED}))) == []


def test_step_ratios_count_seeds_that_missed_the_target() -> None:
    given = (StepsToBaselineLoss("a", {"steps": [0.5, 0.75]}), StepsToBaselineLoss("a", {"steps": [0.5]}, [1, 2]))
    assert [format_steps_ratio(steps) for steps in given] == ["0.62", "0.50 (1 of 3 seeds)"]
    assert [format_steps_ratio(steps) for steps in (StepsToBaselineLoss("a", {}, [0]), None)] == ["not reached", "-"]


def test_factorial_effects_are_in_page_and_terminal(experiment: MakeExperiment) -> None:
    cells: dict[str, list[Any]] = {"a0+b0": BASE, "a1+b0": BETTER, "a0+b1": MIXED, "a1+b1": BETTER}
    arms = {
        arm: {
            "changes": {},
            "levels": dict(zip("ab", arm.split("+"), strict=True)),
            "cells": {str(seed): f"{arm}-{seed}" for seed in range(6)},
        }
        for arm in cells
    }
    folder = experiment(cells, design={"kind": "factorial", "aliases": []}, arms=arms)
    text = page(folder)
    assert "## Effects" in text
    effect = tables(text)[2][1]
    assert effect[:2] == ["a", "a1 - a0"]
    by_hand = (2 * sum(BETTER) - sum(BASE) - sum(MIXED)) / 12
    assert effect[2].startswith(f"{by_hand:+.4f} [")
    assert "a1 - a0" in printed(folder, everything=True)


# the terminal


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_terminal_shows_every_arm_at_any_width(experiment: MakeExperiment, width: int) -> None:
    title = "A [bold]title[/bold] [link"
    text = printed(experiment({"base": BASE, "better": BETTER, "mixed": MIXED}, title=title), width)
    assert all(arm in text for arm in ("base", "better", "mixed"))
    assert title in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width


def test_arms_are_sorted_by_difference_with_the_baseline_at_zero(experiment: MakeExperiment) -> None:
    cells = {"base": BASE, "worse": [x + 0.1 for x in BASE], "better": BETTER, "gone": ["diverged"] * 6}
    for metric, sign in (("nll", "-"), ("accuracy", "+")):
        _, *rows = tables(page(experiment(cells, metric=metric)))[0]
        assert [row[0] for row in rows] == ["better", "base", "worse", "gone"]
        assert rows[0][3].startswith(sign)


def test_the_terminal_ends_in_five_columns_and_few_lines(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    cells = {"base": BASE, "better": BETTER, "mixed": MIXED}
    lines = printed(experiment(cells, confirmatory=[]), 80).splitlines()
    text = "\n".join(lines)
    assert re.findall(r"arm|NLL ↓|difference \[95 % CI\]|verdict|health|Costs", text) == [
        "arm", "NLL ↓", "difference [95 % CI]", "verdict"
    ]  # fmt: skip
    assert re.search(r"better │ 6 │ +1.7683 │ -0.2650 \[-0.\d+, -0.\d+\] │ inconclusive, exploratory", text)
    table_end = max(index for index, line in enumerate(lines) if "mixed" in line)
    notes_below = [line for line in lines[table_end + 1 :] if not set(line) <= set("└─┴┘ ")]
    assert 1 <= len(notes_below) <= MOST_NOTES
    check_message(notes_below[0])


def test_all_tables_are_printed_on_request(experiment: MakeExperiment) -> None:
    text = printed(folder := experiment({"base": BASE, "better": BETTER}), 320, everything=True)
    assert "difference [95 % CI]" in text
    assert re.search(r"\n\nMore metrics *\n", text)
    assert re.search(r"\n\nCosts *\n", text)
    assert notes(load(folder), compare(load(folder)))[0] in text


def test_training_problems_mark_arms_and_are_named_once_below(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    ill = {"base": "", "better": "no layer ever woke; b", "mixed": "no layer ever woke; b", "other": "another fault"}
    monkeypatch.setattr(Records, "health", ill)
    folder = experiment({"base": BASE, "better": BETTER, "mixed": MIXED, "other": BASE})
    for width in (80, 200):
        text = printed(folder, width)
        assert text.count("woke") == 1
        check_message([line for line in text.splitlines() if line.startswith("! ")])
        assert [f"{arm} !" in text for arm in ill] == [False, True, True, True]
    arms, more = ([row[0] for row in table[1:]] for table in tables(page(folder))[:2])
    assert set(arms) == {"base", "better !", "mixed !", "other !"}
    assert set(more) == set(ill)
    assert "unhealthy" not in page(folder).partition("## More metrics")[0]


def test_a_baseline_with_a_training_problem_is_marked_alone(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Records, "health", {"base": "a fault (1 of 6)", "better": ""})
    rows = main_table(results := load(experiment({"base": BASE, "better": BETTER})), compare(results)).rows
    assert [(row[0], row[4], is_bold(row)) for row in rows] == [
        ("better", "better", False),
        ("base !", "baseline", False),
    ]


def test_there_are_never_more_than_four_lines_of_notes(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {f"a{number}": MIXED for number in range(6)}
    monkeypatch.setattr(Records, "health", {"base": "", **{arm: f"fault {arm}" for arm in arms}})
    results = load(experiment({"base": BASE, **arms}, flagged))
    lines = brief_notes(results, compare(results))
    assert len(lines) == MOST_NOTES
    assert lines[-1] == "! a1, a2, a3, a4, a5: see table.md"
    assert "undeclared" not in " ".join(lines)


# files


def written(folder: Path) -> dict[str, bytes]:
    write_report(folder, Console(file=io.StringIO(), width=200))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_report_made_again_is_the_same_byte_for_byte(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "better": BETTER, "mixed": [2.1, "diverged", 1.95, None, "failed", 1.9]})
    first, again = written(folder), written(folder)
    assert first == again
    assert {"table.md", "table.csv", "learning_curve.svg", "learning_curve.png"} <= first.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_files_hold_the_pages_analysis_and_figures(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "better": BETTER, "mixed": [2.1, "diverged", 1.95, None, "failed", 1.9]})
    files = written(folder)
    found = pd.read_csv(folder / "table.csv")
    pd.testing.assert_frame_equal(found, compare(load(folder)), check_exact=True, check_dtype=False)
    shown = re.findall(r"!\[[^]]*\]\(([^)]*)\)", files["table.md"].decode())
    assert shown == ["differences.png", "difference_curve.png", "learning_curve.png"]
    assert set(shown) <= files.keys()


@pytest.mark.parametrize(
    "cells", [{"base": [None], "arm": [None]}, {"base": ["failed"], "arm": ["diverged"]}, {"base": BASE}]
)
def test_experiments_without_comparisons_are_reported(experiment: MakeExperiment, cells: dict[str, list[Any]]) -> None:
    assert {"table.md", "table.csv"} <= written(experiment(cells)).keys()
