"""Queues of cells to train."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lm.store.leases import LostError
from lm.store.record import Ending
from lm.training.cell import Cell


@dataclass(frozen=True)
class Planned:
    """A cell with its position in an experiment or a search.

    Args:
        arm: name of the arm or the trial.
        seed: of the cell.
        cell: to be trained.
        called: experiment/arm/seed, the name on command lines and in loggers.
    """

    arm: str
    seed: int
    cell: Cell
    called: str = ""

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
        """Take the record of a cell that has ended.

        Its status is `pruned` if it was stopped; the record is None if it was interrupted.
        """


class StaticQueue(CellQueue):
    """Queue of cells that are known beforehand, in their order."""

    def __init__(self, cells: list[Planned]) -> None:
        self.cells = deque(cells)

    def pop(self) -> Planned | None:
        """Return the next cell; None where none is left."""
        return self.cells.popleft() if self.cells else None

    def remaining(self) -> int:
        """Return the number of cells that are left."""
        return len(self.cells)


class ExperimentQueue(StaticQueue):
    """Queue of an experiment's cells that raises once the experiment's folder is gone.

    Args:
        cells: in their order.
        manifest: file in the experiment's folder that the report needs.
    """

    def __init__(self, cells: list[Planned], manifest: Path) -> None:
        super().__init__(cells)
        self.manifest = manifest

    def pop(self) -> Planned | None:
        """Return the next cell, while the experiment is still there; None where none is left."""
        self.refresh()
        return super().pop()

    def refresh(self) -> None:
        """Check that the manifest still exists. Raises LostError if it was removed."""
        if not self.manifest.is_file():
            raise LostError(
                f"{self.manifest.parent}: was taken away while its cells were trained ({self.manifest.name} is gone); "
                "training stopped, and the same command trains what is missing"
            )
