"""Pool of worker processes: assignment of cells, start and shutdown."""

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
from lm.store.locks import LogLine
from lm.store.store import Store
from lm.training.cell import Cell, seedless

MAX_FORKSERVER_RESTARTS = 5
"""Fork servers that may end under a cell's process, or before one starts, until the cell is interrupted."""
PAUSE_SECONDS = 0.1
"""Delay before the second attempt to start a process, doubled for each further attempt. A fork server that was killed
blocks the next one until it has ended."""


class WorkerPool:
    """Idle worker processes, and the means to start more.

    A cell goes to a worker whose last cell had the same shape, if there is one, and never to a worker that has imported
    other user code than the cell needs.

    Args:
        store: where the cells are trained into.
        capacity: processes at a time, idle ones included.
        body: trains a cell in a process.
        preload: modules that the fork server imports once.
        say: called with a line when a process cannot be started yet.
    """

    def __init__(self, store: Store, capacity: int, body: Body, preload: Sequence[str], say: LogLine) -> None:
        self.store, self.capacity, self.body, self.say = store, capacity, body, say
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(preload))
        mark_owner(Path(multiprocessing.util.get_temp_dir()))  # holds the fork server's socket on most systems
        self.idle: dict[int, Worker] = {}
        """Idle workers by slot, the one that has waited longest first."""
        self.leaving: list[Worker] = []

    def assign(self, cell: Cell, single_process: bool, busy_slots: set[int]) -> tuple[int, Worker | None]:
        """Choose the slot of a cell and the idle worker that trains it, None if a new worker is needed.

        Args:
            cell: to be trained.
            single_process: the cell is trained by one process on one device.
            busy_slots: slots of busy workers, fewer than there are slots.
        """
        for idle in [idle for idle in self.idle.values() if idle.has_exited() or not single_process]:
            self.shutdown_worker(idle)  # idle workers must not hold devices that a cell on several devices needs
        code, shape = code_of(cell), shape_of(cell)
        candidates = [idle for idle in self.idle.values() if idle.code == code]
        worker = next((idle for idle in candidates if idle.shape == shape), next(iter(candidates), None))
        if worker is not None:
            return worker.slot, worker
        free = [slot for slot in range(self.capacity) if slot not in busy_slots]
        if all(slot in self.idle for slot in free):
            self.shutdown_worker(next(iter(self.idle.values())))
        return next(slot for slot in free if slot not in self.idle), None

    def spawn(self, cell: Cell, name: str, slot: int) -> Worker:
        """Start a worker, by a new fork server if the last one has ended.

        Raises:
            InputError: if every fork server ends before it has started the process.
        """
        warning = f"{name}: waiting for the fork server"
        for attempt in range(MAX_FORKSERVER_RESTARTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
            parent_pipe, child_pipe = self.context.Pipe()
            process = self.context.Process(target=run_worker, args=(self.body, self.store, child_pipe), name=name)
            try:
                with SlowBlockWarning(warning, self.say, fork_server):
                    start_fork_server()
                    process.start()
                break
            except (EOFError, ConnectionError):
                parent_pipe.close()
                if attempt + 1 == MAX_FORKSERVER_RESTARTS:
                    raise InputError(
                        "multiprocessing's fork server, which starts the processes, ended "
                        f"{MAX_FORKSERVER_RESTARTS} times before it had started one; its last words are above"
                    ) from None
            finally:
                child_pipe.close()
        return Worker(process, parent_pipe, slot, code_of(cell), shape_of(cell))

    def send_cell(self, worker: Worker, message: Any) -> bool:
        """Send a cell to an idle worker; return False if the worker has exited."""
        del self.idle[worker.slot]
        try:
            worker.pipe.send(message)
        except OSError:
            self.shutdown_worker(worker)
            return False
        return True

    def mark_idle(self, worker: Worker) -> None:
        """Record that a worker has ended its cell and waits for another."""
        self.idle[worker.slot] = worker

    def shutdown_worker(self, worker: Worker) -> None:
        """Shut an idle worker down by closing its pipe, on which it exits."""
        self.idle.pop(worker.slot, None)
        if worker.is_orphaned:  # its exit would not be noticed
            worker.send_signal(signal.SIGKILL)
        worker.pipe.close()
        self.leaving.append(worker)

    def without_cell(self) -> list[Worker]:
        """Return the idle workers and those that were shut down and have not exited yet."""
        self.leaving = [worker for worker in self.leaving if not worker.has_exited()]
        return [*self.idle.values(), *self.leaving]

    def clear(self) -> None:
        """Forget all workers, which have exited."""
        self.idle.clear()
        self.leaving.clear()


def start_fork_server() -> None:
    """Start multiprocessing's fork server unless it runs, with Ctrl-C blocked until the server ignores it.

    `lm.execution.forkserver_preload`, its first import, ignores and unblocks it.
    """
    resource_tracker.ensure_running()  # it would unblock Ctrl-C for what is started after it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_server() -> int | None:
    """Return the process number of multiprocessing's fork server, None if none was started."""
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    pid: int | None = getattr(server, "_forkserver_pid", None)
    return pid


def shape_of(cell: Cell) -> Any:
    """Return what cells that differ only in their seeds have in common."""
    return seedless(cell.config), cell.facts


def code_of(cell: Cell) -> Versions:
    """Return the versions of the user code of a cell, a unique value if it changed since the plan."""
    try:
        return versions_of(cell.config)
    except InputError:
        return frozenset((("changed", cell.id),))
