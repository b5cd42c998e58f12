"""What `auto` comes to: ways of computing the same cells, timed before any is trained, and the choice kept with them.

A choice holds for a whole experiment and is found again in the results folder, so that giving the command again, on
another machine too, asks for the same cells.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from lm.config.components import build
from lm.config.tree import InputError, Tree, override, run_id
from lm.model.attention import SoftmaxAttention, attending
from lm.model.mixing import BLOCK
from lm.model.position import Position
from lm.model.transformer import Model
from lm.store.side_files import WAYS_FILE, measure_once
from lm.training.adapter import convert, device_of, placed, quiet, stepping
from lm.training.cell import Cell, check, seedless
from lm.training.compiled import compile_blocks
from lm.training.optim import tables
from lm.training.provenance import device_name
from lm.training.recorder import Recorder
from lm.training.run import AUTO, Run

STEPS, SECONDS = 9, 4.0
"""Each way is timed over so many steps, or fewer where they take longer than that."""

COMPILING = 10.0
"""Seconds of training, in all, below which code is not compiled to try it: the first time that takes longer."""

WORTH = 1.03
"""Times as fast another way must be than a plainer one to be taken in its place."""

Way = dict[str, Any]


@dataclass(frozen=True)
class Decision:
    """What `auto` came to.

    Args:
        chosen: for each setting that was `auto`.
        measured: each way that was timed, with the milliseconds of a training step, and for compiled code the seconds
            that it took to make.
        device: on which.
        threads: of the process.
    """

    chosen: Way
    measured: list[dict[str, Any]]
    device: str
    threads: int


def asked(tree: Mapping[str, Any]) -> list[str]:
    """The settings of a configuration that are `auto`."""
    trainer = tree.get("trainer")
    return [name for name in AUTO if isinstance(trainer, Mapping) and trainer.get(name) == "auto"]


def decided(
    tree: Tree, out: Path, threads: int, steps: int | None = None, shapes: int = 1
) -> tuple[Tree, Decision | None]:
    """The configuration with each `auto` replaced, and the decision; None where nothing is `auto`.

    Args:
        tree: of the baseline.
        out: the results folder, which keeps decisions.
        threads: of a process that trains.
        steps: optimiser steps that are to be trained one after the other; by default those of one run. Code is
            compiled where that saves more time than it takes.
        shapes: kinds of cells for which code would be compiled.

    Raises:
        InputError: where the configuration cannot be trained, or the file of decisions cannot be read.
    """
    names = asked(tree)
    if not names:
        return tree, None
    plain = override(tree, {f"trainer.{name}": AUTO[name][0] for name in names})
    cell = check(plain)
    trainer = {**cell.config["trainer"], **dict.fromkeys(names, "auto")}
    question = run_id({**seedless(cell.config), "trainer": trainer, "text": cell.facts.identity()})
    path = out / WAYS_FILE

    def measure() -> dict[str, Any]:
        with threads_of(threads):
            chosen, measured = _Timing(cell, names).decide(steps or trainer["max_steps"], shapes)
        return asdict(Decision(chosen, measured, device_name(), threads))

    known = measure_once(path, "decisions", question, measure)
    try:
        decision = Decision(**known)
        chosen = {f"trainer.{name}": decision.chosen[name] for name in names}
    except (TypeError, KeyError):
        raise InputError(f"{path}: decisions.{question[:12]}: is damaged; delete it, and it is measured anew") from None
    return override(tree, chosen), decision


@contextlib.contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Torch uses so many threads within."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Timing:
    """Ways of training a cell, timed in turn in this process, on one model as it is written and one compiled."""

    def __init__(self, cell: Cell, names: list[str]) -> None:
        self.cell, self.names = cell, names
        self.built = cell.open()
        self.batch = next(iter(self.built.data.training_batches(0, 1)))
        self.compiled_in: dict[str, float] = {}

    def decide(self, steps: int, shapes: int) -> tuple[Way, list[dict[str, Any]]]:
        """Times every way as it is written, then the best of each precision compiled too, where all of the training
        takes longer than compiling may; returns the choice, and all that was timed."""
        timed = self._timed(self._ways(), self._trained())
        least = min(seconds for _, seconds in timed)
        best = next(one for one in timed if one[1] <= least * WORTH)  # the plainest of those as fast
        measured = [{"way": way, "milliseconds": 1e3 * seconds} for way, seconds in timed]
        if "compile" in self.names and best[1] * steps > COMPILING * shapes:
            slowest_first = sorted(timed, key=lambda one: -one[1])
            fastest = {way.get("precision"): {**way, "compile": True} for way, _ in slowest_first}
            for way, seconds in self._timed(list(fastest.values()), self._trained()):
                took = self.compiled_in[repr(way)]
                measured.append({"way": way, "milliseconds": 1e3 * seconds, "compiled_in": took})
                if seconds * WORTH < best[1] and (best[1] - seconds) * steps > took * shapes:
                    best = way, seconds
        return best[0], measured

    def _ways(self) -> list[Way]:
        """All that `auto` may come to here but for compiled code, the plainest first."""
        options = {name: list(AUTO[name]) for name in self.names} | {"compile": [False]}
        with torch.device("meta"):
            model = self.built.run.model(self.cell.facts.vocabulary, self.built.data.context)
        options["attention"] = [way for way in AUTO["attention"] if self._differs(way, model)]
        asked = [options[name] for name in self.names]
        return [dict(zip(self.names, values, strict=True)) for values in itertools.product(*asked)]

    def _differs(self, way: str, model: Model) -> bool:
        """Whether a way of attention is another than a plainer one for this model, here."""
        if not any(isinstance(module, SoftmaxAttention) for module in model.modules()):
            return way == "sdpa"
        if way == "folded":
            return any(isinstance(part, Position) and part.slopes() is not None for part in model.modules())
        if way == "blocked":
            return self.built.data.context > BLOCK
        return way != "flex" or device_of(self._trainer({})).type == "cuda"

    def _trained(self) -> tuple[Model, Optimizer]:
        """A model on its device, and what makes its steps."""
        run = self.built.run
        trainer = self._trainer({})
        model = self.built.model()
        convert(trainer, model)
        model.to(device_of(trainer)).train()
        optimizer, _ = run.optim.build(
            model.parameters(), self.cell.config["trainer"]["max_steps"], tables(model), model.map_rate
        )
        return model, optimizer

    def _trainer(self, way: Way) -> Any:
        """Lightning's trainer of this way."""
        changes = {f"trainer.{name}": value for name, value in way.items()}
        run: Run = build(override(self.cell.config, changes), Run)
        with quiet():
            return run.trainer(Recorder(Path(), self.built.data, lambda *_: None, 0.0))

    def _timed(self, ways: list[Way], trained: tuple[Model, Optimizer]) -> list[tuple[Way, float]]:
        """The ways that can be had, with the median seconds of a step of each, taken in turn."""
        made = [(way, step) for way in ways if (step := self._step(way, *trained)) is not None]
        taken: list[list[float]] = [[] for _ in made]
        for _ in range(STEPS):
            for (_, step), seconds in zip(made, taken, strict=True):
                if sum(seconds) < SECONDS:
                    start = time.perf_counter()
                    step()
                    seconds.append(time.perf_counter() - start)
        return [(way, statistics.median(seconds)) for (way, _), seconds in zip(made, taken, strict=True)]

    def _step(self, way: Way, model: Model, optimizer: Optimizer) -> Callable[[], None] | None:
        """A training step in this way, tried once; None where it cannot be had."""
        trainer = self._trainer(way)
        batch = placed(trainer, self.batch)
        objective = self.built.run.optim.objective

        def step() -> None:
            attending(model, trainer.attention)
            with stepping(trainer):
                logits_nv = model(*batch.inputs).flatten(0, 1)
                loss = objective.loss(logits_nv, batch.targets_bt.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if logits_nv.is_cuda:
                torch.cuda.synchronize()

        start = time.perf_counter()
        if not way.get("compile"):
            try:
                step()
            except RuntimeError:  # a kernel that this processor does not have
                if way == self._ways()[0]:
                    raise
                return None
        elif compile_blocks(model, "auto", step) is not None:
            return None
        self.compiled_in[repr(way)] = time.perf_counter() - start
        return step
