"""What trains cells, seen from outside: cells are handed over, events come back.

Of how and where a cell is trained nothing is said here. `lm/execution/local.py` does it with processes of this machine;
another engine is another class, and an entry in `lm/execution/factory.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from lm.store.holders import Holder
from lm.store.record import Record
from lm.training.cell import Cell
from lm.training.train import Execution


@dataclass(frozen=True)
class Handle:
    """A cell that was handed over. Handed over again, once it has ended, it has another handle.

    Args:
        number: by which an executor tells its handles apart.
        cell: the cell's id.
        name: what people call the cell.
    """

    number: int
    cell: str
    name: str


class Outcome(Enum):
    """How a cell ends. Each cell that was handed over ends in exactly one of these, once."""

    RECORDED = "recorded"
    """It has a record: of a run that went well, that diverged, or that raised an exception."""
    PRUNED = "pruned"
    """An answer to a validation stopped it. It leaves nothing behind."""
    INTERRUPTED = "interrupted"
    """It has no new record, and whoever hands it over again takes it up from its last checkpoint: it was cancelled, its
    disk is full, or what it ran on went away too often."""
    LOCKED_ELSEWHERE = "held"
    """Another process trains it, or has taken it over. It can be handed over again once `held` says that it is free."""
    LOST = "given up"
    """What trained it was ended from outside as often as that may be, or ended without a word. Its record says so."""


# events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """Something began to work on the cell, from its last checkpoint where it has one. A second time after a kill."""

    handle: Handle


@dataclass(frozen=True)
class Progress:
    """The cell has made `step` of its `steps` optimiser steps; the training loss in nats a token."""

    handle: Handle
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class Validation:
    """The cell was validated after `step` optimiser steps, and waits until `answer` says whether it goes on.

    An answer to a cell that has been killed since is lost without harm: started again, it may ask again.
    """

    handle: Handle
    step: int
    measured: Mapping[str, float]
    answer: Callable[[bool], None] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Waiting:
    """What the cell waits for, or why nothing is heard of it: a line for a person."""

    handle: Handle
    line: str


@dataclass(frozen=True)
class Ended:
    """The cell has ended; nothing more comes of this handle.

    Args:
        handle: of the cell.
        outcome: of the cell.
        step: the last step that was heard of.
        broken: the disk that stopped it, which will stop the next one too.
    """

    handle: Handle
    outcome: Outcome
    step: int = 0
    broken: OSError | None = None


Event = Started | Progress | Validation | Waiting | Ended


# the protocol --------------------------------------------------------------------------------------------------------


class Executor(ABC):
    """Trains cells, several at a time, into a store that it was made with.

    - **A cell that was handed over ends once**, in one `Outcome`, whatever happens to what trains it.
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
    """How many cells may be in its hands: handed over, and not yet reported as ended."""

    @abstractmethod
    def submit(self, cell: Cell, execution: Execution, name: str) -> Handle:
        """Takes a cell into its hands and returns at once, in any case without waiting for a cell or for a lock.

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
        """What has happened since the last call; waits for something to happen, `timeout` seconds at most.

        With no cell in its hands there is nothing to wait for.

        Raises:
            InputError: where the machinery cannot be started again, or a record cannot be read.
        """

    @abstractmethod
    def cancel(self, handle: Handle) -> None:
        """Asks for the cell to end, and waits for nothing: it ends as interrupted, or as what it was about to end as.

        Of a cell that has ended already nothing is asked. One that does not heed is ended by force.
        """

    def held(self, cell: str) -> Holder | str | None:
        """Who else trains a cell; None where it may be handed over, as it may where an executor waits by itself.

        Asked now and then, as it watches whether the other one shows life.
        """
        return None

    @abstractmethod
    def result(self, handle: Handle) -> Record | None:
        """Sees to it that what the cell left lies in the store, and returns its record; once for each `Ended`.

        None where the cell was pruned, interrupted or held, even if the store has an older record of it.

        Raises:
            KeyError: for a cell that has not ended, or whose record was asked for before.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends whatever still trains, within seconds, and leaves nothing at work. The cells can be taken up again.

        No events come of it. A second call does nothing.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
