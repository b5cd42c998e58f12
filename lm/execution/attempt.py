"""A worker process and its attempt at a cell, seen from the parent."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lm.config.fingerprint import Versions
from lm.execution.heartbeat import SilenceMonitor
from lm.store.record import Record

INNERMOST = 3
"""Calls that the error of a hung process names."""

UNKNOWN = 255
"""Exit code of a process whose fork server has ended: it may have exited, or run on."""


@dataclass(eq=False)
class Worker:
    """A process that trains one cell after another.

    Args:
        process: handle of the process.
        pipe: to the process; closed once the process has closed its end, which it does by exiting.
        slot: index among the running workers; it chose the accelerator with the first cell.
        code: versions of the user code that the process has imported, or is about to.
        shape: of its last cell.
    """

    process: Any
    pipe: Connection
    slot: int
    code: Versions
    shape: Any = None

    @property
    def is_orphaned(self) -> bool:
        """True if the fork server has ended, so that nobody reports how the process ends."""
        return bool(self.process.exitcode == UNKNOWN)

    @property
    def exited(self) -> bool:
        """True if the process has exited; an orphan counts as running until its end of the pipe closes."""
        return self.pipe.closed if self.is_orphaned else not self.process.is_alive()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it has exited."""
        if not self.exited:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def has_exited(self) -> bool:
        """Drain the pipe of a worker without a cell; return True if the process has exited."""
        with contextlib.suppress(EOFError, OSError):
            while not self.pipe.closed and self.pipe.poll():
                self.pipe.recv()
            return self.exited
        self.pipe.close()
        return self.exited


@dataclass
class Attempt:
    """One process's attempt at a cell.

    Args:
        worker: that trains the cell.
        before: the record that the cell had already.
        step: the last one reported.
        awaits_answer: the cell waits for the answer to a validation.
        stopped: the answer to a validation was to stop.
        over: the process is done with the cell and can train another.
        broken: error of the disk that stopped the cell.
        held: another process has the lock of the cell.
        hung: when the process was found to hang, by the monotonic clock.
    """

    worker: Worker
    before: Record | None
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    awaits_answer: bool = False
    stopped: bool = False
    over: bool = False
    broken: OSError | None = None
    held: bool = False
    hung: float | None = None

    def __post_init__(self) -> None:
        self.silence = SilenceMonitor(self.process.pid)

    @property
    def process(self) -> Any:
        """Process that trains the cell."""
        return self.worker.process

    @property
    def pipe(self) -> Connection:
        """Pipe to the process."""
        return self.worker.pipe

    def answer(self, goes_on: bool) -> None:
        """Answer the last validation: whether the cell goes on."""
        if not self.awaits_answer:  # answered already; the process may train another cell
            return
        self.awaits_answer, self.stopped = False, not goes_on
        with contextlib.suppress(OSError):  # it has exited since
            self.pipe.send(goes_on)


def describe_hang(path: Path, seconds: float) -> tuple[str, str | None]:
    """Describe a process that hung: return its error in a line and the stack that it wrote."""
    message = f"reported nothing for {seconds / 60:z.3g} minutes and was ended"
    try:
        stack = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        stack = ""
    main_thread = stack.rpartition("most recent call first):")[2]  # the first thread is the last in the file
    calls = [line.strip() for line in main_thread.splitlines() if line.strip()][:INNERMOST]
    return f"{message}; it was in {', called from '.join(calls)}" if calls else message, stack or None
