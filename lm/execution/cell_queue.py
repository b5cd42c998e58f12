"""What cells are to be trained, one after another."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lm.store.leases import LostError
from lm.store.record import Ending
from lm.training.cell import Cell


@dataclass(frozen=True)
class Planned:
    """A cell and its place in an experiment or a search.

    Args:
        arm: or trial.
        seed: of the cell.
        cell: to be trained.
        called: experiment/arm/seed, as a command line and loggers know it.
    """

    arm: str
    seed: int
    cell: Cell
    called: str = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.arm} seed {self.seed}"


class CellQueue:
    """Where cells to train come from, one at a time."""

    def pop(self) -> Planned | None:
        """A cell to train; None while there is none before another ends, and for good once none is running."""
        raise NotImplementedError

    def remaining(self) -> int:
        """How many cells are still to come, as far as is known."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Called every few seconds: sees what others do that have a part in it, where there are any."""

    def blocked_on(self) -> list[str]:
        """Others that are waited for where there is nothing to take, a line each; as far as was last seen."""
        return []

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Told what a validation in training measured; says whether the cell goes on."""
        return True

    def ended(self, planned: Planned, record: Ending | None) -> None:
        """Told of a cell's record; `status: pruned` where it was stopped, None where it was interrupted."""


class StaticQueue(CellQueue):
    """Cells that are known beforehand, in their order."""

    def __init__(self, cells: list[Planned]) -> None:
        self.cells = deque(cells)

    def pop(self) -> Planned | None:
        return self.cells.popleft() if self.cells else None

    def remaining(self) -> int:
        return len(self.cells)


class ExperimentQueue(StaticQueue):
    """Cells of an experiment, for as long as its folder stays: nobody could report on what is trained after that.

    Args:
        cells: in their order.
        manifest: the file of the experiment's folder without which there is no report.
    """

    def __init__(self, cells: list[Planned], manifest: Path) -> None:
        super().__init__(cells)
        self.manifest = manifest

    def pop(self) -> Planned | None:
        self.refresh()
        return super().pop()

    def refresh(self) -> None:
        """Check that the folder is still there. Raises LostError where it was taken away."""
        if not self.manifest.is_file():
            raise LostError(
                f"{self.manifest.parent}: was taken away while its cells were trained ({self.manifest.name} is gone); "
                "training stopped, and the same command trains what is missing"
            )
