"""The section on tuning: what each arm came to with shared and with tuned settings, and what its search found."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import known
from messages import CheckMessage, Refused
from records import MakeExperiment
from rich.console import Console
from searches import LR, make_search, trial

import lm
from lm.analysis.results import load
from lm.report.experiment import ExperimentReport
from lm.report.figures.comparison import tuning
from lm.report.tuning import FOLDER, tuning_of, tuning_section
from lm.report.write import write_report
from lm.store.files import to_json, write_atomic
from lm.store.formats import TUNED

CELLS = {"base": [2.0, 2.1, 1.9, 2.05, 2.2, 1.95], "arm": [1.7, 1.85, 1.68, 1.8, 1.92, 1.66]}
CHOICE = {"choices": ["Alibi", "Rope"]}
WINNERS = {
    "base": {"changes": None, "value": None, "trial": None},
    "arm": {"changes": {"optim.lr": 0.012345, "model.position": "Rope"}, "value": 1.5, "trial": 2},
}
SEARCHED: dict[str, list[tuple[float, float]]] = {"base": [], "arm": [(0.1, 1.9), (0.001, 1.8), (0.012345, 1.5)]}
"""Rates that were tried for an arm, each with the loss it came to."""


def search(folder: Path, trials: list[tuple[float, float]], space: dict[str, Any]) -> None:
    """A study of these trials, with a pruned one before them and a failed one behind."""
    states = ["pruned", *["complete"] * len(trials), "failed"]
    found = [
        trial(n, [nll] if state == "complete" else None, state, **{"optim.lr": lr, "model.position": "Rope"})
        for n, (state, (lr, nll)) in enumerate(zip(states, [(0.05, 0.0), *trials, (0.07, 0.0)], strict=True))
    ]
    make_search(folder, found, space, seeds=[70])


@pytest.fixture
def tuned(experiment: MakeExperiment) -> Callable[..., Path]:
    """Makes the folder of an experiment whose arms were tuned; its twin has the cells of the experiment itself."""

    def make(space: dict[str, Any] | None = None, searched: dict[str, list[tuple[float, float]]] = SEARCHED) -> Path:
        folder = experiment(CELLS)
        manifest = json.loads((folder / "experiment.json").read_text())
        twin = folder.with_name(f"{folder.name}.tuned")
        write_atomic(twin / "experiment.json", to_json({**manifest, "name": twin.name}))
        for arm, trials in searched.items():
            search(folder / FOLDER / arm, trials, space or {"optim.lr": LR, "model.position": CHOICE})
        described = {"metric": "nll", "trials": 5, "seeds": [70], "sampler": {"name": "tpe"}, "arms": WINNERS}
        described |= {"pruner": {"name": "none"}}
        write_atomic(folder / FOLDER / "tuned.json", to_json(TUNED.stamped(described)))
        return folder

    return make


def test_each_arm_is_compared_with_shared_and_with_tuned_settings(
    tuned: Callable[..., Path], check_message: CheckMessage
) -> None:
    results = load(folder := tuned())
    found = tuning_of(results, folder)
    assert found is not None
    base, arm = tuning_section(results, *found).rows
    assert (base[0], base[1], base[3]) == ("base", base[4], "baseline")
    check_message([*base[-2:]])
    assert arm[1:4] == arm[4:7], "the twin's cells are the experiment's own"
    assert arm[3] == "better"
    check_message([*arm[-2:]])


def test_notes_name_the_budget_and_warnings_by_arm(tuned: Callable[..., Path], check_message: CheckMessage) -> None:
    found = tuning_of(load(folder := tuned(searched={**SEARCHED, "arm": [(1e-4, 1.0), (0.01, 2.0)]})), folder)
    assert found is not None
    budget, *warnings = tuning_section(load(folder), *found).notes
    check_message(budget)
    assert any(line.startswith("arm: ") and "optim.lr" in line for line in warnings), "its best lies at an edge"


def test_winners_at_the_edge_of_a_search_are_marked(tuned: Callable[..., Path], check_message: CheckMessage) -> None:
    folder = tuned(searched={**SEARCHED, "base": [(1e-4, 1.0), (0.01, 2.0)]})
    found = tuning_of(results := load(folder), folder)
    assert found is not None
    base, arm = tuning_section(results, *found).rows
    check_message(base[6])
    check_message(arm[6])
    assert (base[3], arm[3]) == ("baseline", "better"), "at shared settings nothing was searched"
    (folder / FOLDER / "tuned.json").rename(folder / "elsewhere.json")
    assert tuning_of(results, folder) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.pop("arms"),
        lambda one: one["arms"].pop("arm"),
        lambda one: one["arms"]["arm"].update(changes=[1]),
        lambda one: one.update(seeds=70),
        lambda one: one.update(sampler="tpe"),
    ],
)
def test_a_damaged_file_of_winners_is_one_line(tuned: Callable[..., Path], refused: Refused, change: Any) -> None:
    folder = tuned()
    path = folder / FOLDER / "tuned.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with refused():
        tuning_of(load(folder), folder)


def test_trials_are_drawn_in_a_panel_for_each_number_searched(tuned: Callable[..., Path]) -> None:
    folder = tuned()
    (axes,) = lm.figure(lm.load(folder), "tuning").axes
    assert (axes.get_xlabel(), axes.get_xscale()) == ("optim.lr", "log")
    dots, line = axes.get_lines()
    assert np.asarray(dots.get_xydata()).tolist() == [[0.001, 1.8], [0.012345, 1.5], [0.1, 1.9]]
    assert line.get_label() == "arm", "an arm without a complete trial has no line"


def test_nothing_is_drawn_without_numbers_or_complete_trials(tuned: Callable[..., Path]) -> None:
    for space, searched in (({"model.position": CHOICE}, SEARCHED), (None, {"base": [], "arm": []})):
        assert tuning(ExperimentReport.load(tuned(space, searched)).figure_inputs) is None


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_tuning_section_is_in_page_and_terminal(tuned: Callable[..., Path]) -> None:
    said, folder = io.StringIO(), tuned()
    write_report(folder, Console(file=said, width=300), everything=True)
    page = (folder / "table.md").read_text()
    assert "## Tuning" in page
    assert "![tuning](tuning.png)" in page
    results = load(folder)
    budget = tuning_section(results, *known(tuning_of(results, folder))).notes[0]
    assert budget in page
    assert budget in said.getvalue()
    assert "optim.lr = 0.0123, model.position = Rope" in " ".join(said.getvalue().split())
