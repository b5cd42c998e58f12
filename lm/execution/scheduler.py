"""Queues of cells, the scheduler that has an executor train them, and the receiver of progress and outcomes."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lm.execution.executor import Executor, Job, Message, Outcome, by_process
from lm.execution.signal_handling import ended_by_signals, raise_if_interrupted
from lm.store import locks
from lm.store.leases import LostError
from lm.store.locks import UNKNOWN_HOLDER, BackoffReporter, Holder
from lm.store.record import Ending
from lm.training.identified import Cell
from lm.training.process import Execution

LISTEN_SECONDS = 1.0  # longest time between two reports of progress
LOOK_SECONDS = 2.0  # time between two checks of cells that other processes train


@dataclass(frozen=True)
class Planned:
    """A cell of an arm or a trial; it is `called` experiment/arm/seed on command lines and in loggers.

    `branches` are the cells that can begin from checkpoints of it, with the steps of these; `branched` is the step of
    the one from which it can begin itself.
    """

    arm: str
    seed: int
    cell: Cell
    called: str = ""
    branches: tuple[tuple[int, str], ...] = ()
    branched: int = 0

    @property
    def name(self) -> str:
        """Name of the cell in lines for the user."""
        return f"{self.arm} seed {self.seed}"


class CellQueue:
    """Queue of the cells that the scheduler trains."""

    def pop(self) -> Planned | None:
        """Return a cell to train, None while none is due before another ends, and for good once none runs."""
        raise NotImplementedError

    def remaining(self) -> int:
        """Return the number of cells still to come, as far as it is known."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Read what other processes have done meanwhile; called every few seconds."""

    def blocked_on(self) -> list[str]:
        """Return a line for each process that this one waits for while there is nothing to pop."""
        return []

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Decide from the values of a validation in training whether the cell goes on."""
        return True

    def ended(self, planned: Planned, record: Ending | None) -> None:
        """Take the record of a cell that has ended, `pruned` if it was stopped; None if it was interrupted."""


class StaticQueue(CellQueue):
    """Queue of cells in their order; `manifest` is the file in the folder of their experiment that the report needs."""

    def __init__(self, cells: Sequence[Planned], manifest: Path | None = None) -> None:
        self.cells, self.manifest = deque(cells), manifest

    def pop(self) -> Planned | None:
        """Return the next cell; None where none is left."""
        self.refresh()
        return self.cells.popleft() if self.cells else None

    def remaining(self) -> int:
        """Return the number of cells that are left."""
        return len(self.cells)

    def refresh(self) -> None:
        """Check that the manifest still exists. Raises LostError if it was removed."""
        if self.manifest is not None and not self.manifest.is_file():
            raise LostError(
                f"{self.manifest.parent}: was taken away while its cells were trained ({self.manifest.name} is gone); "
                "training stopped, and the same command trains what is missing"
            )


@dataclass
class Running:
    """A running cell in the lowest slot that was free, with its last step and its training loss in nats a token."""

    planned: Planned
    slot: int
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    steps: int = 0
    loss: float = float("nan")
    first: tuple[int, float] | None = None

    def restart(self) -> None:
        """Reset the progress of a cell that starts, maybe again."""
        self.started, self.first = time.monotonic(), None
        self.step, self.steps, self.loss = 0, 0, float("nan")

    def update(self, step: int, steps: int, loss: float) -> None:
        """Record the progress of the cell."""
        self.step, self.steps, self.loss = step, steps, loss
        if self.first is None:  # a cell taken up from a checkpoint does not begin at step 0
            self.first = step, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the cell was started."""
        return time.monotonic() - self.started

    @property
    def pace(self) -> float | None:
        """Seconds per step, None before there are two reports."""
        if self.first is None or self.step <= self.first[0]:
            return None
        return (time.monotonic() - self.first[1]) / (self.step - self.first[0])


class Watcher:
    """Receiver of progress and outcomes; the base class ignores them."""

    def on_progress(self, running: list[Running], left: int) -> None:
        """Show progress; called about once a second and whenever a cell reports."""

    def on_finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        """Show the outcome of a cell; `record` is None if it was interrupted."""

    def on_settled(self, name: str, outcome: str, cells: int) -> None:
        """Show the outcome of cells that need no training."""

    def on_waiting(self, line: str) -> None:
        """Show a line about a delay. May be called from another thread."""


def train_cells(
    cells: Sequence[Planned], executor: Executor, watcher: Watcher, execution: Execution, manifest: Path | None = None
) -> int:
    """Train every cell; return how many were interrupted. Raises LostError if their `manifest` is removed."""
    held = [holder for planned in cells if (holder := executor.held(planned.cell.id)) is not None]
    for who, count in by_process(held).items():
        are = "cell is" if count == len(cells) == 1 else "is" if count == 1 else "are"
        subject = f"the {are}" if count == len(cells) == 1 else f"{count} of {len(cells)} cells {are}"
        watcher.on_waiting(f"{subject} being trained by {who}; going on with the others")
    queue = StaticQueue(cells, manifest)
    interrupted = run_cells(queue, executor, watcher, execution)
    queue.refresh()  # the last cells may have ended since
    return interrupted


def run_cells(queue: CellQueue, executor: Executor, watcher: Watcher, execution: Execution) -> int:
    """Train cells until the queue is empty; return how many were interrupted. Raises OSError for a failing disk."""
    with ended_by_signals():
        return Scheduler(queue, executor, watcher, execution).run()


class Scheduler:
    """Training of the cells of a queue, here or by other processes."""

    def __init__(self, queue: CellQueue, executor: Executor, watcher: Watcher, execution: Execution) -> None:
        self.queue, self.executor, self.watcher, self.execution = queue, executor, watcher, execution
        self.running: dict[Job, Running] = {}
        # cells that other processes train, with their holders
        self.foreign: dict[str, tuple[Planned, Holder | str]] = {}
        self.released: deque[Planned] = deque()  # cells that other processes have released
        self.last_check = time.monotonic()
        self.patience = BackoffReporter(locks.FIRST_SECONDS)
        self.interrupted = 0
        self.broken: OSError | None = None

    def run(self) -> int:
        """Train all cells and return how many were interrupted."""
        while True:
            raise_if_interrupted()
            if time.monotonic() - self.last_check >= LOOK_SECONDS:
                self._check_foreign()
            self._submit()
            if self.running:
                self.patience.restart()
                for job, message in self.executor.poll(LISTEN_SECONDS):
                    self._handle(job, message)
            elif (self.foreign or self.queue.blocked_on()) and self.broken is None:
                self._wait()
            elif not self.released or self.broken is not None:
                break
            self.watcher.on_progress(list(self.running.values()), self.queue.remaining() + len(self.released))
        if self.broken is not None:
            raise self.broken
        return self.interrupted

    def _submit(self) -> None:
        """Submit cells that no other process trains while there are free slots; released ones come after all others."""
        while self.broken is None and len(self.running) < self.executor.capacity:  # else the next cell would end too
            if (planned := self.queue.pop()) is not None:
                if (holder := self.executor.held(planned.cell.id)) is not None:
                    self.foreign[planned.cell.id] = planned, holder
                    continue
            elif self.released:
                planned = self.released.popleft()
            else:
                return
            execution = replace(self.execution, run_name=planned.called, branches=planned.branches)
            job = self.executor.submit(planned.cell, execution, planned.name)
            busy_slots = {running.slot for running in self.running.values()}
            self.running[job] = Running(planned, min(set(range(len(busy_slots) + 1)) - busy_slots))

    def _check_foreign(self) -> None:
        """Check which cells of other processes are free again."""
        self.queue.refresh()
        for cell, (planned, _) in list(self.foreign.items()):
            if (holder := self.executor.held(cell)) is None:
                del self.foreign[cell]
                self.released.append(planned)
            else:
                self.foreign[cell] = planned, holder
        self.last_check = time.monotonic()

    def _wait(self) -> None:
        """Wait for other processes, and report it if that lasts."""
        time.sleep(min(LISTEN_SECONDS, LOOK_SECONDS, max(0.01, self.patience.left)))
        if self.patience.should_report():
            for who, count in by_process([holder for _, holder in self.foreign.values()]).items():
                self.watcher.on_waiting(f"waiting for {count} cell{'s' * (count > 1)} being trained by {who}")
            for line in self.queue.blocked_on():
                self.watcher.on_waiting(line)

    def _handle(self, job: Job, message: Message) -> None:
        running = self.running[job]
        match message:
            case "started", *_:
                running.restart()
            case "progress", step, steps, loss:
                running.update(step, steps, loss)
            case "validation", step, measured:
                running.step = max(running.step, step)
                self.executor.answer(job, self.queue.judge(running.planned, step, measured))
            case "waiting", line:
                self.watcher.on_waiting(f"{running.planned.name}: {line}")
            case "ended", outcome, step, broken, record:
                del self.running[job]
                if outcome == Outcome.LOCKED_ELSEWHERE.value:
                    cell = job.cell.id
                    self.foreign[cell] = running.planned, self.executor.held(cell) or UNKNOWN_HOLDER
                    return
                if outcome == Outcome.PRUNED.value:  # it has no record on disk
                    record = {"status": "pruned", "error": f"stopped after step {step}"}
                self.broken = self.broken or (OSError(*broken) if broken else None)
                self.interrupted += record is None
                self.watcher.on_finished(running.planned, record, running.seconds)
                self.queue.ended(running.planned, record)
