"""Processes of a run that are killed at moments drawn at random."""

import subprocess
import time

from faults.outcome import resumes
from faults.place import LOOK_SECONDS, Place, StuckError, end
from faults.trial import (
    ALL,
    CHECKPOINTING,
    CONTROLLER,
    FINISHING,
    REPORTING,
    SERVER,
    STARTING,
    TRAINING,
    WORKER,
    WRITING,
    Trial,
    kill,
)
from lm.store.store import Store

AFTER = "training after a checkpoint"

MOMENTS = {STARTING: 1, TRAINING: 1, AFTER: 3, CHECKPOINTING: 3, FINISHING: 2, REPORTING: 1, WRITING: 2}
"""Phases that a kill waits for, and how often each is drawn."""

LATER = {TRAINING: (AFTER,)}
"""Moments that will do where another is waited for: a run may be past it."""

WHOM = {CONTROLLER: 5, WORKER: 3, SERVER: 1, ALL: 3}
"""Who is killed, and how often each is drawn."""

IN_A_RUN = 5
"""Kills of one run at most: then it is to come to its end, and is looked at."""

DURING_SECONDS = {STARTING: "start", REPORTING: "report"}
"""Phases that last, and how long they do in an undisturbed run."""

LINGER_SECONDS, REST_SECONDS = 0.5, 0.02
"""At most, between seeing that a cell is trained, or something shorter, and the kill."""


def kills(trial: Trial) -> None:
    """Kills processes of commands, one in each, and gives the command again at once, until one comes to its end."""
    for _ in range(min(trial.most, IN_A_RUN)):
        process = trial.place.start()
        if not struck(trial, process):
            trial.place.ended(process)
            return
        if process.poll() is None:  # a worker or a fork server, without which it goes on
            trial.place.ended(process)
            return
    trial.done()


def struck(trial: Trial, process: "subprocess.Popen[bytes]") -> bool:
    """Kills at a moment drawn at random; says whether there was anything to kill before the command ended."""
    awaited = drawn(trial, MOMENTS)
    whom = CONTROLLER if awaited in (STARTING, REPORTING, WRITING) else drawn(trial, WHOM)
    place = trial.place
    if awaited != STARTING and not place.until(lambda: moment(trial) in (awaited, *LATER.get(awaited, ())), process):
        return False
    least = trial.seconds[DURING_SECONDS[awaited]] if awaited in DURING_SECONDS else None
    longest = LINGER_SECONDS if awaited in (TRAINING, AFTER) else least or REST_SECONDS
    time.sleep(trial.random.uniform(0.0, longest))
    at = moment(trial)
    while process.poll() is None:
        if kill(place, process, whom):
            trial.hit(f"{whom}, {at}")
            return True
        time.sleep(LOOK_SECONDS)
    return False


def moment(trial: Trial) -> str:
    """Return what a run is at; whether a cell in training has left a checkpoint tells two moments apart."""
    at = trial.phase()
    return AFTER if at == TRAINING and trial.checkpoint() else at


def resumed(trial: Trial) -> None:
    """Kills the process of every cell once, as the cell trains on after its first checkpoint; the command goes on.

    What is counted are the cells that were truly resumed, as their records say."""
    place, killed = trial.place, set[str]()
    process = place.start()
    while process.poll() is None:
        for cell in resumable(place) - killed:
            holder = Store(place.out).held_by(cell)
            if holder is not None and holder.pid in place.processes():
                end(holder.pid)
                killed.add(cell)
        time.sleep(LOOK_SECONDS)
    place.ended(process)
    count = sum(resumes(place).values())
    for _ in range(count):
        trial.hit("a cell resumed after its first checkpoint")
    if not count:
        raise StuckError(f"no cell was resumed: {len(killed)} processes of cells were killed")


def resumable(place: Place) -> set[str]:
    """Return the ids of the cells that have left a checkpoint and are still in training."""
    works = (place.out / "cells").glob(".*.work")
    ends = ("outcome.json", "final.ckpt", "record.json")
    return {
        work.name.removeprefix(".").removesuffix(".work")
        for work in works
        if (work / "last.ckpt").exists() and not any((work / name).exists() for name in ends)
    }


def drawn(trial: Trial, weights: dict[str, int]) -> str:
    """One of several names by their weights."""
    return trial.random.choices(list(weights), list(weights.values()))[0]
