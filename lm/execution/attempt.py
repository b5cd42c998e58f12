"""A process at work on a cell, from the outside."""

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
"""Calls that are named of a process that hung."""

UNKNOWN = 255
"""The exit code of a process whose fork server is gone: it may have ended somehow, or go on without it."""


@dataclass(eq=False)
class Worker:
    """A process that trains one cell after another.

    Args:
        process: that takes the cells.
        pipe: to it; closed once the process has closed its end, which it does by ending.
        slot: its place among those that run, which chose its accelerator with its first cell.
        code: of a user's own that it has imported, or is about to.
        shape: of the cell that it was given last.
    """

    process: Any
    pipe: Connection
    slot: int
    code: Versions
    shape: Any = None

    @property
    def is_orphaned(self) -> bool:
        """Whether nobody will say how the process ends."""
        return bool(self.process.exitcode == UNKNOWN)

    @property
    def ended(self) -> bool:
        """Whether the process has ended; one whose fork server is gone goes on until its end of the pipe closes."""
        return self.pipe.closed if self.is_orphaned else not self.process.is_alive()

    def end(self, number: int) -> None:
        """Sends a signal that ends the process."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def has_exited(self) -> bool:
        """Whether the process has ended, to which nobody listens any more."""
        with contextlib.suppress(EOFError, OSError):
            while not self.pipe.closed and self.pipe.poll():
                self.pipe.recv()
            return self.ended
        self.pipe.close()
        return self.ended


@dataclass
class Attempt:
    """One process's try at a cell.

    Args:
        worker: that trains the cell.
        before: the record that the cell had already.
        step: the last one that was heard of.
        asked: whether the cell waits for the answer to a validation.
        stopped: whether the answer to a validation was to stop.
        over: whether the process is done with the cell, and can take another.
        broken: the disk that stopped it.
        held: whether another process has the cell.
        hung: when it was found to have reported nothing for too long.
    """

    worker: Worker
    before: Record | None
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    asked: bool = False
    stopped: bool = False
    over: bool = False
    broken: OSError | None = None
    held: bool = False
    hung: float | None = None

    def __post_init__(self) -> None:
        self.silence = SilenceMonitor(self.process.pid)

    @property
    def process(self) -> Any:
        """That trains the cell."""
        return self.worker.process

    @property
    def pipe(self) -> Connection:
        """To the process."""
        return self.worker.pipe

    def answer(self, goes_on: bool) -> None:
        """Says whether the cell goes on after the validation that it asked about."""
        if not self.asked:  # said already; the process may be at another cell
            return
        self.asked, self.stopped = False, not goes_on
        with contextlib.suppress(OSError):  # it has ended since
            self.pipe.send(goes_on)


def hanging(path: Path, seconds: float) -> tuple[str, str | None]:
    """What is recorded of a process that reported nothing for so long: in a line, and the stack that it left."""
    said = f"reported nothing for {seconds / 60:z.3g} minutes and was ended"
    try:
        stack = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        stack = ""
    main = stack.rpartition("most recent call first):")[2]  # the first thread is the last in the file
    calls = [line.strip() for line in main.splitlines() if line.strip()][:INNERMOST]
    return f"{said}; it was in {', called from '.join(calls)}" if calls else said, stack or None
