"""The processes at work on the cells of a plan, what becomes of them, and of the cells when they are killed."""

import contextlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from lm.config import InputError
from lm.record import Ending
from lm.results import Store
from lm.sweep.plan import Planned
from lm.sweep.process import train_one
from lm.sweep.run import UNKNOWN, Listed, Running, Source, Watcher
from lm.sweep.vigil import Late
from lm.trainer import Execution, fail

PRELOAD = ["lm.sweep.preloaded"]
"""What the fork server imports, once for all."""

ATTEMPTS = 2
"""A process killed from outside is started again, from its checkpoint, before the cell counts as failed."""

SERVERS = 5
"""Fork servers that may end under a cell's process, or before one starts, until it is left for another time."""


def train_cells(cells: list[Planned], store: Store, workers: int, watcher: Watcher, execution: Execution) -> int:
    """Trains every cell; one that fails does not stop the others. Returns how many were interrupted."""
    return train_from(Listed(cells), store, workers, watcher, execution)


def train_from(source: Source, store: Store, workers: int, watcher: Watcher, execution: Execution) -> int:
    """Trains cells for as long as there are any to take. Returns how many were interrupted.

    Raises:
        OSError: where a disk that is full or fails keeps cells from being trained, once no process runs any more.
    """
    return Crew(source, store, watcher, execution).work(workers)


class Crew:
    """The processes at work on the cells of a source."""

    def __init__(self, source: Source, store: Store, watcher: Watcher, execution: Execution) -> None:
        self.source, self.store, self.watcher, self.execution = source, store, watcher, execution
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.running: list[Running] = []
        self.again: list[Planned] = []
        self.attempts: Counter[str] = Counter()
        self.servers: Counter[str] = Counter()
        self.interrupted = 0
        self.broken: OSError | None = None

    def work(self, workers: int) -> int:
        """Trains all there is to train; returns how many cells were interrupted."""
        with _children(self.running):
            while True:
                while len(self.running) < workers and (planned := self._next()):
                    slot = next(s for s in range(workers) if s not in {r.slot for r in self.running})
                    self.running.append(self._start(planned, slot))
                if not self.running:
                    break
                self._listen()
                for one in [r for r in self.running if r.ended]:
                    self.running.remove(one)
                    self._end(one)
                for one in self.running:
                    if (line := one.vigil.look()) is not None:
                        self.watcher.waiting(f"{one.name}: {line}")
                self.watcher.progress(self.running, len(self.again) + self.source.left())
        if self.broken is not None:
            raise self.broken
        return self.interrupted

    def _next(self) -> Planned | None:
        if self.broken is not None:  # the next cell would end there too
            return None
        return self.again.pop(0) if self.again else self.source.take()

    def _start(self, planned: Planned, slot: int) -> Running:
        """Starts a cell's process, by another fork server where the one there was is gone."""
        before = self.store.record(planned.cell.id) if self.store.finished(planned.cell.id) else None
        alone = planned.cell.config["trainer"]["devices"] == 1
        late = f"{planned.arm} seed {planned.seed}: waiting for the fork server, which is still importing, or stopped"
        for left in reversed(range(SERVERS)):
            ours, theirs = self.context.Pipe()
            arguments = (planned.cell, self.store, self.execution, theirs, slot if alone else None)
            process = self.context.Process(target=train_one, args=arguments, name=f"{planned.arm}-{planned.seed}")
            try:
                with Late(late, self.watcher.waiting):
                    process.start()
                break
            except (EOFError, ConnectionError):
                ours.close()
                if not left:
                    raise InputError(
                        f"multiprocessing's fork server, which starts the processes, ended {SERVERS} times before it "
                        "had started one; its last words are above"
                    ) from None
            finally:
                theirs.close()
        self.attempts[planned.cell.id] += 1
        return Running(planned, process, ours, slot, before)

    def _listen(self) -> None:
        """Waits a second at most for a process to say something or to end, and answers."""
        sources = {r.pipe: r for r in self.running if not r.pipe.closed}
        ready = wait([*sources, *(r.process.sentinel for r in self.running if not r.orphan)], timeout=1.0)
        for pipe in ready:
            if isinstance(pipe, Connection):
                self._hear(sources[pipe])

    def _hear(self, one: Running) -> None:
        """Takes in one message, or that there will be no more."""
        try:
            kind, *message = one.pipe.recv()
        except (EOFError, OSError):
            one.pipe.close()
            return
        one.vigil.word()
        if kind == "progress":
            one.heard(*message)
        elif kind == "waiting":
            self.watcher.waiting(f"{one.name}: {message[0]}")
        elif kind == "disk":
            one.broken = OSError(*message)
        else:
            one.step = max(one.step, message[0])
            goes_on = self.source.judge(one.planned, *message)
            one.stopped = not goes_on
            with contextlib.suppress(OSError):  # it has ended since
                one.pipe.send(goes_on)

    def _end(self, one: Running) -> None:
        """Deals with a process that has ended: starts it again, or tells what became of the cell."""
        while not one.pipe.closed and one.pipe.poll():
            self._hear(one)
        one.process.join()
        one.pipe.close()
        self.broken = self.broken or one.broken
        again, record = self._outcome(one)
        if again:
            self.again.append(one.planned)
            return
        self.interrupted += record is None
        self.watcher.finished(one.planned, record, time.monotonic() - one.started)
        self.source.ended(one.planned, record)

    def _outcome(self, one: Running) -> tuple[bool, Ending | None]:
        """Whether the cell is to be started again, and otherwise its record, None where it was interrupted."""
        cell, code, again = one.planned.cell, one.process.exitcode, self.execution.again
        found = self.store.record(cell.id) if self.store.finished(cell.id) else None
        if found is not None and (found != one.before or not self.store.pending(cell.id, again)):
            return False, found
        if one.stopped and code in (0, UNKNOWN) and not self.store.work(cell.id).is_dir():
            return False, {"status": "pruned", "error": f"stopped after step {one.step}"}
        if one.broken is not None or code in (0, -signal.SIGINT, -signal.SIGTERM):
            return False, None
        if code == UNKNOWN:
            self.attempts[cell.id] -= 1
            self.servers[cell.id] += 1
            return self.servers[cell.id] < SERVERS, None
        if code < 0 and self.attempts[cell.id] < ATTEMPTS:
            return True, None
        record = fail(cell, self.store, _cause(code), time.monotonic() - one.started, again)
        if record is None:
            self.watcher.waiting(f"{one.name}: {_cause(code)}; the cell is left to {self.store.holder(cell.id)}")
        return False, record


def _cause(code: int) -> str:
    if code > 0:
        return f"process ended with exit code {code}"
    hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"process killed by {signal.Signals(-code).name}{hint}"


@contextlib.contextmanager
def _children(running: list[Running]) -> Iterator[None]:
    """Ends the processes still running when the block is left, be it by Ctrl-C."""
    try:
        yield
    finally:
        for one in running:
            one.end(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while any(not _gone(one) for one in running) and time.monotonic() < deadline:
            time.sleep(0.02)
        for one in running:
            one.end(signal.SIGKILL)


def _gone(one: Running) -> bool:
    """Whether a process has ended to which nobody listens any more."""
    with contextlib.suppress(EOFError, OSError):
        while not one.pipe.closed and one.pipe.poll():
            one.pipe.recv()
        return one.ended
    one.pipe.close()
    return one.ended
