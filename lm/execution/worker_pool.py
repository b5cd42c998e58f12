"""The processes that take cell after cell: which one a cell is given to, how they start, and how they are let go."""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import signal
import time
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from lm.config.fingerprint import Versions, versions_of
from lm.config.tree import InputError
from lm.execution.attempt import Worker
from lm.execution.heartbeat import SlowBlockWarning
from lm.execution.temp_cleanup import mark_owner
from lm.execution.worker_loop import Body, run_worker
from lm.store.locks import Say
from lm.store.store import Store
from lm.training.cell import Cell, seedless

MAX_FORKSERVER_RESTARTS = 5
"""Fork servers that may end under a cell's process, or before one starts, until it is left for another time."""
PAUSE_SECONDS = 0.1
"""To the second try to start a process, and twice as long to each further one: one that was killed is in nobody's way
only once it has ended, and that takes a large process on a busy machine a while."""


class WorkerPool:
    """Processes without a cell, and how to come by more of them.

    A cell goes to one that trained a cell like it last, where there is one, and never to one that has imported other
    code of a user's own than the cell's.

    Args:
        store: where the cells are trained into.
        capacity: processes at a time, with and without a cell.
        body: trains a cell in a process.
        preload: modules that the fork server imports, once for all.
        say: told where the fork server keeps a process from starting.
    """

    def __init__(self, store: Store, capacity: int, body: Body, preload: Sequence[str], say: Say) -> None:
        self.store, self.capacity, self.body, self.say = store, capacity, body, say
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(preload))
        mark_owner(Path(multiprocessing.util.get_temp_dir()))  # where the fork server is reached, on most systems
        self.idle: dict[int, Worker] = {}
        """By their slots; the one that has waited longest is the first."""
        self.leaving: list[Worker] = []

    def assign(self, cell: Cell, alone: bool, taken: set[int]) -> tuple[int, Worker | None]:
        """Where a cell is to be trained, and the process that has waited for it there; None where it needs a fresh one.

        Args:
            cell: to be trained.
            alone: whether it is trained by one process, on one device.
            taken: slots of processes at work, fewer than there are.
        """
        for worker in [worker for worker in self.idle.values() if worker.has_exited() or not alone]:
            self.shutdown_worker(worker)  # what a cell on several devices needs is not to be held by who waits
        code, shape = code_of(cell), shape_of(cell)
        fit = [worker for worker in self.idle.values() if worker.code == code]
        found = next((worker for worker in fit if worker.shape == shape), next(iter(fit), None))
        if found is not None:
            return found.slot, found
        free = [slot for slot in range(self.capacity) if slot not in taken]
        if all(slot in self.idle for slot in free):
            self.shutdown_worker(next(iter(self.idle.values())))
        return next(slot for slot in free if slot not in self.idle), None

    def spawn(self, cell: Cell, name: str, slot: int) -> Worker:
        """Starts a process, by another fork server where the one there was is gone.

        Raises:
            InputError: where no fork server lives for long enough.
        """
        late = f"{name}: waiting for the fork server"
        for tries in range(MAX_FORKSERVER_RESTARTS):
            if tries:
                time.sleep(PAUSE_SECONDS * 2 ** (tries - 1))
            ours, theirs = self.context.Pipe()
            process = self.context.Process(target=run_worker, args=(self.body, self.store, theirs), name=name)
            try:
                with SlowBlockWarning(late, self.say, fork_server):
                    start_fork_server()
                    process.start()
                break
            except (EOFError, ConnectionError):
                ours.close()
                if tries + 1 == MAX_FORKSERVER_RESTARTS:
                    raise InputError(
                        "multiprocessing's fork server, which starts the processes, ended "
                        f"{MAX_FORKSERVER_RESTARTS} times before it had started one; its last words are above"
                    ) from None
            finally:
                theirs.close()
        return Worker(process, ours, slot, code_of(cell), shape_of(cell))

    def send_cell(self, worker: Worker, given: Any) -> bool:
        """Hands something to a process that waits; returns whether it is there to take it."""
        del self.idle[worker.slot]
        try:
            worker.pipe.send(given)
        except OSError:
            self.shutdown_worker(worker)
            return False
        return True

    def mark_idle(self, worker: Worker) -> None:
        """A process is done with its cell and waits for another."""
        self.idle[worker.slot] = worker

    def shutdown_worker(self, worker: Worker) -> None:
        """Lets go of a process without a cell, which ends by itself as nobody listens to it any more."""
        self.idle.pop(worker.slot, None)
        if worker.is_orphaned:  # of which nothing will be heard
            worker.end(signal.SIGKILL)
        worker.pipe.close()
        self.leaving.append(worker)

    def without_cell(self) -> list[Worker]:
        """The processes that wait, and those that were let go and have not ended yet."""
        self.leaving = [worker for worker in self.leaving if not worker.has_exited()]
        return [*self.idle.values(), *self.leaving]

    def clear(self) -> None:
        """All of them have ended."""
        self.idle.clear()
        self.leaving.clear()


def start_fork_server() -> None:
    """Start multiprocessing's fork server, unless it runs: Ctrl-C waits in it until it has said that it ignores that.

    `lm.execution.forkserver_preload` does, as the first of what the server imports.
    """
    resource_tracker.ensure_running()  # which would let Ctrl-C through to what is started after it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_server() -> int | None:
    """Return the process number of multiprocessing's fork server, None where none was started."""
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    pid: int | None = getattr(server, "_forkserver_pid", None)
    return pid


def shape_of(cell: Cell) -> Any:
    """What cells have in common that differ in their seeds alone."""
    return seedless(cell.config), cell.facts


def code_of(cell: Cell) -> Versions:
    """The code of a user's own that a cell takes; what no process can have where it was changed since its plan."""
    try:
        return versions_of(cell.config)
    except InputError:
        return frozenset((("changed", cell.id),))
