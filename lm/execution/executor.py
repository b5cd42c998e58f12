"""Interface of the executors that train cells: cells are submitted, events are returned.

How and where a cell is trained is up to an executor. `lm/execution/local.py` uses processes of this machine; another
executor is another class, and an entry in `lm/execution/factory.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from lm.store.lease_holder import Holder
from lm.store.record import Record
from lm.training.cell import Cell
from lm.training.train import Execution


@dataclass(frozen=True)
class Handle:
    """A submitted cell; submitted again after its end, it has another handle.

    Args:
        number: unique within an executor.
        cell: id of the cell.
        name: of the cell in lines for the user.
    """

    number: int
    cell: str
    name: str


class Outcome(Enum):
    """Outcome of a submitted cell; each cell ends in exactly one, once."""

    RECORDED = "recorded"
    """It has a record: of a run that went well, diverged, or raised an exception."""
    PRUNED = "pruned"
    """The answer to a validation stopped it. It leaves no files."""
    INTERRUPTED = "interrupted"
    """It has no new record and resumes from its last checkpoint when submitted again: it was cancelled, its disk is
    full, or its process ended too often."""
    LOCKED_ELSEWHERE = "held"
    """Another process trains it. It can be submitted again once `held` returns None."""
    LOST = "given up"
    """Its process was ended from outside too often, or ended without a message. Its record says so."""


# events --------------------------------------------------------------------------------------------------------------


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
    """The cell has ended; this is the last event of its handle.

    Args:
        handle: of the cell.
        outcome: of the cell.
        step: last step reported.
        broken: error of the disk that stopped it, and would stop the next cell too.
    """

    handle: Handle
    outcome: Outcome
    step: int = 0
    broken: OSError | None = None


Event = Started | Progress | Validation | Waiting | Ended


# the protocol --------------------------------------------------------------------------------------------------------


class Executor(ABC):
    """Trainer of several cells at a time into a store.

    - **A submitted cell ends once**, in one `Outcome`, whatever happens to its process.
    - **A kill of anything loses nothing.** What trained the cell, what started that, this process, or the machine: the
      cell is taken up from its last checkpoint and comes to the same numbers. The executor itself takes up what ends
      from outside, a few times; then the cell has been given up.
    - **Who trains a cell holds its lock** in the store (`Store.lock`), from before it looks whether there is a record
      until the record is there. So several executors on one store train a cell once. Who comes second does not wait for
      the lock, and is told of the one record when the cell is handed over again. The process that hands cells over
      holds no lock, but for cells on machines that do not see the store: for these it does all that is done there. Who
      writes down that a cell was given up takes the lock for it, and where another has it the cell is left to that one.
    - **An exception in training is a result**, a record with `status: failed`. It is no concern of the executor.
    - **Events of one cell come in order**: `Started` before all but `Waiting`, `Ended` last. A `Validation` comes after
      the progress that led to it. Between cells there is no order.

    It belongs to one thread, which calls all of its methods; `Validation.answer` too. To be left as a context manager.

    Args of a constructor: the store, the capacity, and whom to tell, possibly in another thread, what keeps `submit`.
    """

    capacity: int
    """Largest number of cells that are submitted and have not ended."""

    @abstractmethod
    def submit(self, cell: Cell, execution: Execution, name: str) -> Handle:
        """Submit a cell, without waiting for a cell or for a lock.

        It may wait for its own machinery to start, which takes seconds, and says so where it takes longer. A cell that
        is recorded already ends as recorded, unless `execution` has failures trained again.

        Args:
            cell: checked, and in nobody's hands here.
            execution: how it is trained.
            name: what people call it, in lines that they read.

        Raises:
            RuntimeError: where `capacity` cells are in its hands.
            InputError: where the machinery cannot be started.
        """

    @abstractmethod
    def poll(self, timeout: float) -> Sequence[Event]:
        """Return the events since the last call; wait at most `timeout` seconds for one.

        Returns at once if no cell is submitted.

        Raises:
            InputError: if a process cannot be started again, or a record cannot be read.
        """

    @abstractmethod
    def cancel(self, handle: Handle) -> None:
        """Ask a cell to end, without waiting: it ends as interrupted, or as it was about to end.

        A cell that has ended is left alone. One that does not react is killed.
        """

    def held(self, cell: str) -> Holder | str | None:
        """Return the process that trains a cell, None if the cell can be submitted.

        Call it periodically, as it watches the heartbeats of that process.
        """
        return None

    @abstractmethod
    def result(self, handle: Handle) -> Record | None:
        """Return the record of a cell that has ended, once its files are in the store.

        Call it once for each `Ended`. None if the cell was pruned, interrupted or locked elsewhere, even if the store
        has an older record of it.

        Raises:
            KeyError: for a cell that has not ended, or whose record was returned before.
        """

    @abstractmethod
    def close(self) -> None:
        """End all training within seconds; the cells can be resumed.

        No events follow. A second call does nothing.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
