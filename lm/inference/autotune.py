"""Choose settings that are `auto`: implementations of the same cells are timed before any is trained.

A choice holds for a whole experiment and is stored in the results folder, so that the same command plans the same
cells, on another machine too. Other results folders of a user take it from the cache where sizes, processor, threads
and versions are the same.
"""

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from lm.config.components import build
from lm.config.tree import InputError, Tree, override, run_id
from lm.model.attention import SoftmaxAttention
from lm.model.attention_impl import BLOCK
from lm.model.position import Position
from lm.model.transformer import Model
from lm.store.side_files import WAYS_FILE, measure_once, read_cached
from lm.store.user_cache import remember
from lm.training.adapter import quiet, to_device
from lm.training.cell import check
from lm.training.identified import AUTO, Cell, auto_settings_requested, seedless
from lm.training.module import compile_in_place
from lm.training.optim import tables
from lm.training.process import keep_freed_memory
from lm.training.provenance import cpuinfo, device_name, processor
from lm.training.recorder import Recorder
from lm.training.run import RunConfig

STEPS, SECONDS = 9, 5.0  # steps over which each choice is timed, or fewer where all take longer than so many seconds
HOPELESS = 3.0  # step after the first, relative to that of the plainest choice, above which a choice is given up
WORTH_COMPILING = 1.5  # step of a precision, relative to the fastest, up to which it is compiled too
# of training, in all and for each shape, below which compiled code is not timed: compiling takes some 20
MIN_TRAINING_SECONDS = 300.0
MIN_SPEEDUP = 1.03  # speed, relative to a plainer choice, from which another is preferred
Settings = dict[str, Any]  # values of settings of the trainer, by name


@dataclass(frozen=True)
class Decision:
    """Values chosen for settings that are `auto`."""

    chosen: Settings  # for each setting that was `auto`
    # each choice that was timed, with the milliseconds of a training step, and the seconds that compiled code took
    measured: list[dict[str, Any]]
    device: str  # on which
    threads: int  # of the process


def replace_auto_settings(
    tree: Tree, out: Path, threads: int, steps: int | None = None, shapes: int = 1
) -> tuple[Tree, Decision | None]:
    """Return the configuration with each `auto` replaced, and the decision; None where nothing is `auto`.

    The results folder `out` stores decisions. Code is compiled where that saves more time than it takes, over `steps`
    one after the other, by default those of one run, and as many `shapes` of cells. Raises InputError for what cannot
    be trained, or a damaged file.
    """
    names = auto_settings_requested(tree)
    if not names:
        return tree, None
    cell = check(override(tree, {f"trainer.{name}": AUTO[name][0] for name in names}))
    trainer = {**cell.config["trainer"], **dict.fromkeys(names, "auto")}
    question = run_id({**seedless(cell.config), "trainer": trainer, "text": cell.facts.identity()})
    path = out / WAYS_FILE

    count = steps or trainer["max_steps"]

    def measure() -> dict[str, Any]:
        with as_in_training(threads):
            chosen, measured = _Timing(cell, names).decide(count, shapes)
        return asdict(Decision(chosen, measured, device_name(), threads))

    machine = [device_name(), processor(cpuinfo()), threads]
    sizes = [cell.config["model"], cell.config["optim"], cell.facts.vocabulary, batch_sizes(cell.config)]
    shape = [*machine, *sizes, trainer, count, shapes]
    stored = measure_once(path, read_cached, "decisions", question, lambda: remember("ways", shape, measure))
    try:
        decision = Decision(**stored)
        chosen = {f"trainer.{name}": decision.chosen[name] for name in names}
    except (TypeError, KeyError):
        raise InputError(f"{path}: decisions.{question[:12]}: is damaged; delete it, and it is measured anew") from None
    return override(tree, chosen), decision


def batch_sizes(config: Tree) -> Any:
    """Return the options of a configuration's data that have to do with the size of a batch."""
    data = config["data"]
    return [data["class_path"], {name: x for name, x in data["init_args"].items() if name not in ("corpus", "split")}]


@contextlib.contextmanager
def as_in_training(count: int) -> Iterator[None]:
    """Let torch use a number of threads inside, and keep freed memory, as the process of a cell does."""
    before = torch.get_num_threads()
    keep_freed_memory()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(step: Callable[[], None]) -> float:
    """Return the seconds that a step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


class _Timing:
    """Training steps of a cell under several settings, timed in turn in this process, on one model of each kind."""

    def __init__(self, cell: Cell, names: list[str]) -> None:
        self.cell, self.names = cell, names
        self.built = cell.open()
        trainer = cell.config["trainer"]
        batches = trainer["max_steps"] * trainer["accumulate_grad_batches"]
        self.batch = next(iter(self.built.data.training_batches(batches - 1, batches)))  # the first may be smaller
        self.compiled_in: dict[str, float] = {}

    def decide(self, steps: int, shapes: int) -> tuple[Settings, list[dict[str, Any]]]:
        """Return the best settings and all measurements; the best of each precision is timed compiled too."""
        timed = self._timed(self._choices(), self._trained())
        fastest = min(seconds for _, seconds in timed)
        # The plainest of those as fast:
        best, best_seconds = next(choice for choice in timed if choice[1] <= fastest * MIN_SPEEDUP)
        measured = [{"way": settings, "milliseconds": 1e3 * seconds} for settings, seconds in timed]
        if "compile" in self.names and best_seconds * steps > MIN_TRAINING_SECONDS * shapes:
            slowest_first = sorted((x for x in timed if x[1] <= fastest * WORTH_COMPILING), key=lambda pair: -pair[1])
            by_precision = {settings.get("precision"): {**settings, "compile": True} for settings, _ in slowest_first}
            for settings, seconds in self._timed(list(by_precision.values()), self._trained()):
                compile_seconds = self.compiled_in[repr(settings)]
                measured.append({"way": settings, "milliseconds": 1e3 * seconds, "compiled_in": compile_seconds})
                saved = (best_seconds - seconds) * steps
                if seconds * MIN_SPEEDUP < best_seconds and saved > compile_seconds * shapes:
                    best, best_seconds = settings, seconds
        return best, measured

    def _choices(self) -> list[Settings]:
        """Return all settings that `auto` may become here except compiled code, the plainest first."""
        options = {name: list(AUTO[name]) for name in self.names} | {"compile": [False]}
        with torch.device("meta"):
            model = self.built.run.model(self.cell.facts.vocabulary, self.built.data.context)
        parts = list(model.modules())
        is_softmax = any(isinstance(part, SoftmaxAttention) for part in parts)
        distinct = {  # from plainer implementations, for this model
            "sdpa": True,
            "plain": is_softmax,
            "folded": is_softmax and any(isinstance(part, Position) and part.slopes() is not None for part in parts),
            "blocked": is_softmax and self.built.data.context > BLOCK,
            "flex": is_softmax and self._trainer({}).strategy.root_device.type == "cuda",
        }
        options["attention"] = [name for name in AUTO["attention"] if distinct[name]]
        values = itertools.product(*(options[name] for name in self.names))
        return [dict(zip(self.names, combination, strict=True)) for combination in values]

    def _trained(self) -> tuple[Model, Optimizer]:
        """Build a model on its device, with its optimizer."""
        run = self.built.run
        trainer = self._trainer({})
        model = self.built.model()
        trainer.precision_plugin.convert_module(model)
        model.to(trainer.strategy.root_device).train()
        steps = self.cell.config["trainer"]["max_steps"]
        optimizer, _ = run.optim.build(model.parameters(), steps, tables(model), model.map_rate)
        return model, optimizer

    def _trainer(self, settings: Settings) -> Any:
        """Return Lightning's trainer with these settings."""
        changes = {f"trainer.{name}": value for name, value in settings.items()}
        run: RunConfig = build(override(self.cell.config, changes), RunConfig)
        with quiet():
            return run.trainer(Recorder(Path(), self.built.data))

    def _timed(self, choices: list[Settings], trained: tuple[Model, Optimizer]) -> list[tuple[Settings, float]]:
        """Return the settings that are available here, with the median seconds of a step of each, taken in turn.

        A hopeless choice is timed once; those that follow in a precision whose plainest is hopeless are left out.
        """
        timed = list[tuple[Settings, Callable[[], None], list[float]]]()
        plainest: dict[Any, float] = {}  # seconds of the first choice of each precision
        for settings in choices:
            precision = settings.get("precision")
            limit = HOPELESS * timed[0][2][0] if timed else math.inf
            if plainest.get(precision, 0.0) > limit or (step := self._step(settings, *trained)) is None:
                continue
            timed.append((settings, step, [seconds_of(step)]))
            plainest.setdefault(precision, timed[-1][2][0])
        going_on = [(step, seconds) for _, step, seconds in timed if seconds[0] <= HOPELESS * timed[0][2][0]]
        for _ in range(STEPS - 1):
            for step, seconds in going_on:
                if sum(seconds) < SECONDS / len(going_on):
                    seconds.append(seconds_of(step))
        return [(settings, statistics.median(seconds)) for settings, _, seconds in timed]

    def _step(self, settings: Settings, model: Model, optimizer: Optimizer) -> Callable[[], None] | None:
        """Return a training step with these settings, run once; None where it is not available here."""
        trainer = self._trainer(settings)
        batch = to_device(trainer, self.batch)
        objective = self.built.run.optim.objective

        def step() -> None:
            trainer.prepared(model)
            with trainer.precision_plugin.train_step_context():
                logits_nv = model(*batch.inputs).flatten(0, 1)
                loss = objective.loss(logits_nv, batch.targets_bt.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if logits_nv.is_cuda:
                torch.cuda.synchronize()

        start = time.perf_counter()
        if not settings.get("compile"):
            try:
                step()
            except RuntimeError:  # a kernel that this processor does not have
                if settings == self._choices()[0]:
                    raise
                return None
        elif compile_in_place(model, "auto", step) is not None:
            return None
        self.compiled_in[repr(settings)] = time.perf_counter() - start
        return step
