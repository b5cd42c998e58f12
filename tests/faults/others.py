"""Further commands beside a run, processes that are stopped, and a clock that is set back."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from faults.place import LOOK_SECONDS, StuckError
from faults.trial import CONTROLLER, Trial, kill, stop

DAY = 86400

BACK = (
    f"""import time
_time, _ns = time.time, time.time_ns
time.time = lambda: _time() - {DAY}
time.time_ns = lambda: _ns() - {DAY} * 10**9
"""
    """Read by Python as it starts: what a process is told of the time."""
)


def two(trial: Trial) -> None:
    """Gives the command twice at once; one of the two is killed in the middle, and the other does all that is left."""
    first, second = trial.place.start(), trial.place.start()
    if trial.place.until(trial.checkpoint, first):
        trial.hit("a second command beside the first")
        kill(trial.place, first, CONTROLLER)
        trial.hit("the first of them killed")
    trial.place.ended(second)


def together(trial: Trial) -> None:
    """Gives the command twice at once, and leaves both alone."""
    first, second = trial.place.start(), trial.place.start()
    trial.hit("a second command beside the first")
    trial.place.ended(first)
    trial.place.ended(second)


def three(trial: Trial) -> None:
    """Give the command three times at once, and leave all alone."""
    processes = [trial.place.start() for _ in range(3)]
    trial.hit("two more commands beside the first")
    for process in processes:
        trial.place.ended(process)


REMOVALS = 4
"""Leases that are removed: each costs its holder the cell, which somebody takes up."""

PAUSE_SECONDS = 0.5
"""At most, after a lease was removed, until the next one is."""


def leases(trial: Trial) -> None:
    """Remove leases of cells in the making, drawn at random, while two commands work on these."""
    first, second = trial.place.start(), trial.place.start()
    pauses = [trial.random.uniform(0, PAUSE_SECONDS) for _ in range(REMOVALS)]

    def working() -> bool:
        return first.poll() is None or second.poll() is None

    while pauses and working():
        held = sorted(_held(trial.place.out / "cells"))
        if held:
            with contextlib.suppress(FileNotFoundError):  # another came after it just now
                trial.random.choice(held).unlink()
                trial.hit("a lease")
                time.sleep(pauses.pop())
        time.sleep(LOOK_SECONDS)
    trial.place.ended(first)
    trial.place.ended(second)


def _held(cells: Path) -> Iterator[Path]:
    """Yield the leases of cells in the making."""
    for work in cells.glob(".*.work"):
        name = work.name.removeprefix(".").removesuffix(".work")
        yield from (cells / ".leases" / name).glob("[0-9]*")


def clock(trial: Trial) -> None:
    """Sets the clock back by a day after a kill: all that is there is from the future for the next command."""
    trial.cut()
    folder = trial.place.folder / "yesterday"
    trial.hit("the clock")
    trial.done(trial.place.begins_with(folder, BACK))


def stopped(trial: Trial) -> None:
    """Stops all processes of a command for over a minute; another takes its cells over, and then it is woken."""
    first = trial.begun()
    stop(trial.place, signal.SIGSTOP)
    trial.hit("a command and all of its processes")
    second = trial.place.start()
    said = trial.place.ended(second)
    if "being trained by" not in said:
        raise StuckError("the second command found no cell with the stopped one")
    os.killpg(first.pid, signal.SIGCONT)
    time.sleep(1.0)
    trial.place.ended(first)
