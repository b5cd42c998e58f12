"""A second executor, for tests: a thread a cell, in which a kill is an exception that nothing catches."""

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import stand_in
from stand_in import Outside

from lm.execution.executor import ATTEMPTS, Executor, Job, Outcome, disk_message
from lm.store.leases import HeldError
from lm.store.store import Store


class Killed(BaseException):
    """What a kill is to a thread."""


class Closed(BaseException):
    """What the end of the executor is to a thread."""


@dataclass(eq=False)
class OnThread(Job):
    """A cell at work: what it tells becomes events, and whether it is to end."""

    told: Any = None
    thread: Any = None
    answers: Any = field(default_factory=queue.Queue)
    closed: bool = False

    def tell(self, *message: Any) -> None:
        if self.closed:
            raise Closed
        self.told.put((self, message))

    def judge(self, step: int, measured: dict[str, float]) -> bool:
        self.told.put((self, ("validation", step, measured)))
        if (answer := self.answers.get()) is None:
            raise Closed
        return bool(answer)

    def end(self, deed: str) -> None:
        if deed == "disk":
            raise OSError(28, "No space left on device", "a file")
        raise Killed(deed)


class InThreads(Executor):
    """Cells that stand in for others, each in a thread of this process."""

    def __init__(self, store: Store, capacity: int) -> None:
        super().__init__(store, capacity)
        self.told: queue.Queue[Any] = queue.Queue()

    def close(self) -> None:
        for job in self.jobs:
            job.closed = True
            job.answers.put(None)
            job.thread.join()
        self.jobs.clear()

    def _start(self, cell: Any, execution: Any, name: str) -> OnThread:
        job = OnThread(cell, execution, name, told=self.told)
        job.thread = threading.Thread(target=self._train, args=(job,), daemon=True)
        job.thread.start()
        return job

    def _listen(self, seconds: float) -> None:
        try:
            while self.jobs:
                job, (kind, *values) = self.told.get(timeout=0.0 if self.messages else seconds)
                if kind != "ended":
                    self._on_message(job, (kind, *values))
                elif values[0] is None:
                    self._give_up(job, "killed", job.submitted)
                else:
                    record = self.store.record(job.cell.id) if values[0] is Outcome.RECORDED else None
                    self._end(job, values[0], record, values[1])
        except queue.Empty:
            pass

    def _send(self, job: OnThread, goes_on: bool) -> None:
        job.answers.put(goes_on)

    def _train(self, job: OnThread) -> None:
        outcome, broken = None, None
        for _ in range(ATTEMPTS):
            self.told.put((job, ("started",)))
            try:
                goes_on = stand_in.walk(job.cell, self.store, job.execution, Outside(job.tell, job.judge, job.end))  # type: ignore[arg-type]
                outcome = Outcome.RECORDED if goes_on else Outcome.PRUNED
            except Killed:
                continue
            except HeldError:
                outcome = Outcome.LOCKED_ELSEWHERE
            except Closed:
                return
            except OSError as error:
                outcome, broken = Outcome.INTERRUPTED, disk_message(error)
            break
        self.told.put((job, ("ended", outcome, broken)))
