"""The processes that train the cells of a plan: one a cell, forked from one that has imported all."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
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
    """Threads that each of `workers` may use."""
    return max(1, cores() // workers)


def train_cells(cells: list[Planned], store: Store, workers: int, watcher: Watcher, execution: Execution) -> int:
    """Trains every cell; one that fails does not stop the others. Returns how many were interrupted."""

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lm.trainer"])
    queue, attempts = list(cells), dict.fromkeys([p.cell.id for p in cells], 0)
    running: list[Running] = []
    interrupted = 0
    with _children(running):
        while queue or running:
            while queue and len(running) < workers:
                planned = queue.pop(0)
                slot = next(s for s in range(workers) if s not in {r.slot for r in running})
                work = write_work(planned.cell, store)
                ours, theirs = context.Pipe()
                alone = planned.cell.config["trainer"]["devices"] == 1
                arguments = (work, execution, theirs, slot if alone else None)
                process = context.Process(target=_train_one, args=arguments, name=f"{planned.arm}-{planned.seed}")
                process.start()
                theirs.close()
                attempts[planned.cell.id] += 1
                running.append(Running(planned, process, ours, slot))
            _listen(running)
            for ended in [r for r in running if not r.process.is_alive()]:
                running.remove(ended)
                again, lost = _end(ended, store, attempts[ended.planned.cell.id], watcher)
                queue[:0] = [ended.planned] if again else []
                interrupted += lost
            watcher.progress(running, len(queue))
    return interrupted


def _listen(running: list[Running]) -> None:
    sources = {r.pipe: r for r in running if not r.pipe.closed}
    ready = wait([*sources, *(r.process.sentinel for r in running)], timeout=1.0)
    for source in ready:
        if isinstance(source, Connection):
            one = sources[source]
            try:
                one.heard(*source.recv())
            except (EOFError, OSError):
                source.close()


def _end(ended: Running, store: Store, attempt: int, watcher: Watcher) -> tuple[bool, int]:
    """Deals with a process that has ended; says whether to start it again, and how many cells were interrupted."""
    ended.process.join()
    ended.pipe.close()
    cell, code = ended.planned.cell, ended.process.exitcode
    if not store.finished(cell.id) and code not in (0, -signal.SIGINT, -signal.SIGTERM):
        if code < 0 and attempt < ATTEMPTS:
            return True, 0
        fail(cell, store, _cause(code), seconds=time.monotonic() - ended.started)
    record = store.record(cell.id) if store.finished(cell.id) else None
    watcher.finished(ended.planned, record, time.monotonic() - ended.started)
    return False, int(record is None)


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
    threading.Thread(target=_die_with, args=(pipe,), daemon=True).start()
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
            pipe.send((step, steps, loss))

    train(work, report, execution)


def accelerators_visible() -> list[str]:
    """Names of the CUDA devices this process may use, found without starting CUDA in it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    return [str(index) for index in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]


def _die_with(pipe: Connection) -> None:
    """Ends this process once the parent is gone: an orphan would hold the cell's lock."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)
