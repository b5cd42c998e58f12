"""The process that trains a cell: its settings, heartbeats, its output in the cell's log, and interrupts."""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from lm.store.redaction import redacted
from lm.store.store import LOG


@dataclass(frozen=True)
class Execution:
    """Options of training a cell that change no result."""

    threads: int | None = None  # of this process; None leaves torch's choice
    retrain: bool = False  # whether to train a cell that has a record, which stays until the new one is written
    checkpoint_seconds: float = 20.0  # between checkpoints, which are written at logged steps; what a kill can cost
    # without a heartbeat, after which the process is ended; 0 for never: no step and no compilation takes that long
    hang_seconds: float = 1800.0
    loggers: tuple[str, ...] = ()  # names, in `lm.training.loggers`, of the loggers that follow the run
    run_name: str = ""  # experiment/arm/seed, the name of the run in loggers
    # optimiser steps after which a checkpoint is left, and the cells that begin from them
    branches: tuple[tuple[int, str], ...] = ()
    prunable: bool = False  # whether the answer to a validation may stop a run, so that it waits for one


def leave_slurm_job() -> None:
    """Make Lightning take this process for one by itself, and not for a task of the SLURM job that it runs in."""
    os.environ.pop("SLURM_NTASKS", None)


# mallopt(3) of glibc: bytes free at the end of the heap that it keeps, those it asks for beyond a request, and the size
# from which on memory comes from the system and goes back at once
MALLOC = {-1: 2**31 - 1, -2: 16 * 2**20, -3: 64 * 2**20}


def keep_freed_memory() -> None:
    """Let glibc keep the memory of one step's tensors for the next one's, where the environment asks for nothing else.

    By default it gives all but 64 MiB back after each step, and whatever is larger than 32 MiB; the system then has to
    find and clear each page again, which takes long on a virtual machine.
    """
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with contextlib.suppress(AttributeError, OSError, TypeError):  # of other C libraries than GNU's
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in MALLOC.items():
                mallopt(option, value)


SECONDS_BETWEEN = 5.0
_callbacks: list[Callable[[], None]] = []
_last_beat = [float("-inf")]


def beat() -> None:
    """Report that a batch, or another slow operation, has ended; at most every few seconds."""
    if _callbacks and (now := time.monotonic()) - _last_beat[0] >= SECONDS_BETWEEN:
        _last_beat[0] = now
        _callbacks[-1]()


@contextlib.contextmanager
def on_heartbeat(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` at heartbeats within a block."""
    _callbacks.append(callback)
    try:
        yield
    finally:
        _callbacks.remove(callback)


@contextlib.contextmanager
def tee_to_log() -> Iterator[Callable[[Path], None]]:
    """Yield a function that copies what Python prints from then on into the log of a work folder, for `train`."""
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as files:

        def on_start(work: Path) -> None:
            log = files.enter_context(open(work / LOG, "a", encoding="utf-8", buffering=1))
            sys.stdout, sys.stderr = (stream and cast(TextIO, _Tee(stream, log)) for stream in before)

        try:
            yield on_start
        finally:
            sys.stdout, sys.stderr = before


class _Tee:
    """A stream of text whose content goes into a log too."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self.stream, self.log = stream, log

    def write(self, text: str) -> int:
        if not self.log.closed:  # a handler made in training may keep the stream for longer
            self.log.write(redacted(text))
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def is_interrupt(error: SystemExit) -> bool:
    """Return True for an exit by Ctrl-C or SIGTERM: Lightning raises SystemExit(1) for one, its own for the other."""
    return isinstance(error.__context__, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException"
