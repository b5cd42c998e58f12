"""Cells that other commands train, on this machine or others, checked periodically until they are free."""

from collections.abc import Sequence

from lm.store.lease_holder import Holder, LeaseMonitor
from lm.store.store import Store


class ForeignCells:
    """Monitor of cells whose locks other processes hold.

    Args:
        store: where the cells are trained into.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watches: dict[str, LeaseMonitor] = {}

    def held(self, cell: str) -> Holder | str | None:
        """Return the holder of a cell, None if the cell is free.

        A holder without a heartbeat from one call to the next loses the cell.
        """
        holder = self.store.watched(cell, self.watches.setdefault(cell, LeaseMonitor()))
        if holder is None:
            del self.watches[cell]
        return holder


def by_process(holders: Sequence[Holder | str]) -> dict[str, int]:
    """Return the number of cells that each command holds, by a phrase that names its process and host."""
    by_command: dict[tuple[int, str] | str, list[Holder]] = {}
    unknown = 0
    for holder in holders:
        if isinstance(holder, str):
            unknown += 1
        else:
            by_command.setdefault((holder.parent_pid, holder.host), []).append(holder)
    counts = {}
    for own in by_command.values():
        first = min(own, key=lambda holder: holder.since)
        counts[f"process {first.parent_pid} on host {first.host} since {first.when()}"] = len(own)
    return {**counts, **({"a process that left no name": unknown} if unknown else {})}
