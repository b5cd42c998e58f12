"""Interface of the executors that train cells: cells are submitted, events are returned.

How and where a cell is trained is up to an executor. `lm/execution/local.py` uses processes of this machine; another
executor is another class, and an entry in `lm/execution/factory.py`.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Self

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.execution.machine import threads_each
from lm.store.leases import Holder, LeaseMonitor
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Record
from lm.store.store import Store
from lm.training.identified import Cell
from lm.training.process import Execution


@dataclass(frozen=True)
class Handle:
    """A submitted cell, by its id and its name in lines for the user; submitted again, it has another number."""

    number: int
    cell: str
    name: str


class Outcome(Enum):
    """Outcome of a submitted cell; each cell ends in exactly one, once."""

    RECORDED = "recorded"  # it has a record: of a run that went well, diverged, or raised an exception
    PRUNED = "pruned"  # The answer to a validation stopped it. It leaves no files.
    # it has no new record and resumes from its last checkpoint when submitted again: it was cancelled, its disk
    # is full, or its process ended too often
    INTERRUPTED = "interrupted"
    LOCKED_ELSEWHERE = "held"  # Another process trains it. It can be submitted again once `held` returns None.
    LOST = "given up"  # The process was ended from outside too often, or ended without a message. Its record says so.


@dataclass(frozen=True)
class Started:
    """Training has started, from the last checkpoint if there is one; sent again after a restart."""

    handle: Handle


@dataclass(frozen=True)
class Progress:
    """The cell has taken `step` of its `steps` optimiser steps; `loss` is the training loss in nats a token."""

    handle: Handle
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class Validation:
    """The cell was validated after `step` optimiser steps, and waits for an `answer`: whether it goes on.

    An answer to a cell that has been killed since is lost without harm: started again, it may ask again.
    """

    handle: Handle
    step: int
    measured: Mapping[str, float]
    answer: Callable[[bool], None] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Waiting:
    """Line for the user: why the cell waits, or why it is silent."""

    handle: Handle
    line: str


@dataclass(frozen=True)
class Ended:
    """The cell has ended after `step`, its last event; `broken` is the error of the disk that stopped it, if any."""

    handle: Handle
    outcome: Outcome
    step: int = 0
    broken: OSError | None = None


Event = Started | Progress | Validation | Waiting | Ended


ATTEMPTS = 2  # attempts at a cell whose process or machine is lost, each from the last checkpoint, until it has failed
CANCEL = "cancel"  # answer that asks what trains a cell to end it; others say whether a cell goes on after a validation
# message of what trains a cell, as JSON values: `started`; `progress` with step, steps and loss; `validation` with
# step and measured values; `waiting` with a line; from another machine `ended` with outcome, last step and disk error
# (number, text and file, or None)
Message = Sequence[Any]


@dataclass(eq=False)
class Job:
    """A submitted cell, with its last step, its lost processes or machines, and times by the monotonic clock."""

    handle: Handle
    cell: Cell
    execution: Execution
    submitted: float = field(default_factory=time.monotonic)
    step: int = 0
    awaits_answer: bool = False
    losses: int = 0
    cancelled: float | None = None


class Executor(ABC):
    """Trainer of several cells at a time into a store.

    - **A submitted cell ends once**, in one `Outcome`, whatever happens to its process.
    - **A kill loses nothing.** If the training process, its parent, this process or the machine is killed, the cell
      resumes from its last checkpoint and comes to the same numbers. The executor restarts a killed cell a few times
      before the cell counts as lost.
    - **The trainer of a cell holds its lock** (`Store.lock`) from before it checks for a record until the record is
      written, so executors that share a store train each cell once. A second executor does not wait for the lock; it
      gets the record when the cell is submitted again. The submitting process holds no lock, except for cells on
      machines that do not see the store. It takes the lock to record a lost cell, unless another process holds it.
    - **An exception in training is a result**: a record with `status: failed`.
    - **Events of one cell are in order**: `Started` before all but `Waiting`, `Ended` last, a `Validation` after the
      progress that led to it. Events of different cells have no order.

    All methods and `Validation.answer` are called by one thread. Use it as a context manager.

    Args:
        store: where the cells are trained into.
        capacity: largest number of cells that are submitted and have not ended.
        say: called, possibly in another thread, with a line when the submission of a cell is delayed.
        options: values of `options` by name.
    """

    # options after the name of the executor on a command line, each with the value that it expects
    options: ClassVar[Mapping[str, str]] = {}
    package: ClassVar[str | None] = None  # package that it needs, which the extra of the executor's name installs
    no_loggers: ClassVar[str] = ""  # reason why loggers cannot follow the runs; empty if they can

    def __init__(
        self, store: Store, capacity: int, say: LogLine = to_stderr, options: Mapping[str, str] | None = None
    ) -> None:
        self.store, self.capacity, self.say, self.settings = store, capacity, say, dict(options or {})
        self.watches: dict[str, LeaseMonitor] = {}
        self.numbers = itertools.count()
        self.jobs: dict[Handle, Any] = {}
        self.records: dict[Handle, Record | None] = {}
        self.events: list[Event] = []

    @classmethod
    def packages(cls, options: Mapping[str, str]) -> list[str]:
        """Return the packages that these options need."""
        return [cls.package] if cls.package else []

    @classmethod  # noqa: B027
    def check_options(cls, options: Mapping[str, str], where: str) -> None:
        """Check the values of the options. Raises InputError, which begins with `where`."""

    @classmethod  # noqa: B027
    def check_reachable(cls, options: Mapping[str, str], where: str) -> None:
        """Check that the machines can be reached, within seconds. Raises InputError."""

    @classmethod
    def threads_each(cls, options: Mapping[str, str], workers: int) -> int:
        """Return the threads of a cell with `workers` at a time; on other machines those of the environment, or one."""
        return threads_each(workers)

    @classmethod
    def default_capacity(cls, options: Mapping[str, str], cells: int, search: bool) -> int | None:
        """Return how many cells are trained at a time, None if this machine decides. Raises InputError."""
        return None

    # called by the scheduler

    def submit(self, cell: Cell, execution: Execution, name: str) -> Handle:
        """Submit a cell that is not submitted here, without waiting for a cell or for a lock.

        It may wait seconds for a process to start, and calls `say` if that takes longer. A cell that is recorded
        already ends as recorded, unless `execution` has failures trained again. Raises RuntimeError if `capacity` cells
        are submitted and have not ended, and InputError if no process can be started.
        """
        if len(self.jobs) >= self.capacity:
            raise RuntimeError(f"{name}: {self.capacity} cells are being trained, as many as may be")
        handle = Handle(next(self.numbers), cell.id, name)
        self.jobs[handle] = self._start(handle, cell, execution)
        return handle

    def poll(self, timeout: float) -> Sequence[Event]:
        """Return the events since the last call; wait at most `timeout` seconds for one, if a cell is submitted.

        Raises InputError if a process cannot be started again, or a record cannot be read.
        """
        if self.jobs:
            self._listen(0.0 if self.events else timeout)
        events, self.events = self.events, []
        return events

    def cancel(self, handle: Handle) -> None:
        """Ask a cell to end, without waiting: it ends as interrupted, or as it was about to end, or is killed."""
        if (job := self.jobs.get(handle)) is not None and job.cancelled is None:
            job.cancelled = time.monotonic()
            self._send(job, CANCEL)

    def held(self, cell: str) -> Holder | str | None:
        """Return the process that trains a cell, if any; call it periodically, as it watches heartbeats."""
        holder = self.store.watched(cell, self.watches.setdefault(cell, LeaseMonitor()))
        if holder is None:
            del self.watches[cell]
        return holder

    def result(self, handle: Handle) -> Record | None:
        """Return a cell's record, once after its `Ended`; None if it has no new one. Raises KeyError."""
        return self.records.pop(handle)

    @abstractmethod
    def close(self) -> None:
        """End all training within seconds; cells can be resumed. No events follow, and a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # implemented by each executor, with the calls below

    @abstractmethod
    def _start(self, handle: Handle, cell: Cell, execution: Execution) -> Job:
        """Start a cell, or queue it, and return its job."""

    @abstractmethod
    def _listen(self, seconds: float) -> None:
        """Wait for messages and ends, at most so long, and handle them."""

    @abstractmethod
    def _send(self, job: Any, answer: bool | str) -> None:
        """Send the answer to a validation to what trains the cell, or CANCEL."""

    def _release(self, job: Any) -> None:  # noqa: B027
        """Release what is held for a cell that has ended."""

    def _on_message(self, job: Any, message: Message) -> None:
        """Turn a message, except `ended`, into an event."""
        kind, *values = message
        if kind == "started":
            self.events.append(Started(job.handle))
        elif kind == "progress":
            job.step = values[0]
            self.events.append(Progress(job.handle, *values))
        elif kind == "validation":

            def answer(goes_on: bool) -> None:
                if job.awaits_answer and job.handle in self.jobs:
                    job.awaits_answer = False
                    self._send(job, goes_on)

            job.step, job.awaits_answer = max(job.step, values[0]), True
            self.events.append(Validation(job.handle, values[0], values[1], answer))
        else:
            self.events.append(Waiting(job.handle, values[0]))

    def _end(self, job: Any, outcome: Outcome, record: Record | None = None, broken: OSError | None = None) -> None:
        """Record the outcome of a cell."""
        self._release(job)
        del self.jobs[job.handle]
        self.records[job.handle] = record
        self.events.append(Ended(job.handle, outcome, job.step, broken))

    def _on_worker_lost(self, job: Any, cause: str) -> bool:
        """Handle the loss of the machine of a cell; return True if the cell must start again."""
        job.losses += 1
        job.awaits_answer = False
        if job.cancelled is not None:
            self._end(job, Outcome.INTERRUPTED)
        elif job.losses < ATTEMPTS:
            self._on_message(job, ("waiting", f"{cause}; tried again from its last checkpoint"))
            return True
        else:
            self._give_up(job, cause, job.submitted)
        return False

    def _give_up(self, job: Any, cause: str, started: float, trace: str | None = None) -> None:
        """Record a lost cell that was started then, unless another process has it."""
        from lm.training.train import fail  # it imports Lightning, which a plan does without

        self._release(job)
        record = fail(job.cell, self.store, cause, time.monotonic() - started, job.execution.retrain, trace)
        if record is None:
            self._on_message(job, ("waiting", f"{cause}; the cell is left to {self.store.holder(job.cell.id)}"))
        self._end(job, Outcome.INTERRUPTED if record is None else Outcome.LOST, record)


def require_whole(options: Mapping[str, str], names: Sequence[str], where: str) -> None:
    """Check that the options of these names are whole numbers from 1. Raises InputError."""
    for name, value in options.items():
        if name in names and not (value.isascii() and value.isdecimal() and len(value) < 9 and int(value)):
            raise InputError(f"{where}: {name}: expected a whole number from 1, found {shown(value)}")


def by_process(holders: Sequence[Holder | str]) -> dict[str, int]:
    """Return the number of cells that each command holds, by a phrase that names its process and host."""
    by_command: dict[tuple[int, str], list[Holder]] = {}
    for holder in holders:
        if not isinstance(holder, str):
            by_command.setdefault((holder.parent_pid, holder.host), []).append(holder)
    counts = {}
    for own in by_command.values():
        first = min(own, key=lambda holder: holder.since)
        counts[f"process {first.parent_pid} on host {first.host} since {first.when()}"] = len(own)
    unknown = sum(isinstance(holder, str) for holder in holders)
    return {**counts, **({"a process that left no name": unknown} if unknown else {})}
