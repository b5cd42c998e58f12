"""Queue of the cells of several studies."""

from collections.abc import Mapping

from lm.execution.cell_queue import CellQueue, Planned
from lm.search.trials import Search
from lm.store.record import Ending
from lm.store.store import Store


class Searches(CellQueue):
    """Queue of several studies that share the workers in turn; a cell of two trials is trained once."""

    def __init__(self, searches: list[Search], store: Store) -> None:
        self.searches = list(searches)
        self.store = store
        self.waiting: dict[str, list[tuple[Search, Planned]]] = {}

    def pop(self) -> Planned | None:
        idle = 0
        while idle < len(self.searches):
            search = self.searches.pop(0)
            self.searches.append(search)
            planned = search.ask()
            if planned is None:
                idle += 1
                continue
            idle = 0
            waiting = self.waiting.get(planned.cell.id)
            if waiting is not None:
                waiting.append((search, planned))
                search.say(planned.name, "is being trained for another trial", 1)
            elif self.store.finished(planned.cell.id):  # meanwhile
                search.say(planned.name, "trained already", 1)
                search.ended(planned, self.store.record(planned.cell.id))
            else:
                self.waiting[planned.cell.id] = [(search, planned)]
                return planned
        return None

    def refresh(self) -> None:
        for search in self.searches:
            search.refresh()

    def blocked_on(self) -> list[str]:
        return [line for search in self.searches for line in search.peers.waiting_lines()]

    def remaining(self) -> int:
        return sum(search.left for search in self.searches)

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Let a cell go on while any of its trials wants it to."""
        wishes = [search.judge(own, step, measured) for search, own in self.waiting[planned.cell.id]]
        return any(wishes)

    def ended(self, planned: Planned, record: Ending | None) -> None:
        for search, own in self.waiting.pop(planned.cell.id):
            search.ended(own, record)
