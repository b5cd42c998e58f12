"""Interface of the executors that train cells: cells are submitted, messages are returned.

How and where a cell is trained is up to an executor. `lm/execution/local.py` uses processes of this machine; another
executor is another class, and an entry in `lm/execution/factory.py`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Self

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.execution.machine import threads_each
from lm.store.leases import LeaseMonitor
from lm.store.locks import Holder
from lm.store.record import Record
from lm.store.store import Store
from lm.training.identified import Cell
from lm.training.process import Execution


class Outcome(Enum):
    """Outcome of a submitted cell; each cell ends in exactly one, once."""

    # it has a record: of a run that went well, diverged, raised an exception, or whose process was lost too often
    RECORDED = "recorded"
    PRUNED = "pruned"  # The answer to a validation stopped it. It leaves no files.
    # it has no new record and resumes from its last checkpoint when submitted again: its disk is full, or its process
    # was ended from outside
    INTERRUPTED = "interrupted"
    LOCKED_ELSEWHERE = "held"  # Another process trains it. It can be submitted again once `held` returns None.


ATTEMPTS = 2  # attempts at a cell whose process or machine is lost, each from the last checkpoint, until it has failed
Message = Sequence[Any]
"""What is told of a cell: a kind with values, which are JSON beside a record.

- `started`: training has started, from the last checkpoint if there is one; told again after a restart
- `progress`, step, steps in all, training loss in nats a token
- `validation`, step, measured values by name: the cell waits for `Executor.answer`
- `waiting`, line for the user: why the cell waits, or why it is silent
- `ended`, value of the outcome, step, error of the disk (number, text and file) or None, record if it is a new one
"""


@dataclass(eq=False)
class Job:
    """A submitted cell with its name in lines for the user, its last step, and its lost processes or machines."""

    cell: Cell
    execution: Execution
    name: str
    submitted: float = field(default_factory=time.monotonic)
    step: int = 0
    awaits_answer: bool = False
    kills: int = 0


class Executor(ABC):
    """Trainer of several cells at a time into a store.

    - **A submitted cell ends once**, in one `Outcome`, whatever happens to its process.
    - **A kill loses nothing.** If the training process, its parent, this process or the machine is killed, the cell
      resumes from its last checkpoint and comes to the same numbers. The executor restarts a killed cell once
      (`ATTEMPTS`) before the cell counts as lost.
    - **The trainer of a cell holds its lock** (`Store.lock`) from before it checks for a record until the record is
      written, so executors that share a store train each cell once. A second executor does not wait for the lock; it
      gets the record when the cell is submitted again. The submitting process holds no lock, except for cells on
      machines that do not see the store. It takes the lock to record a lost cell, unless another process holds it.
    - **An exception in training is a result**: a record with `status: failed`.
    - **Messages of one cell are in order**: `started` before all but `waiting`, `ended` last, a `validation` after the
      progress that led to it. Messages of different cells have no order.

    All methods are called by one thread. Use it as a context manager.

    Args:
        store: where the cells are trained into.
        capacity: largest number of cells that are submitted and have not ended.
        options: values of `options` by name.
    """

    # options after the name of the executor on a command line, each with the value that it expects
    options: ClassVar[Mapping[str, str]] = {}
    package: ClassVar[str | None] = None  # package that it needs, which the extra of the executor's name installs
    no_loggers: ClassVar[str] = ""  # reason why loggers cannot follow the runs; empty if they can

    def __init__(self, store: Store, capacity: int, options: Mapping[str, str] | None = None) -> None:
        self.store, self.capacity, self.settings = store, capacity, dict(options or {})
        self.watches: dict[str, LeaseMonitor] = {}
        self.jobs: list[Any] = []
        self.messages: list[tuple[Any, Message]] = []

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

    @classmethod  # noqa: B027
    def prepare(cls) -> None:
        """Start what takes seconds, before the cells are known."""

    # called by the scheduler

    def submit(self, cell: Cell, execution: Execution, name: str) -> Any:
        """Submit a cell that is not submitted here, without waiting for a cell or for a lock, and return its job.

        A cell that is recorded already ends as recorded, unless `execution` has failures trained again. Raises
        RuntimeError if `capacity` cells are submitted and have not ended, and InputError if no process can be started.
        """
        if len(self.jobs) >= self.capacity:
            raise RuntimeError(f"{name}: {self.capacity} cells are being trained, as many as may be")
        job = self._start(cell, execution, name)
        self.jobs.append(job)
        return job

    def poll(self, timeout: float) -> list[tuple[Any, Message]]:
        """Return jobs and messages since the last call; wait at most `timeout` seconds for one, if a cell is submitted.

        Raises InputError if a process cannot be started again, or a record cannot be read.
        """
        if self.jobs:
            self._listen(0.0 if self.messages else timeout)
        messages, self.messages = self.messages, []
        return messages

    def answer(self, job: Any, goes_on: bool) -> None:
        """Answer the validation of a cell. The answer to one that was killed since is lost; started again, it asks."""
        if job.awaits_answer and job in self.jobs:
            job.awaits_answer = False
            self._send(job, goes_on)

    def held(self, cell: str) -> Holder | str | None:
        """Return the process that trains a cell, if any; call it periodically, as it watches heartbeats."""
        holder = self.store.watched(cell, self.watches.setdefault(cell, LeaseMonitor()))
        if holder is None:
            del self.watches[cell]
        return holder

    @abstractmethod
    def close(self) -> None:
        """End all training within seconds; cells can be resumed. No messages follow; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # implemented by each executor, with the calls below

    @abstractmethod
    def _start(self, cell: Cell, execution: Execution, name: str) -> Job:
        """Start a cell, or queue it, and return its job."""

    @abstractmethod
    def _listen(self, seconds: float) -> None:
        """Wait for messages and ends, at most so long, and handle them."""

    @abstractmethod
    def _send(self, job: Any, goes_on: bool) -> None:
        """Send the answer to a validation to what trains the cell."""

    def _release(self, job: Any) -> None:  # noqa: B027
        """Release what is held for a cell that has ended."""

    def _on_message(self, job: Any, message: Message) -> None:
        """Hand on a message, except `ended`."""
        if message[0] in ("progress", "validation"):
            job.step, job.awaits_answer = max(job.step, message[1]), message[0] == "validation"
        self.messages.append((job, message))

    def _end(
        self, job: Any, outcome: Outcome, record: Record | None = None, broken: Sequence[Any] | None = None
    ) -> None:
        """Record the outcome of a cell."""
        self._release(job)
        self.jobs.remove(job)
        self.messages.append((job, ("ended", outcome.value, job.step, broken, record)))

    def _on_worker_lost(self, job: Any, cause: str) -> bool:
        """Handle the loss of the machine of a cell; return True if the cell must start again."""
        job.kills += 1
        job.awaits_answer = False
        if job.kills < ATTEMPTS:
            self._on_message(job, ("waiting", f"{cause}; tried again from its last checkpoint"))
            return True
        self._give_up(job, cause, job.submitted)
        return False

    def _give_up(self, job: Any, cause: str, started: float, trace: str | None = None) -> None:
        """Record a lost cell that was started then, unless another process has it."""
        from lm.training.train import fail  # it imports Lightning, which a plan does without

        self._release(job)
        record = fail(job.cell, self.store, cause, time.monotonic() - started, job.execution.retrain, trace)
        if record is None:
            self._on_message(job, ("waiting", f"{cause}; the cell is left to {self.store.holder(job.cell.id)}"))
        self._end(job, Outcome.INTERRUPTED if record is None else Outcome.RECORDED, record)


def disk_message(error: OSError) -> tuple[int | None, str | None, Any]:
    """Return the error of a disk as it stands in a message."""
    return error.errno, error.strerror, error.filename


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
