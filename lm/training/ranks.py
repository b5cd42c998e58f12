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
from lm.training.adapter import observing, rank

SECONDS_BETWEEN = 0.5

PATIENCE = 10.0
"""Seconds for a process to notice by itself that another is gone, and for the reason to be known."""

OF_OTHERS = ("gloo", "nccl", "connection", "process group", "socket", "broken pipe", "peer")
"""In the words of errors that say no more than that another process does not answer."""


class RankError(RuntimeError):
    """A further process of a cell died."""


def of_others(error: BaseException) -> bool:
    """Whether an error comes of another process, which has ended."""
    if isinstance(error, torch.distributed.DistError):
        return True
    said = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(words in said for words in OF_OTHERS)


# the first process ---------------------------------------------------------------------------------------------------


class Watch:
    """Looks after the further processes that this one started.

    Args:
        work: the cell's work folder, where they leave what they die of.
        give_up: records the cell as failed, where this process hangs in a call that waits for a dead one.
    """

    def __init__(self, work: Path, give_up: Callable[[str], object]) -> None:
        self.work, self.give_up = work, give_up
        self.processes: list[subprocess.Popen[bytes]] = []
        self.over = threading.Lock()
        self.left = False

    def start(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Looks after `processes`, ranks 1 and up, from a thread of its own."""
        self.processes = processes
        threading.Thread(target=self._look, name="ranks", daemon=True).start()

    def cause(self) -> str | None:
        """What the first of them to die died of; None while none has."""
        ended = {at: process.poll() for at, process in enumerate(self.processes, start=1)}
        told = dict(_told(self.work))
        for at in sorted(told):
            return f"rank {at}: {told[at]}"
        for at, code in ended.items():
            if code:
                return f"rank {at} {_how(code)}"
        return None

    def why(self, error: BaseException) -> str | None:
        """What is behind an error of this process, where that is the death of another."""
        if not (isinstance(error, Exception) and of_others(error)):
            return None
        deadline = time.monotonic() + PATIENCE
        while (found := self.cause()) is None and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN)
        return found

    def leave(self) -> None:
        """This process is past what it shares with the others; waits for ever where the cell is being given up."""
        with self.over:
            self.left = True

    def end(self) -> None:
        """Ends those that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()  # one that waits for another hears nothing else

    def _look(self) -> None:
        while (found := self.cause()) is None:
            if self.left or all(process.poll() == 0 for process in self.processes):
                return
            time.sleep(SECONDS_BETWEEN)
        deadline = time.monotonic() + 2 * PATIENCE
        while time.monotonic() < deadline:
            if self.left:
                return
            time.sleep(SECONDS_BETWEEN)
        with self.over:
            if self.left:
                return
            self.end()
            print(found, file=sys.stderr, flush=True)
            self.give_up(f"{RankError.__name__}: {found}")
            os._exit(1)  # the main thread waits in a call that never returns


@contextlib.contextmanager
def side_by_side(work: Path, give_up: Callable[[str], object]) -> Iterator[None]:
    """Within it the further processes of a cell are looked after.

    Raises:
        RankError: where one of them dies, in the place of the error by which this process notices.
    """
    remove(work / RANKS)
    watch = Watch(work, give_up)
    try:
        with observing(watch.start):
            yield
    except BaseException as error:
        found = watch.why(error)
        watch.leave()
        watch.end()
        if found is None:
            raise
        raise RankError(found) from error
    watch.leave()


def _told(work: Path) -> Iterator[tuple[int, str]]:
    """What further processes died of, by rank, as far as they could say so."""
    for path in (work / RANKS).glob("*.json"):
        with contextlib.suppress(InputError, OSError, ValueError, TypeError, KeyError):
            yield int(path.stem), str(read_json(path)["error"])


def _how(code: int) -> str:
    """How a process ended, from its exit code."""
    if code > 0:
        return f"ended with exit code {code}"
    hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


# the further ones ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def further(work: Path) -> Iterator[None]:
    """Within it a further process tells the first what it dies of, and does not outlive who started it."""
    over = threading.Event()
    threading.Thread(target=_end_with, args=(os.getppid(), over), name="parent", daemon=True).start()
    try:
        yield
    except Exception as error:
        if not of_others(error):
            said = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            write_atomic(work / RANKS / f"{rank()}.json", to_json(said))
        raise
    finally:
        over.set()


def _end_with(parent: int, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN):
        if os.getppid() != parent:
            os._exit(1)  # the main thread may wait in a call that never returns
