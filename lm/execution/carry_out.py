"""The loop between a source of cells and an executor: hands cells over, answers, tells, and hands outcomes back."""

from collections.abc import Sequence
from dataclasses import replace

from lm.execution.executor import End, Ended, Event, Executor, Handle, Progress, Started, Validation, Waiting
from lm.execution.source import Listed, Planned, Source
from lm.execution.watcher import Running, Watcher
from lm.store.record import Ending
from lm.training.train import Execution

LISTEN_SECONDS = 1.0
"""At most, between two reports of progress."""


def train_cells(cells: Sequence[Planned], executor: Executor, watcher: Watcher, execution: Execution) -> int:
    """Trains every cell; one that fails does not stop the others. Returns how many were interrupted."""
    return train_from(Listed(list(cells)), executor, watcher, execution)


def train_from(source: Source, executor: Executor, watcher: Watcher, execution: Execution) -> int:
    """Trains cells for as long as there are any to take. Returns how many were interrupted.

    Raises:
        OSError: where a disk that is full or fails keeps cells from being trained, once no cell is in training any
            more.
    """
    return _Work(source, executor, watcher, execution).done()


class _Work:
    """The cells of a source that are being trained."""

    def __init__(self, source: Source, executor: Executor, watcher: Watcher, execution: Execution) -> None:
        self.source, self.executor, self.watcher, self.execution = source, executor, watcher, execution
        self.running: dict[Handle, Running] = {}
        self.interrupted = 0
        self.broken: OSError | None = None

    def done(self) -> int:
        """Trains all there is to train; returns how many cells were interrupted."""
        while True:
            self._hand_over()
            if not self.running:
                break
            for event in self.executor.poll(LISTEN_SECONDS):
                self._take_in(event)
            self.watcher.progress(list(self.running.values()), self.source.left())
        if self.broken is not None:
            raise self.broken
        return self.interrupted

    def _hand_over(self) -> None:
        while (
            self.broken is None  # the next cell would end there too
            and len(self.running) < self.executor.capacity
            and (planned := self.source.take())
        ):
            taken = {one.place for one in self.running.values()}
            place = next(place for place in range(self.executor.capacity) if place not in taken)
            execution = replace(self.execution, called=planned.called)
            handle = self.executor.submit(planned.cell, execution, planned.name)
            self.running[handle] = Running(planned, place)

    def _take_in(self, event: Event) -> None:
        one = self.running[event.handle]
        match event:
            case Started():
                one.begin()
            case Progress():
                one.heard(event.step, event.steps, event.loss)
            case Validation():
                one.step = max(one.step, event.step)
                event.answer(self.source.judge(one.planned, event.step, event.measured))
            case Waiting():
                self.watcher.waiting(f"{one.planned.name}: {event.line}")
            case Ended():
                del self.running[event.handle]
                self.broken = self.broken or event.broken
                record = self._left_by(event)
                self.interrupted += record is None
                self.watcher.finished(one.planned, record, one.seconds)
                self.source.ended(one.planned, record)

    def _left_by(self, event: Ended) -> Ending | None:
        """What the cell left; a pruned one has no record."""
        record = self.executor.harvest(event.handle)
        if event.end is End.PRUNED:
            return {"status": "pruned", "error": f"stopped after step {event.step}"}
        return record
