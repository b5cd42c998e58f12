"""Further commands beside a run, processes that are stopped, and a clock that is set back."""

import os
import signal
import time

from lm.chaos.place import StuckError
from lm.chaos.trial import CONTROLLER, Trial, kill, stop
from lm.store.files import write_atomic

DAY = 86400

BACK = f"""import time
_time, _ns = time.time, time.time_ns
time.time = lambda: _time() - {DAY}
time.time_ns = lambda: _ns() - {DAY} * 10**9
"""
"""Read by Python as it starts: what a process is told of the time."""


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


def clock(trial: Trial) -> None:
    """Sets the clock back by a day after a kill: all that is there is from the future for the next command."""
    trial.cut()
    folder = trial.place.folder / "yesterday"
    write_atomic(folder / "sitecustomize.py", BACK)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    trial.hit("the clock")
    trial.done({"PYTHONPATH": path})


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
