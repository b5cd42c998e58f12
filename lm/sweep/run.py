"""The processes that train the cells of a plan: one a cell, forked from one that has imported all."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lm.results import Store
from lm.sweep.plan import Planned
from lm.trainer import Execution, fail, train, write_work

ATTEMPTS = 2
"""A process killed from outside is started again, from its checkpoint, before the cell counts as failed."""


@dataclass
class Running:
    """A cell being trained."""

    planned: Planned
    process: Any
    pipe: Connection
    slot: int
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    steps: int = 0
    loss: float = float("nan")
    first: tuple[int, float] | None = None
    stopped: bool = False

    def heard(self, step: int, steps: int, loss: float) -> None:
        """Takes in a report of the cell's process."""
        self.step, self.steps, self.loss = step, steps, loss
        if self.first is None:  # a cell taken up from a checkpoint does not begin at step 0
            self.first = step, time.monotonic()

    @property
    def pace(self) -> float | None:
        """Seconds a step, None before there are two reports to compare."""
        if self.first is None or self.step <= self.first[0]:
            return None
        return (time.monotonic() - self.first[1]) / (self.step - self.first[0])


class Watcher:
    """Told what happens; the base class says nothing."""

    def progress(self, running: list[Running], left: int) -> None:
        """Called about once a second and whenever a cell reports."""

    def finished(self, planned: Planned, record: dict[str, Any] | None, seconds: float) -> None:
        """A cell ended; `record` is None where it was interrupted."""

    def settled(self, name: str, outcome: str, cells: int) -> None:
        """Cells need no training."""


class Source:
    """Where cells to train come from, one at a time."""

    def take(self) -> Planned | None:
        """A cell to train; None while there is none before another ends, and for good once none is running."""
        raise NotImplementedError

    def left(self) -> int:
        """How many cells are still to come, as far as is known."""
        raise NotImplementedError

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Told what a validation in training measured; says whether the cell goes on."""
        return True

    def ended(self, planned: Planned, record: dict[str, Any] | None) -> None:
        """Told of a cell's record; `status: pruned` where it was stopped, None where it was interrupted."""


class Listed(Source):
    """Cells that are known beforehand, in their order."""

    def __init__(self, cells: list[Planned]) -> None:
        self.cells = list(cells)

    def take(self) -> Planned | None:
        return self.cells.pop(0) if self.cells else None

    def left(self) -> int:
        return len(self.cells)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerators() -> int:
    """CUDA devices on this machine."""
    import torch

    return torch.cuda.device_count()


def default_workers(cells: int) -> int:
    """One worker per accelerator, or per core where there is none, and no more than there are cells."""
    return max(1, min(cells, accelerators() or cores()))


def threads_each(workers: int) -> int:
    """Threads that each of `workers` may use: what the environment says, up to all cores, or else its share of them.

    Its variables count in the order in which torch heeds them, and of a list the first number.
    """
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first[:9]):
            return min(int(first[:9]), cores())
    return max(1, cores() // workers)


def train_cells(cells: list[Planned], store: Store, workers: int, watcher: Watcher, execution: Execution) -> int:
    """Trains every cell; one that fails does not stop the others. Returns how many were interrupted."""
    return train_from(Listed(cells), store, workers, watcher, execution)


def train_from(source: Source, store: Store, workers: int, watcher: Watcher, execution: Execution) -> int:
    """Trains cells for as long as there are any to take. Returns how many were interrupted."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lm.trainer"])
    again: list[Planned] = []
    attempts: Counter[str] = Counter()
    running: list[Running] = []
    interrupted = 0
    with _children(running):
        while True:
            while len(running) < workers and (planned := again.pop(0) if again else source.take()):
                slot = next(s for s in range(workers) if s not in {r.slot for r in running})
                running.append(_start(context, planned, store, execution, slot))
                attempts[planned.cell.id] += 1
            if not running:
                return interrupted
            _listen(running, source)
            for ended in [r for r in running if not r.process.is_alive()]:
                running.remove(ended)
                killed, record = _end(ended, store, attempts[ended.planned.cell.id])
                if killed:
                    again.append(ended.planned)
                    continue
                interrupted += record is None
                watcher.finished(ended.planned, record, time.monotonic() - ended.started)
                source.ended(ended.planned, record)
            watcher.progress(running, len(again) + source.left())


def _start(context: Any, planned: Planned, store: Store, execution: Execution, slot: int) -> Running:
    work = write_work(planned.cell, store)
    ours, theirs = context.Pipe()
    alone = planned.cell.config["trainer"]["devices"] == 1
    arguments = (work, execution, theirs, slot if alone else None)
    process = context.Process(target=_train_one, args=arguments, name=f"{planned.arm}-{planned.seed}")
    process.start()
    theirs.close()
    return Running(planned, process, ours, slot)


def _listen(running: list[Running], source: Source) -> None:
    sources = {r.pipe: r for r in running if not r.pipe.closed}
    ready = wait([*sources, *(r.process.sentinel for r in running)], timeout=1.0)
    for pipe in ready:
        if isinstance(pipe, Connection):
            one = sources[pipe]
            try:
                kind, *message = pipe.recv()
                if kind == "progress":
                    one.heard(*message)
                    continue
                one.step = max(one.step, message[0])
                goes_on = source.judge(one.planned, *message)
                one.stopped = not goes_on
                pipe.send(goes_on)
            except (EOFError, OSError):
                pipe.close()


def _end(ended: Running, store: Store, attempt: int) -> tuple[bool, dict[str, Any] | None]:
    """Deals with a process that has ended; says whether to start it again, and otherwise the cell's record."""
    ended.process.join()
    ended.pipe.close()
    cell, code = ended.planned.cell, ended.process.exitcode
    if not store.finished(cell.id) and code not in (0, -signal.SIGINT, -signal.SIGTERM):
        if code < 0 and attempt < ATTEMPTS:
            return True, None
        fail(cell, store, _cause(code), seconds=time.monotonic() - ended.started)
    if store.finished(cell.id):
        return False, store.record(cell.id)
    if ended.stopped and code == 0:
        return False, {"status": "pruned", "error": f"stopped after step {ended.step}"}
    return False, None


def _cause(code: int) -> str:
    if code > 0:
        return f"process ended with exit code {code}; log.txt has its last words"
    hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"process killed by {signal.Signals(-code).name}{hint}"


@contextlib.contextmanager
def _children(running: list[Running]) -> Iterator[None]:
    """Ends the processes still running when the block is left, be it by Ctrl-C."""
    try:
        yield
    finally:
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.join(5)
            if one.process.is_alive():
                one.process.kill()


def _train_one(work: Path, execution: Execution, pipe: Connection, slot: int | None) -> None:
    """The body of a cell's process; `slot` chooses its accelerator, None leaves it all of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if slot is not None and (names := accelerators_visible()):
        os.environ["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Lightning starts the other processes of a multi-device cell with this process's command line.
    sys.argv = [str(Path(__file__).with_name("worker.py")), str(work), json.dumps(asdict(execution))]
    sys.modules["__main__"].__spec__ = None

    def report(step: int, steps: int, loss: float) -> None:
        with contextlib.suppress(OSError):
            pipe.send(("progress", step, steps, loss))

    def judge(step: int, measured: Mapping[str, float]) -> bool:
        try:
            pipe.send(("validation", step, measured))
            return bool(pipe.recv())
        except (EOFError, OSError):  # the parent is gone
            os._exit(1)

    train(work, report, execution, judge)


def accelerators_visible() -> list[str]:
    """Names of the CUDA devices this process may use, found without starting CUDA in it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    return [str(index) for index in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]


def _die_with_parent() -> None:
    """Ends this process once the parent is gone: an orphan would hold the cell's lock."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
