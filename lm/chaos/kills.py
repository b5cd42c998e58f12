"""Processes of a run that are killed at moments drawn at random."""

import subprocess
import time

from lm.chaos.place import LOOK_SECONDS
from lm.chaos.trial import (
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

MOMENTS = {STARTING: 1, TRAINING: 2, CHECKPOINTING: 3, FINISHING: 2, REPORTING: 1, WRITING: 2}
"""Phases that a kill waits for, and how often each is drawn."""

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
    if awaited != STARTING and not place.until(lambda: trial.phase() == awaited, process):
        return False
    least = trial.seconds[DURING_SECONDS[awaited]] if awaited in DURING_SECONDS else None
    time.sleep(trial.random.uniform(0.0, LINGER_SECONDS if awaited == TRAINING else least or REST_SECONDS))
    at = trial.phase()
    while process.poll() is None:
        if kill(place, process, whom):
            trial.hit(f"{whom}, {at}")
            return True
        time.sleep(LOOK_SECONDS)
    return False


def drawn(trial: Trial, weights: dict[str, int]) -> str:
    """One of several names by their weights."""
    return trial.random.choices(list(weights), list(weights.values()))[0]
