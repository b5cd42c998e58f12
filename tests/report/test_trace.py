"""A number of a table can be followed to its cells, and made again by the commands printed."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import CheckMessage, Refused
from records import MakeExperiment
from rich.console import Console

from lm.analysis.results import load
from lm.report.sections import made_under
from lm.report.trace import trace
from lm.report.web.parts import provenance_section

BASE = [2.0, 2.1, 1.9]
ENDED = [1.7, 1.85]
BETTER = [*ENDED, "diverged"]


def traced(folder: Path, arm: str, metric: str) -> str:
    text = io.StringIO()
    trace(folder, arm, metric, Console(file=text, width=160))
    return text.getvalue()


def test_traced_values_and_difference_are_those_of_records(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "better": BETTER})
    text = traced(folder, "better", "nll")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert [row[:4] for row in rows] == [
        ["0", "better", "ok", "1.7"],
        ["0", "base", "ok", "2"],
        ["1", "better", "ok", "1.85"],
        ["1", "base", "ok", "2.1"],
        ["2", "better", "diverged", "-"],
        ["2", "base", "ok", "1.9"],
    ]
    mean = np.mean(np.subtract(ENDED, BASE[:2]))
    assert f"paired: {mean:+.6g}" in text
    assert "n = 2" in text
    assert "model.block: PostNorm -> PreNorm" in text


def test_every_cell_of_the_arm_has_its_command(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    folder = experiment({"base": BASE, "better": BETTER})
    configs = [folder.parent / "cells" / f"better-{seed}" / "config.yaml" for seed in range(3)]
    for config in configs[:2]:
        config.write_text("seed: 0\n")
    text = traced(folder, "better", "nll")
    assert re.findall(r"lm fit (\S+) --out (\S+)", text) == [(str(config), "again") for config in configs[:2]]
    check_message([line for line in text.splitlines() if str(configs[2]) in line])


def test_a_cell_made_outside_a_checkout_has_no_commit(experiment: MakeExperiment) -> None:
    def outside(arm: str, seed: int, stored: dict[str, Any]) -> None:
        stored["provenance"]["git"] = {"commit": None, "dirty": None}

    folder = experiment({"base": BASE, "better": BETTER}, outside)
    assert "None" not in traced(folder, "better", "nll") + provenance_section(load(folder), made_under(load(folder)))


def test_the_recorded_command_is_shown_and_none_invented(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    given = ["ablate", "my own/spec.yaml", "--set", "optim.lr=1e-3", "--seeds", "0-2", "--out", "../out"]
    folder = experiment({"base": BASE, "better": BETTER}, command=given)
    text = traced(folder, "better", "nll")
    assert "\n  lm ablate 'my own/spec.yaml' --set optim.lr=1e-3 --seeds 0-2 --out ../out\n" in text
    unknown = traced(experiment({"base": BASE, "better": BETTER}), "better", "nll")
    check_message(unknown.splitlines()[-1])
    assert "lm ablate" not in unknown


def test_the_baseline_has_no_difference_and_paths_are_metrics_too(experiment: MakeExperiment) -> None:
    def deepen(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["initial"] = {"entropy": [[0.5, 0.7]]}

    folder = experiment({"base": BASE, "better": BETTER}, deepen)
    assert "paired" not in traced(folder, "base", "nll")
    assert " 0.6 │" in traced(folder, "base", "initial/entropy")


@pytest.mark.parametrize(
    ("arm", "metric"), [("beter", "nll"), ("better", "nl"), ("better", "loss"), ("better", "Val-Loss")]
)
def test_what_is_not_there_is_one_line(experiment: MakeExperiment, refused: Refused, arm: str, metric: str) -> None:
    with refused():
        traced(experiment({"base": BASE, "better": BETTER}), arm, metric)
