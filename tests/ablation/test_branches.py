"""Shares of the training branch off the whole one where, and as far as, both compute the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from experiment_files import write_experiment
from helpers import RUN, Capture, Patch

from lm.ablation.branches import branch_step, with_branches
from lm.ablation.derived import expand_budgets
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import make_plan
from lm.cli import main
from lm.config.tree import Tree, override
from lm.store.store import Store
from lm.training.cell import check

pytestmark = pytest.mark.slow

STABLE: Tree = {
    "optim.schedule": {"class_path": "WarmupStableDecay", "init_args": {"warmup": 2, "decay": 0.25}},
    "trainer.max_steps": 16,
}


def config(**changes: Any) -> Tree:
    return check(override(RUN, STABLE | {name.replace("__", "."): value for name, value in changes.items()})).config


CALLBACK = {"class_path": "lm_callbacks.Mine", "init_args": {}}


@pytest.mark.parametrize(
    ("changes", "shorter", "expected"),
    [
        ({}, {}, 5),  # of 8 steps the last two are slower, and a checkpoint holds the rate of the next
        ({"trainer__val_check_interval": 5}, {}, 4),  # as a validation follows step 5
        ({"trainer__val_check_interval": 1}, {}, 0),
        ({"trainer__accumulate_grad_batches": 2}, {}, 5),  # 12 batches
        ({"optim__schedule__decay": 4}, {"optim__schedule__decay": 3}, 3),
        ({"optim__schedule": {"class_path": "Constant", "init_args": {"warmup": 2}}}, {}, 7),
        ({"optim__schedule": {"class_path": "InverseSquareRoot", "init_args": {"warmup": 2}}}, {}, 7),
        ({"optim__schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 2}}}, {}, 1),
        ({}, {"optim__schedule__warmup": 1}, 0),
        ({}, {"optim__lr": 0.02}, 0),
        ({}, {"seed": 1}, 0),
        ({}, {"trainer__max_steps": 16}, 0),
        ({}, {"trainer__max_steps": 32}, 0),
    ],
)
def test_a_share_branches_off_before_its_rate_descends(
    changes: dict[str, Any], shorter: dict[str, Any], expected: int
) -> None:
    assert branch_step(config(**changes), config(**{**changes, "trainer__max_steps": 8, **shorter})) == expected


@pytest.mark.parametrize("own", [{"trainer": {"callbacks": [CALLBACK]}}, {"data": {"class_path": "mine.Data"}}])
def test_what_own_code_makes_of_the_length_is_not_known(own: dict[str, Any]) -> None:
    longer, shorter = (
        {name: {**part, **own.get(name, {})} if isinstance(part, dict) else part for name, part in tree.items()}
        for tree in (config(), config(trainer__max_steps=8))
    )
    assert branch_step(longer, shorter) == 0


def test_cells_leave_checkpoints_for_shares_that_are_missing(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, budgets=[0.25, 0.5], arms={"layer": STABLE, "cosine": {}}, seeds=3)
    experiment, store = load_experiment(path, {}), Store(tmp_path / "out")
    parts = [make_plan(part) for part in expand_budgets(experiment)]
    plan, begun = with_branches(make_plan(experiment), parts, store)
    for planned in plan.cells:
        shares = [part.by_arm[planned.arm][planned.seed].cell.id for part in parts]
        assert planned.branches == (tuple(zip((2, 5), shares, strict=True)) if planned.arm == "layer" else ())
    assert [planned.branched for planned in begun[1].cells] == [5, 0] * 3
    assert [planned.cell.id for planned in begun[1].cells] == [planned.cell.id for planned in parts[1].cells]

    for planned in plan.cells:  # finished before shares were asked for: it leaves none
        store.directory(planned.cell.id).mkdir(parents=True)
        (store.directory(planned.cell.id) / "record.json").touch()
    plan, begun = with_branches(plan, parts, store)
    assert not any(planned.branched for part in begun for planned in part.cells)


def test_an_experiment_trains_its_shares_as_branches(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = write_experiment(tmp_path, budgets=[0.5], common=STABLE, seeds=2)
    command = ["ablate", str(path), "--underpowered", "--workers", "1", "--out", str(tmp_path / "out")]
    assert main([*command, "--plan"]) == 0
    assert "4 begin from checkpoints of the whole training, after 5 of 8 steps" in capsys.readouterr().out
    assert main(command) == 0
    cells = tmp_path / "out" / "cells"
    records = [json.loads(file.read_text()) for file in cells.glob("*/record.json")]
    branched = [record["provenance"].get("branched") for record in records if record["steps"] == 8]
    assert len(branched) == 4
    longer = {record["id"] for record in records if record["steps"] == 16}
    assert {of["cell"] for of in branched} == longer
    assert {of["step"] for of in branched} == {5}
    assert not list((cells / ".branches").iterdir())
