"""Estimate how long missing cells take, from cells like them or from a few steps, and if their precision pays."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lm.config.fingerprint import code_of
from lm.config.tree import InputError, Tree, override, run_id
from lm.execution.machine import (
    PLAIN,
    REDUCED,
    SLOWER,
    cores,
    device_files,
    flags,
    in_turn,
    slower,
)
from lm.execution.scheduler import Planned
from lm.store.files import read_json
from lm.store.formats import SECONDS, Content
from lm.store.side_files import measure_once
from lm.store.store import Store
from lm.store.user_cache import remember
from lm.store.validation import is_number
from lm.training.identified import Cell
from lm.training.provenance import ENVIRONMENT, cpuinfo, processor

if TYPE_CHECKING:
    from lm.data.batch import Batch

SECONDS_TO_MEASURE, STEPS = 2.0, 20  # of training, after either of which a cell was timed for long enough

# settings of the trainer on which the time of a batch does not depend
OF_LENGTH = ("max_steps", "val_check_interval", "limit_val_batches", "log_every_n_steps")

TIMED = 8  # most arms that a plan times; the others are interpolated


def steps_evaluated(cell: Cell, training: int, full: int) -> int:
    """Return the evaluation batches of a whole run: each validation, and all `full` of the split at the end."""
    settings = cell.config["trainer"]
    limit, every = settings["limit_val_batches"], settings["val_check_interval"]
    quick = full if limit is None else int(limit * full) if isinstance(limit, float) else min(limit, full)
    interval = training if every is None else int(every)
    return training // max(1, interval) * quick + full


def measured_seconds(cell: Cell, threads: int) -> float:
    """Estimate the seconds of a cell by a bare loop over a few of its training and evaluation batches.

    Cells of one shape, whatever their text, seeds, learning rate and length of training, are timed once.
    """
    question = [_shape(cell), describe_machine(), threads]
    step, evaluation, _ = remember("step", question, lambda: step_seconds(cell, threads))
    batches = len(cell.open().data.evaluation_batches("validation"))
    settings = cell.config["trainer"]
    training = settings["max_steps"] * settings["accumulate_grad_batches"]
    return training * step + steps_evaluated(cell, training, batches) * evaluation


def _shape(cell: Cell) -> Tree:
    """Return what the time of a batch depends on; of the text it is the vocabulary, up to a power of two."""
    from lm.training.cell import TEXT

    config, data = cell.config, cell.config["data"]
    return {
        "model": config["model"],
        "code": code_of(config),
        "vocabulary": (cell.facts.vocabulary - 1).bit_length(),
        "data": [data["class_path"], {name: value for name, value in data["init_args"].items() if name not in TEXT}],
        "optim": {name: value for name, value in config["optim"].items() if name not in ("lr", "schedule")},
        "trainer": {name: value for name, value in config["trainer"].items() if name not in OF_LENGTH},
    }


class Loop:
    """Bare loop over a cell's training batches on the processor, in its precision, without compiled code."""

    def __init__(self, cell: Cell) -> None:
        from lm.training.adapter import quiet
        from lm.training.optim import tables
        from lm.training.recorder import Recorder

        built = cell.open()
        self.data, self.objective = built.data, built.run.optim.objective
        with quiet():
            self.trainer = built.run.trainer(Recorder(Path(), self.data))
        self.model = self.trainer.prepared(built.model())
        settings, parameters = cell.config["trainer"], self.model.parameters()
        steps, rate = settings["max_steps"], self.model.map_rate
        self.optimizer, _ = built.run.optim.build(parameters, steps, tables(self.model), rate)
        self.batches = settings["max_steps"] * settings["accumulate_grad_batches"]

    def step(self, batch: "Batch") -> float:
        """Take a step and return its seconds."""
        from lm.training.module import score_predictions, with_extras
        from lm.training.objective import take_extra_losses

        start = time.monotonic()
        with self.trainer.precision_plugin.train_step_context():
            logits_nv = self.model(*batch.inputs).flatten(0, 1)
            loss = self.objective.loss(logits_nv, batch.targets_bt.flatten())
            score_predictions(self.model, self.objective, batch.targets_bt)
        with_extras(loss, take_extra_losses(self.model.modules(), self.objective.extra)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.monotonic() - start


def step_seconds(cell: Cell, threads: int) -> tuple[float, float, int]:
    """Return the seconds of a training batch and of an evaluation batch, and the number of the latter."""
    import torch

    from lm.inference.autotune import as_in_training

    with as_in_training(threads):
        loop = Loop(cell)
        seconds: list[float] = []
        for batch in loop.data.training_batches(0, min(loop.batches, STEPS)):
            seconds.append(loop.step(batch))
            if sum(seconds) > SECONDS_TO_MEASURE and len(seconds) > 1:
                break
        batches = loop.data.evaluation_batches("validation")
        batch = next(iter(batches))
        start = time.monotonic()
        with torch.inference_mode(), loop.trainer.precision_plugin.val_step_context():
            loop.model(*batch.inputs)
        evaluation = time.monotonic() - start
        return sorted(seconds[1:] or seconds)[len(seconds[1:]) // 2], evaluation, len(batches)


class Stopwatch:
    """Seconds of an optimiser step by cell on one thread, cached in a file, so that a plan is reproducible.

    Cells that differ in learning rate and seeds alone take one time, so that an arm has as many steps in each.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, cell: Cell) -> float:
        """Return the seconds of an optimiser step of a cell, timed once. Raises InputError for a damaged file."""
        batches, config = cell.config["trainer"]["accumulate_grad_batches"], cell.config
        question = run_id({**config, "optim": {**config["optim"], "lr": None}, "seed": None, "data_seed": None})

        def measure() -> float:
            """Time a step, unless an older file has it under the cell's id."""
            return _read_seconds(self.path)["seconds"].get(cell.id) or step_seconds(cell, threads=1)[0] * batches

        return float(measure_once(self.path, _read_seconds, "seconds", question, measure))


def _read_seconds(path: Path) -> Content:
    content = read_json(path) if path.is_file() else {}
    if isinstance(content, dict) and "format" not in content:  # the oldest files hold the seconds alone
        content = {"format": 1, "seconds": content}
    content = SECONDS.read(content, path)
    seconds = content.get("seconds")
    if not isinstance(seconds, dict) or not all(is_number(value) and value > 0 for value in seconds.values()):
        raise InputError(f"{path}: is damaged; delete it, and steps are timed anew")
    return content


def seconds_per_cell(
    by_arm: Mapping[str, Sequence[Planned]], missing: Sequence[Planned], store: Store, threads: int
) -> dict[str, float]:
    """Estimate the seconds of a cell of each arm with missing cells, from its finished cells if any."""
    seconds_by_arm: dict[str, float] = {}
    unknown: dict[str, Cell] = {}
    for arm, cell in {p.arm: p.cell for p in reversed(missing)}.items():
        done = [p.cell.id for p in by_arm[arm] if store.finished(p.cell.id)]
        costs = [record["cost"] for record in map(store.record, done) if record["status"] == "ok"]
        if costs:
            seconds = [(c["train_seconds"] or 0.0) + (c["evaluation_seconds"] or 0.0) for c in costs]
            seconds_by_arm[arm] = sum(seconds) / len(seconds)
        else:
            unknown[arm] = cell
    seconds_by_arm |= judged_seconds(unknown, threads)
    for arm in seconds_by_arm:
        left = [1 - p.branched / p.cell.config["trainer"]["max_steps"] for p in missing if p.arm == arm]
        seconds_by_arm[arm] *= sum(left) / len(left)
    return seconds_by_arm


def judged_seconds(cells: Mapping[str, Cell], threads: int) -> dict[str, float]:
    """Time some of the cells once and interpolate the others."""
    if not cells:
        return {}
    question = [[cell.id for cell in cells.values()], describe_machine(), threads]
    seconds = remember("seconds", question, lambda: _interpolated_seconds(list(cells.values()), threads))
    return dict(zip(cells, seconds, strict=True))


def describe_machine() -> list[Any]:
    """Return what times depend on beside the cell, without torch: machine, processor, devices and variables."""
    described, variables = cpuinfo(), {name: os.environ.get(name) for name in ENVIRONMENT}
    return [platform.node(), processor(described), flags(described), cores(), device_files(), variables]


def _interpolated_seconds(cells: Sequence[Cell], threads: int) -> list[float]:
    """Time TIMED of the cells and interpolate the others by their work."""
    from lm.training.cell import sizes

    work = []  # approximate operations of training: six per parameter and token without a count of FLOPs
    for counts, cell in ((sizes(cell), cell) for cell in cells):
        flops = counts.flops_per_token or 6 * counts.parameters
        work.append(flops * counts.tokens_per_step * int(cell.config["trainer"]["max_steps"]))
    timed = np.argsort(work)[np.linspace(0, len(cells) - 1, min(len(cells), TIMED)).round().astype(int)].tolist()
    seconds = [measured_seconds(cells[index], threads) for index in timed]
    estimated = np.interp(work, [work[index] for index in timed], seconds)
    estimated[timed] = seconds
    return estimated.tolist()


def wall_seconds(seconds: list[float], workers: int) -> float:
    """Return the time that `workers` need for cells of these lengths in the given order."""
    free = [0.0] * workers
    for length in seconds:
        soonest = min(range(workers), key=free.__getitem__)
        free[soonest] += length
    return max(free)


def relative_step_time(cell: Cell, threads: int) -> float | None:
    """Return the time of a training step relative to float32, on this processor; None on an accelerator."""
    from lm.inference.autotune import as_in_training

    with as_in_training(threads):
        reduced = Loop(cell)
        if reduced.trainer.strategy.root_device.type != "cpu":
            return None
        plain = Loop(replace(cell, config=override(cell.config, {"trainer.precision": PLAIN})))
        batch = next(iter(reduced.data.training_batches(0, 1)))
        return in_turn(lambda: reduced.step(batch), lambda: plain.step(batch))


def reduced_in(cells: Sequence[Cell]) -> str | None:
    """Return the name of the reduced precision that all cells use, None if there is none."""
    precisions = {str(cell.config["trainer"]["precision"]) for cell in cells}
    return REDUCED.get(precisions.pop()) if len(precisions) == 1 else None


def advice(cells: Sequence[Cell], threads: int) -> str | None:
    """Return a line if the reduced precision of the last cell, the largest of a ladder, does not pay; else None."""
    if (name := reduced_in(cells)) is None:
        return None
    cell = cells[-1]
    ratio = remember("advice", [cell.id, describe_machine(), threads], lambda: relative_step_time(cell, threads))
    if ratio is None or ratio <= SLOWER:
        return None
    return f"{slower(name, ratio)} on this processor: --set trainer.precision={PLAIN}"
