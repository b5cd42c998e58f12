"""A second executor, for tests: a thread a cell, in which a kill is an exception that nothing catches."""

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import stand_in
from stand_in import Outside

from lm.execution.executor import (
    Ended,
    Event,
    Executor,
    ForeignCells,
    Handle,
    Outcome,
    Progress,
    Started,
    Validation,
    Waiting,
)
from lm.store.leases import HeldError, Holder
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Record
from lm.store.store import Store
from lm.training.train import fail

ATTEMPTS = 2


class Killed(BaseException):
    """What a kill is to a thread."""


class Cancelled(BaseException):
    """What a request to end is to a thread."""


class Told:
    """A cell at work: what it tells becomes events, and whether it is to end."""

    def __init__(self, handle: Handle, events: "queue.Queue[Event]") -> None:
        self.handle, self.events = handle, events
        self.answers: queue.Queue[bool | None] = queue.Queue()
        self.cancelled = False
        self.step = 0

    def tell(self, kind: str, *message: Any) -> None:
        if self.cancelled:
            raise Cancelled
        if kind == "progress":
            self.step = message[0]
            self.events.put(Progress(self.handle, *message))
        else:
            self.events.put(Waiting(self.handle, message[0]))

    def judge(self, step: int, measured: dict[str, float]) -> bool:
        self.step = max(self.step, step)
        self.events.put(Validation(self.handle, step, measured, self.answers.put))
        if (answer := self.answers.get()) is None:
            raise Cancelled
        return answer

    def end(self, deed: str) -> None:
        if deed == "disk":
            raise OSError(28, "No space left on device", "a file")
        raise Killed(deed)

    def cancel(self) -> None:
        self.cancelled = True
        self.answers.put(None)


class InThreads(Executor):
    """Cells that stand in for others, each in a thread of this process."""

    def __init__(self, store: Store, capacity: int, say: LogLine = to_stderr) -> None:
        self.store, self.capacity = store, capacity
        self.foreign = ForeignCells(store)
        self.numbers = itertools.count()
        self.events: queue.Queue[Event] = queue.Queue()
        self.at_work: dict[Handle, tuple[Told, threading.Thread]] = {}
        self.records: dict[Handle, Record | None] = {}

    def submit(self, cell: Any, execution: Any, name: str) -> Handle:
        if len(self.at_work) >= self.capacity:
            raise RuntimeError(f"{name}: no room")
        handle = Handle(next(self.numbers), cell.id, name)
        told = Told(handle, self.events)
        thread = threading.Thread(target=self._train, args=(cell, execution, told), daemon=True)
        self.at_work[handle] = told, thread
        thread.start()
        return handle

    def poll(self, timeout: float) -> Sequence[Event]:
        found: list[Event] = []
        try:
            while self.at_work:
                found.append(self.events.get(timeout=0.0 if found else timeout))
                if isinstance(found[-1], Ended):
                    del self.at_work[found[-1].handle]
        except queue.Empty:
            pass
        return found

    def cancel(self, handle: Handle) -> None:
        if handle in self.at_work:
            self.at_work[handle][0].cancel()

    def held(self, cell: str) -> Holder | str | None:
        return self.foreign.held(cell)

    def result(self, handle: Handle) -> Record | None:
        return self.records.pop(handle)

    def close(self) -> None:
        at_work, self.at_work = self.at_work, {}
        for told, _ in at_work.values():
            told.cancel()
        for _, thread in at_work.values():
            thread.join()

    def _train(self, cell: Any, execution: Any, told: Told) -> None:
        end, broken, started = None, None, time.monotonic()
        for _ in range(ATTEMPTS):
            self.events.put(Started(told.handle))
            try:
                goes_on = stand_in.walk(cell, self.store, execution, Outside(told.tell, told.judge, told.end))
                end = Outcome.RECORDED if goes_on else Outcome.PRUNED
            except Killed:
                continue
            except HeldError:
                end = Outcome.LOCKED_ELSEWHERE
            except Cancelled:
                end = Outcome.INTERRUPTED
            except OSError as error:
                end, broken = Outcome.INTERRUPTED, error
            break
        record = self.store.record(cell.id) if end is Outcome.RECORDED else None
        if end is None:
            record = fail(cell, self.store, "killed", time.monotonic() - started, execution.retrain)
            end = Outcome.INTERRUPTED if record is None else Outcome.LOST
        self.records[told.handle] = record
        self.events.put(Ended(told.handle, end, told.step, broken))
