"""The loop between a queue of cells and an executor: hands cells over, answers, tells, and hands outcomes back."""

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lm.execution.cell_queue import CellQueue, ExperimentQueue, Planned, StaticQueue
from lm.execution.executor import Ended, Event, Executor, Handle, Outcome, Progress, Started, Validation, Waiting
from lm.execution.foreign_cells import by_process
from lm.execution.interrupts import deferred_interrupts, raise_if_interrupted
from lm.execution.watcher import Running, Watcher
from lm.store import locks
from lm.store.holders import NAMELESS, Holder
from lm.store.locks import Patience
from lm.store.record import Ending
from lm.training.train import Execution

LISTEN_SECONDS = 1.0
"""At most, between two reports of progress."""

LOOK_SECONDS = 2.0
"""Between two looks at cells that others train."""


@dataclass(frozen=True)
class Clock:
    """Where the loop has its time from.

    Args:
        now: seconds that have gone by, since any moment.
        sleep: lets so many seconds go by.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def train_cells(
    cells: Sequence[Planned], executor: Executor, watcher: Watcher, execution: Execution, manifest: Path | None = None
) -> int:
    """Trains every cell; one that fails does not stop the others. Returns how many were interrupted.

    Raises:
        LostError: where somebody takes the `manifest` of their experiment away; no cell is begun after that.
    """
    held = [holder for planned in cells if (holder := executor.held(planned.cell.id)) is not None]
    for who, count in by_process(held).items():
        are = "cell is" if count == len(cells) == 1 else "is" if count == 1 else "are"
        of = f"the {are}" if count == len(cells) == 1 else f"{count} of {len(cells)} cells {are}"
        watcher.waiting(f"{of} being trained by {who}; going on with the others")
    queue = StaticQueue(list(cells)) if manifest is None else ExperimentQueue(list(cells), manifest)
    interrupted = run_cells(queue, executor, watcher, execution)
    queue.refresh()  # the last cells may have ended since
    return interrupted


def run_cells(
    queue: CellQueue, executor: Executor, watcher: Watcher, execution: Execution, clock: Clock | None = None
) -> int:
    """Trains cells for as long as there are any to take. Returns how many were interrupted.

    Args:
        queue: of the cells.
        executor: that trains them.
        watcher: who is told.
        execution: how they are trained.
        clock: another than this machine's, for a simulation.

    Raises:
        OSError: where a disk that is full or fails keeps cells from being trained, once no cell is in training any
            more.
        KeyboardInterrupt: at Ctrl-C, though something may have swallowed the first one that was raised.
    """
    with deferred_interrupts():
        return Scheduler(queue, executor, watcher, execution, clock or Clock(time.monotonic, time.sleep)).done()


class Scheduler:
    """The cells of a queue that are being trained, here or by others."""

    def __init__(
        self, queue: CellQueue, executor: Executor, watcher: Watcher, execution: Execution, clock: Clock
    ) -> None:
        self.clock = clock
        self.queue, self.executor, self.watcher, self.execution = queue, executor, watcher, execution
        self.running: dict[Handle, Running] = {}
        self.places = list(range(executor.capacity))
        """Those that are free, a heap: a search among all that run would be one for each of a thousand workers."""
        self.foreign: dict[str, tuple[Planned, Holder | str]] = {}
        """Cells that others train, with who does."""
        self.freed: deque[Planned] = deque()
        """Those of them that may be handed over now."""
        self.looked = clock.now()
        self.patience = Patience(locks.FIRST_SECONDS, clock.now)
        self.interrupted = 0
        self.broken: OSError | None = None

    def done(self) -> int:
        """Trains all there is to train; returns how many cells were interrupted."""
        while True:
            raise_if_interrupted()
            self._look()
            self._hand_over()
            if self.running:
                self.patience.restart()
                for event in self.executor.poll(LISTEN_SECONDS):
                    self._take_in(event)
            elif (self.foreign or self.queue.blocked_on()) and self.broken is None:
                self._wait()
            elif not self.freed or self.broken is not None:
                break
            self.watcher.progress(list(self.running.values()), self.queue.remaining() + len(self.freed))
        if self.broken is not None:
            raise self.broken
        return self.interrupted

    def _hand_over(self) -> None:
        while (
            self.broken is None  # the next cell would end there too
            and len(self.running) < self.executor.capacity
            and (planned := self._next())
        ):
            execution = replace(self.execution, called=planned.called)
            handle = self.executor.submit(planned.cell, execution, planned.name)
            self.running[handle] = Running(planned, heapq.heappop(self.places), self.clock.now(), now=self.clock.now)

    def _next(self) -> Planned | None:
        """A cell that nobody else trains; those that somebody did come after all others."""
        while (planned := self.queue.pop()) is not None:
            if (holder := self.executor.held(planned.cell.id)) is None:
                return planned
            self.foreign[planned.cell.id] = planned, holder
        return self.freed.popleft() if self.freed else None

    def _look(self) -> None:
        """Sees now and then which of the cells that others train are free: finished, let go of, or left."""
        if self.clock.now() - self.looked < LOOK_SECONDS:
            return
        self.queue.refresh()
        for cell, (planned, _) in list(self.foreign.items()):
            if (holder := self.executor.held(cell)) is None:
                del self.foreign[cell]
                self.freed.append(planned)
            else:
                self.foreign[cell] = planned, holder
        self.looked = self.clock.now()

    def _wait(self) -> None:
        """Lets time pass until others have trained what is left; says so where that lasts."""
        self.clock.sleep(min(LISTEN_SECONDS, LOOK_SECONDS, max(0.01, self.patience.left)))
        if self.patience.spent():
            for who, count in by_process([holder for _, holder in self.foreign.values()]).items():
                self.watcher.waiting(f"waiting for {count} cell{'s' * (count > 1)} being trained by {who}")
            for line in self.queue.blocked_on():
                self.watcher.waiting(line)

    def _take_in(self, event: Event) -> None:
        one = self.running[event.handle]
        match event:
            case Started():
                one.begin()
            case Progress():
                one.heard(event.step, event.steps, event.loss)
            case Validation():
                one.step = max(one.step, event.step)
                event.answer(self.queue.judge(one.planned, event.step, event.measured))
            case Waiting():
                self.watcher.waiting(f"{one.planned.name}: {event.line}")
            case Ended(outcome=Outcome.LOCKED_ELSEWHERE):
                self._left(event.handle)
                self.executor.result(event.handle)
                self.foreign[event.handle.cell] = one.planned, self.executor.held(event.handle.cell) or NAMELESS
            case Ended():
                self._left(event.handle)
                self.broken = self.broken or event.broken
                record = self._left_by(event)
                self.interrupted += record is None
                self.watcher.finished(one.planned, record, one.seconds)
                self.queue.ended(one.planned, record)

    def _left(self, handle: Handle) -> None:
        heapq.heappush(self.places, self.running.pop(handle).place)

    def _left_by(self, event: Ended) -> Ending | None:
        """What the cell left; a pruned one has no record."""
        record = self.executor.result(event.handle)
        if event.outcome is Outcome.PRUNED:
            return {"status": "pruned", "error": f"stopped after step {event.step}"}
        return record
