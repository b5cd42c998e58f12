"""`make faults`: runs that are disturbed, one fault after the other, each compared with one that is not."""

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.faults import Fault
from faults.outcome import Finished, Outcome, differences, outcome
from faults.place import Place, StuckError
from faults.rows import Row
from faults.trial import REPORTING, STARTING, Trial, phase
from lm.config.tree import InputError
from lm.report.status import duration

SAME, DIFFERS, LEFT_OUT = "same table", "differs", "left out"

Say = Callable[[str], None]


class Chaos:
    """Disturbs runs below a folder."""

    def __init__(self, folder: Path, seed: int, say: Say) -> None:
        self.folder, self.seed, self.say = folder, seed, say
        self.whole: dict[bool, tuple[Outcome, dict[str, float]]] = {}
        self.runs = 0

    def undisturbed(self, fault: Fault) -> tuple[Outcome, dict[str, float]]:
        """What an undisturbed run comes to, and how long parts of it took. Raises InputError where it goes wrong."""
        if fault.sweep not in self.whole:
            place = self._place(fault)
            try:
                self.whole[fault.sweep] = _undisturbed(place)
            except StuckError as error:
                raise InputError(f"a run that nothing disturbed went wrong: {error}") from None
            finally:
                place.close()
            shutil.rmtree(place.folder)
        return self.whole[fault.sweep]

    def row(self, fault: Fault, times: int) -> Row:
        """Disturbs as many runs as it takes, and what came of it."""
        if reason := fault.lacking():
            return Row(fault.name, fault.about, LEFT_OUT, note=reason)
        begun = time.monotonic()
        whole, seconds = self.undisturbed(fault)
        injected, runs, commands, hits = 0, 0, 0, Counter[str]()
        wrong: list[str] = []
        while not runs or (fault.many and injected < times):
            place = self._place(fault)
            chance = random.Random(f"{self.seed} {fault.name} {runs}")
            with Finished(place.out / "cells") as finished:
                trial = Trial(place, finished, chance, seconds, times - injected)
                found = disturbed(fault, trial, whole)
            runs, commands, injected = runs + 1, commands + place.given, injected + trial.injected
            hits += trial.hits
            for line in found:
                wrong.append(line)
                self.say(f"{fault.name}: {place.folder}: {line}")
            if not found:
                shutil.rmtree(place.folder)
            if found and not trial.injected:  # nor would there be the next time
                break
            if fault.many and injected < times:
                each = (time.monotonic() - begun) / max(1, injected)
                self.say(f"{fault.name}: {injected} of {times}; about {duration(each * (times - injected))} left")
        what, note = (DIFFERS, "; ".join(dict.fromkeys(wrong))) if wrong else (SAME, "")
        return Row(fault.name, fault.about, what, injected, runs, commands, time.monotonic() - begun, dict(hits), note)

    def _place(self, fault: Fault) -> Place:
        self.runs += 1
        return Place(self.folder / str(self.runs), fault.sweep, fault.more)


def _undisturbed(place: Place) -> tuple[Outcome, dict[str, float]]:
    begun, seen = time.monotonic(), dict[str, float]()
    process = place.start()
    place.until(lambda: seen.setdefault(phase(place), time.monotonic()) and False, process)
    place.ended(process)
    over = time.monotonic()
    trains = min((at for name, at in seen.items() if name != STARTING), default=begun)
    found = outcome(place)
    wrong = place.left_alive() + [cell for cell, (record, _) in found.cells.items() if record["status"] != "ok"]
    if wrong:
        raise StuckError(f"it leaves {', '.join(wrong)}")
    return found, {"start": trains - begun, "report": over - seen.get(REPORTING, over)}


def disturbed(fault: Fault, trial: Trial, whole: Outcome) -> list[str]:
    """Disturbs a run; says in what it then differs from one that nothing disturbed."""
    place = trial.place
    try:
        fault.inject(trial)
        alive = place.left_alive()
        wrong = [f"left behind: {one}" for one in alive] + differences(outcome(place), whole)
        return wrong + trial.finished.twice()
    except StuckError as error:
        return [str(error)]
    finally:
        place.close()


def inject(faults: Sequence[Fault], times: int, seed: int, each: Callable[[list[Row]], None]) -> list[Row]:
    """A row for each fault; `each` is told all that there are so far. Folders of runs that differ are kept."""
    folder = Path(tempfile.mkdtemp(prefix="lm-faults-"))
    at_work = Chaos(folder, seed, lambda line: print(line, file=sys.stderr, flush=True))
    rows: list[Row] = []
    try:
        for number, fault in enumerate(faults, 1):
            rows.append(at_work.row(fault, times))
            each(rows)
            runs = max(1, sum(row.runs for row in rows))  # of a fault that is not done many times there is one
            left = sum(row.seconds for row in rows) / runs * (len(faults) - number)
            more = f"; about {duration(left)} left" if number < len(faults) else ""
            at_work.say(f"[{number}/{len(faults)}] {fault.name}: {rows[-1].came_to}{more}")
    finally:
        if not any(row.came_to == DIFFERS for row in rows):
            shutil.rmtree(folder)
    return rows
