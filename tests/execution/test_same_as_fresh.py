"""Cells that are trained one after another in one process come to what each comes to in a process of its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN

from lm.config.tree import override
from lm.execution.executor import Ended, Validation
from lm.execution.local import Local
from lm.store.store import LOG, Store
from lm.training.cell import Cell, check
from lm.training.train import Execution

pytestmark = pytest.mark.slow
COUNTED = ("parameters", "tokens", "flops_per_token", "world_size")
"""Costs that no clock and no memory has a say in."""

OWN = """
import logging
import os
import signal
import threading
import warnings

import numpy
import torch

from lm.model.mlp import ReLU


class Quiet(ReLU):
    \"\"\"Says what it finds, once it is trained.\"\"\"

    said = False

    def forward(self, x_btd):
        if self.training and x_btd.device.type != "meta" and not self.said:
            self.said = True
            found = [
                float(numpy.random.rand()), torch.get_default_dtype(), torch.get_num_threads(),
                torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(),
                torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu"), logging.root.level,
                signal.getsignal(signal.SIGUSR1), "LEFT" in os.environ, len(warnings.filters),
                [one.name for one in threading.enumerate() if one.name == "left"],
            ]
            print(*found)
        return super().forward(x_btd)


class Loud(Quiet):
    \"\"\"Changes whatever it can.\"\"\"

    def forward(self, x_btd):
        found = super().forward(x_btd)
        if self.training and x_btd.device.type != "meta":
            numpy.random.seed(3), torch.use_deterministic_algorithms(True)
            torch.set_float32_matmul_precision("medium"), logging.root.setLevel(logging.DEBUG)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN), warnings.simplefilter("error", BytesWarning)
            os.environ["LEFT"] = "1"
        return found


class Raises(ReLU):
    \"\"\"Fails in the middle of everything.\"\"\"

    steps = 0

    def forward(self, x_btd):
        if self.training and x_btd.device.type != "meta":
            self.steps += 1
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            if self.steps > 9:
                raise RuntimeError("out of luck")
        return super().forward(x_btd)
"""


def cell(seed: int = 0, **changes: Any) -> Cell:
    """A tiny one in single precision; dots of the changes are double underscores."""
    given = {name.replace("__", "."): value for name, value in changes.items()}
    return check(override(RUN, {"trainer.precision": "32-true", "seed": seed, **given}))


def trained(store: Store, cells: Sequence[Cell], alone: bool) -> list[int]:
    """Trains cells one after another; returns the numbers of their processes. `alone` gives each a fresh one."""
    found: list[int] = []
    executor = Local(store, 1)
    for one in cells:
        if alone:
            executor.close()
            executor = Local(store, 1)
        handle = executor.submit(one, Execution(threads=1), one.id)
        found.append(executor.jobs[handle].attempt.process.pid)
        events: list[Any] = []
        while not any(isinstance(event, Ended) for event in events):
            events = list(executor.poll(1.0))
            for event in events:
                if isinstance(event, Validation):
                    event.answer(True)
        executor.result(handle)
    executor.close()
    return found


def left(store: Store, one: Cell) -> tuple[Any, ...]:
    """All that a cell left but for times: record, curve, words, weights and the state of its optimiser."""
    folder = store.directory(one.id)
    record: Any = json.loads((folder / "record.json").read_text())
    del record["provenance"]
    record["cost"] = {name: record["cost"].get(name) for name in COUNTED}
    curve = folder / "history.csv"
    checkpoint = folder / "last.ckpt"
    kept = torch.load(checkpoint, weights_only=True) if checkpoint.is_file() else {}
    log = (folder / LOG).read_text().replace(str(store.out), "") if (folder / LOG).is_file() else None
    return (
        record,
        log,
        curve.read_text() if curve.is_file() else None,
        kept.get("state_dict"),
        kept.get("optimizer_states"),
    )


def same(one: Any, other: Any) -> bool:
    """Whether two are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def compared(tmp_path: Path, cells: Sequence[Cell]) -> tuple[list[int], list[Any]]:
    """Trains cells both ways and compares them; returns the processes they were trained in, and what they left."""
    staying, fresh = Store(tmp_path / "staying"), Store(tmp_path / "fresh")
    processes = trained(staying, cells, alone=False)
    assert len(set(trained(fresh, cells, alone=True))) == len(cells)
    found = [left(staying, one) for one in cells]
    for one, mine in zip(cells, found, strict=True):
        theirs = left(fresh, one)
        for own, other in zip(mine[:3], theirs[:3], strict=True):
            assert own == other
        assert same(mine[3:], theirs[3:])
    return processes, found


def test_cells_of_a_process_that_stays_come_to_the_same_bits(tmp_path: Path) -> None:
    sound = cell()
    cells = [
        cell(model__dropout=0.2),
        cell(trainer__deterministic=True),
        cell(trainer__precision="64-true"),
        cell(trainer__precision="bf16-mixed", model__dropout=0.1),
        cell(optim__lr=1e30, optim__schedule="Constant"),
        sound,
        cell(data__context=24, data__batch_size=5, trainer__detect_anomaly=True),
        cell(seed=1, model__dropout=0.2),
        replace(sound, id="0" * 16, config=override(sound.config, {"model.heads": 3})),
        cell(seed=2, model__dropout=0.2),
    ]
    processes, found = compared(tmp_path, cells)
    assert [one[0]["status"] for one in found] == [*["ok"] * 4, "diverged", "ok", "ok", "ok", "failed", "ok"]
    assert len(set(processes[:9])) == 1
    assert processes[9] != processes[0], "after a failure another process goes on"
    assert sum(one[3] is not None for one in found) == 9


def test_code_of_a_users_own_leaves_nothing_to_the_next_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_parts.py").write_text(OWN)
    parts = ("Loud", 0), ("Quiet", 0), ("Raises", 0), ("Quiet", 1)
    cells = [*(cell(seed, model__mlp=f"own_parts.{name}") for name, seed in parts), cell()]
    processes, found = compared(tmp_path, cells)
    assert [one[0]["status"] for one in found] == ["ok", "ok", "failed", "ok", "ok"]
    said = [one[1].splitlines()[0] for one in (found[0], found[1], found[3])]
    assert len(set(said)) == 1
    assert processes[0] == processes[1] == processes[2]
    assert processes[3] not in processes[:3], "after a failure"
    assert processes[4] not in processes[:4], "what has imported code of a user's own trains no cell without it"
