"""Trained runs that were broken on purpose are found unhealthy, each by its own rule, and no others are."""

from pathlib import Path
from typing import Any

import pytest
from helpers import Patch
from messages import CheckMessage
from small_runs import own_module, train_cell

from lm.analysis.health import faults
from lm.config.tree import load_yaml
from lm.store.record import Record

pytestmark = pytest.mark.slow

STEPS = {
    "model.initializer": "FanIn",
    "model.embedding.scaled": True,
    "trainer.max_steps": 150,
    "trainer.val_check_interval": 75,
    "trainer.precision": "32-true",
}
FAINT = {"class_path": "ScaledResidual", "init_args": {"alpha": 1e-9}}
MEMORYLESS = {"class_path": "MarkovText", "init_args": {"symbols": 8, "concentration": 1e6, "size": 60000}}
CHAIN = {"class_path": "MarkovText", "init_args": {"symbols": 8, "concentration": 0.1, "size": 60000}}
IDLE = ["block 1 of 2 adds next to nothing", "block 2 of 2 adds next to nothing"]
FREQUENCIES = ["the loss is no better than that of token frequencies"]


def trained(out: Path, changes: dict[str, Any]) -> tuple[Record, list[str]]:
    """A finished cell, and what its record and its configuration say of its health; its curve is another matter."""
    _, record, folder = train_cell(out, STEPS | changes)
    assert record["status"] == "ok", record["error"]
    return record, faults(record, None, lambda: load_yaml(folder / "config.yaml"))


def sources(text: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"data.corpus": text, "data.tokenizer": "Characters", **changes}


RUNS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "pre-LN": ({}, []),
    "post-LN": ({"model.block": "PostNorm"}, []),
    "ReZero, whose blocks begin with nothing": ({"model.block": "ReZero"}, []),
    "every block times 1e-9": ({"model.block": FAINT}, IDLE),
    "a rate of 1e-6, unclipped": ({"optim.lr": 1e-6, "trainer.gradient_clip_val": None}, FREQUENCIES),
    "clipped at 1e-4 under AdamW": ({"trainer.gradient_clip_val": 1e-4}, []),
    "a memoryless source": (sources(MEMORYLESS), []),
    "a chain that was learnt": (sources(CHAIN), []),
    "a chain that was not": (sources(CHAIN, **{"optim.lr": 1e-6}), FREQUENCIES),
}
"""Changes to a small run, and its faults."""


@pytest.mark.parametrize(
    "name",
    [name if number == 0 else pytest.param(name, marks=pytest.mark.extra) for number, name in enumerate(RUNS)],
)
def test_a_run_has_exactly_the_problems_built_into_it(name: str, tmp_path: Path) -> None:
    changes, expected = RUNS[name]
    record, problems = trained(tmp_path, changes)
    assert problems == expected, (record["metrics"]["nll"], record["data"].get("unigram_nll"), record["final"])


@pytest.mark.extra
def test_clipping_most_steps_is_a_fault_under_sgd(tmp_path: Path, check_message: CheckMessage) -> None:
    sgd = {"class_path": "SGD", "init_args": {"momentum": 0.9}}
    changes = {"optim.optimizer": sgd, "optim.lr": 1.0, "trainer.gradient_clip_val": 0.1}
    record, problems = trained(tmp_path, changes)
    assert record["ignores_gradient_scale"] is False
    check_message([problem for problem in problems if "clipped" in problem])


OWN = """
import torch


class Signed(torch.optim.SGD):
    {declared}

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.sign_()
        return super().step(closure)
"""


@pytest.mark.parametrize(
    ("declared", "declaration"),
    [("ignores_gradient_scale = True", False), pytest.param('"""Silent."""', True, marks=pytest.mark.extra)],
)
def test_a_users_optimiser_may_declare_that_it_ignores_the_scale(
    declared: str, declaration: bool, tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    name = own_module(tmp_path, monkeypatch, OWN.format(declared=declared))
    changes = {"optim.optimizer": f"{name}.Signed", "optim.lr": 0.003, "trainer.gradient_clip_val": 1e-3}
    record, problems = trained(tmp_path / "out", changes)
    assert record["ignores_gradient_scale"] is not declaration
    check_message([problem for problem in problems if "clipped" in problem])
