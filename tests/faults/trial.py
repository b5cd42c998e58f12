"""A run that is to be disturbed: what was done to it, and in what phase it was hit."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from faults.outcome import Finished
from faults.place import CELLS, LOOK_SECONDS, Place, StuckError, end, marked, parent
from lm.store.files import PARTIAL_CHECKPOINT

STARTING, TRAINING, CHECKPOINTING, FINISHING = "starting", "training", "checkpointing", "finishing a cell"
BETWEEN, REPORTING, WRITING = "between cells", "reporting", "writing the report"
PHASES = STARTING, TRAINING, CHECKPOINTING, FINISHING, BETWEEN, REPORTING, WRITING

CONTROLLER, SERVER, WORKER, ALL = "command", "fork server", "worker", "all"
"""Whom a signal is sent to."""


@dataclass
class Trial:
    """A run in a folder of its own."""

    place: Place
    finished: Finished
    random: random.Random
    seconds: Mapping[str, float]  # that an undisturbed run takes until it trains, and from its last cell to its end
    most: int = 1  # as many times is it to be hit at most
    injected: int = 0  # times that it was
    hits: Counter[str] = field(default_factory=Counter)  # the same, by phase and by who was hit

    def hit(self, what: str) -> None:
        """Counts something that was done to it."""
        self.injected += 1
        self.hits[what] += 1

    def phase(self) -> str:
        """What the run is at, as far as its folder shows."""
        return phase(self.place)

    def checkpoint(self) -> bool:
        """Whether a cell in the making has left a checkpoint."""
        return any((self.place.out / "cells").glob(".*.work/last.ckpt"))

    def begun(self) -> "subprocess.Popen[bytes]":
        """Gives the command and waits for the first checkpoint. Raises StuckError where the command ends before."""
        process = self.place.start()
        if not self.place.until(self.checkpoint, process):
            raise StuckError(f"the command ended before it left a checkpoint: {last_line(self.place.said(process))}")
        return process

    def cut(self) -> None:
        """Begins, and ends everything at once after the first checkpoint, as a machine that fails would."""
        process = self.begun()
        kill(self.place, process, ALL)

    def done(self, more: Mapping[str, str] | None = None) -> str:
        """Gives the command, which is to come to its end; returns what it said."""
        return self.place.ended(self.place.start(more))


def phase(place: Place) -> str:
    """What a run is at, as far as its folder shows."""
    store = place.out / "cells"
    works = list(store.glob(".*.work"))
    if any(any(work.glob(f"{name}{PARTIAL_CHECKPOINT}")) for work in works for name in ("", "*/")):
        return CHECKPOINTING
    if any((work / name).exists() for work in works for name in ("final.ckpt", "outcome.json", "record.json")):
        return FINISHING
    if works:
        return TRAINING
    finished = len(list(store.glob("[0-9a-f]*/record.json")))
    if finished < CELLS:
        return BETWEEN if finished else STARTING
    pages = [(place.report / name).exists() for name in ("report.html", "table.md")]
    return WRITING if pages == [True, False] or any(place.report.glob(".*")) else REPORTING


def kill(place: Place, process: "subprocess.Popen[bytes]", whom: str) -> int:
    """Ends one process of a command, or all; returns how many there were to end."""
    if whom == ALL:
        found = list(place.processes())
    elif whom == CONTROLLER:
        found = [process.pid] if process.poll() is None else []
    else:
        found = members(place, process.pid)[whom][:1]
    for pid in found:
        end(pid)
    if whom in (ALL, CONTROLLER):
        process.wait()
    while whom == ALL and (more := place.processes()):  # one may have been about to start another
        for pid in more:
            end(pid)
        time.sleep(LOOK_SECONDS)
    return len(found)


def members(place: Place, command: int) -> dict[str, list[int]]:
    """The fork server of a command, and the processes that it forked."""
    every = place.processes()
    above = {pid: parent(pid) for pid in every}
    servers = [pid for pid, words in every.items() if "forkserver" in words and above[pid] == command]
    return {SERVER: servers, WORKER: [pid for pid in every if above[pid] in servers]}


def stop(place: Place, number: signal.Signals) -> int:
    """Sends a signal to all processes of a run; returns to how many."""
    found = marked(f"LM_CHAOS={place.folder}")
    for pid in found:
        os.kill(pid, number)
    return len(found)


def last_line(said: str) -> str:
    """Of what a command has said."""
    return " ".join(said.strip().splitlines()[-1:]) or "no word"
