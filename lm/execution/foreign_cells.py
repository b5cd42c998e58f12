"""Cells that other commands train, on this machine or another: looked at now and then, until they are free."""

from collections.abc import Sequence

from lm.store.holders import Holder, Watch
from lm.store.store import Store


class ForeignCells:
    """Watches over cells that are held by others.

    Args:
        store: where the cells are trained into.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watches: dict[str, Watch] = {}

    def held(self, cell: str) -> Holder | str | None:
        """Who holds a cell; None where it may be handed over. Who shows no life from one call to the next loses it."""
        found = self.store.watched(cell, self.watches.setdefault(cell, Watch()))
        if found is None:
            del self.watches[cell]
        return found


def by_process(holders: Sequence[Holder | str]) -> dict[str, int]:
    """How many cells each command holds, by its process and host in words."""
    since: dict[tuple[int, str] | str, list[Holder]] = {}
    nameless = 0
    for holder in holders:
        if isinstance(holder, str):
            nameless += 1
        else:
            since.setdefault((holder.of, holder.host), []).append(holder)
    found = {}
    for held in since.values():
        first = min(held, key=lambda one: one.since)
        found[f"process {first.of} on host {first.host} since {first.when()}"] = len(held)
    return {**found, **({"a process that left no name": nameless} if nameless else {})}
