"""The processes of one cell, side by side: when one of them dies, the cell fails with its error and none waits for it.

The first process starts the others, holds the cell and writes its record; a rank is a process's number, from 0.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from lm.config.tree import InputError
from lm.store.files import read_json, remove, to_json, write_atomic
from lm.store.store import RANKS
from lm.training.adapter import on_processes_launched, rank

POLL_SECONDS = 0.5
PATIENCE = 10.0  # seconds for a process to notice that another has died, and for the reason to be written

# words in errors which say that another process does not answer
PEER_FAILURE_WORDS = ("gloo", "nccl", "connection", "process group", "socket", "broken pipe", "peer")


class RankError(RuntimeError):
    """The death of a process of a cell with a rank above 0."""


def is_peer_failure(error: BaseException) -> bool:
    """Return True if an error comes from the death of another process."""
    if isinstance(error, torch.distributed.DistError):
        return True
    message = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(word in message for word in PEER_FAILURE_WORDS)


class RankSupervisor:
    """Supervises ranks 1 and up, which write errors into `work`; `give_up` records a failure if this one hangs."""

    def __init__(self, work: Path, give_up: Callable[[str], object]) -> None:
        self.work, self.give_up = work, give_up
        self.processes: list[subprocess.Popen[bytes]] = []
        self.over = threading.Lock()
        self.left = False

    def start(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Supervise `processes`, ranks 1 and up, from a thread of its own."""
        self.processes = processes
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def cause(self) -> str | None:
        """Return why the first of them to die has died; None while none has."""
        exit_codes = [process.poll() for process in self.processes]
        errors: dict[int, str] = {}
        for path in (self.work / RANKS).glob("*.json"):
            with contextlib.suppress(InputError, OSError, ValueError, TypeError, KeyError):
                errors[int(path.stem)] = str(read_json(path)["error"])
        if errors:
            return f"rank {min(errors)}: {errors[min(errors)]}"
        for number, code in enumerate(exit_codes, start=1):
            if code and code > 0:
                return f"rank {number} ended with exit code {code}"
            if code:
                hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
                return f"rank {number} was killed by {signal.Signals(-code).name}{hint}"
        return None

    def leave(self) -> None:
        """End the supervision, as this process shares nothing more; block forever if the cell is being given up."""
        with self.over:
            self.left = True

    def kill_running(self) -> None:
        """Kill the processes that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()  # one that waits for another hears nothing else

    def _watch(self) -> None:
        while (cause := self.cause()) is None:
            if self.left or all(process.poll() == 0 for process in self.processes):
                return
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + 2 * PATIENCE
        while not self.left and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        with self.over:
            if self.left:
                return
            self.kill_running()
            print(cause, file=sys.stderr, flush=True)
            self.give_up(f"{RankError.__name__}: {cause}")
            os._exit(1)  # the main thread waits in a call that never returns


@contextlib.contextmanager
def supervise_ranks(work: Path, give_up: Callable[[str], object]) -> Iterator[None]:
    """Supervise the other processes of a cell. Raises RankError if one dies, for the error that follows from it."""
    remove(work / RANKS)
    supervisor = RankSupervisor(work, give_up)
    try:
        with on_processes_launched(supervisor.start):
            yield
    except BaseException as error:
        cause, deadline = None, time.monotonic() + PATIENCE
        if isinstance(error, Exception) and is_peer_failure(error):
            while (cause := supervisor.cause()) is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        supervisor.leave()
        supervisor.kill_running()
        if cause is None:
            raise
        raise RankError(cause) from error
    supervisor.leave()


@contextlib.contextmanager
def nonzero_rank(work: Path) -> Iterator[None]:
    """Write the error that a process of rank 1 or above dies of, and end with the process that started it."""
    over, parent = threading.Event(), os.getppid()

    def end_with_parent() -> None:
        while not over.wait(POLL_SECONDS):
            if os.getppid() != parent:
                os._exit(1)  # the main thread may wait in a call that never returns

    threading.Thread(target=end_with_parent, name="parent", daemon=True).start()
    try:
        yield
    except Exception as error:
        if not is_peer_failure(error):
            report = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            write_atomic(work / RANKS / f"{rank()}.json", to_json(report))
        raise
    finally:
        over.set()
