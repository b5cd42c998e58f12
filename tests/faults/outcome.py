"""What a run came to, but for times and hosts, and in what that differs from a run that nothing disturbed."""

import csv
import io
import json
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.place import LOOK_SECONDS, SWEEP, Place

COUNTED = ("parameters", "tokens", "flops_per_token", "world_size")
"""Costs that are no times."""

OF_TIME = re.compile("second|time|memory|mfu|wait")
"""In the names of quantities that differ from run to run."""

OF_STUDY = re.compile(rf"out/{SWEEP}/(study\.journal$|\.study\.journal\.leases(/|$))")
"""Where a search lies in its folder."""

MOST_NAMED = 3


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    cells: Mapping[str, tuple[Any, str]]
    table: list[Any]
    files: frozenset[str]


def outcome(place: Place) -> Outcome:
    """What the run in a folder came to."""
    return Outcome(measured(place.out), trials(place) if place.sweep else table(place.report), names(place))


def measured(out: Path) -> dict[str, tuple[Any, str]]:
    """What each finished cell in a results folder measured, but for times and hosts, and its learning curve."""
    found = {}
    for path in sorted((out / "cells").glob("[0-9a-f]*/record.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        record.pop("provenance")
        record["cost"] = {name: value for name, value in record["cost"].items() if name in COUNTED}
        found[path.parent.name] = record, path.with_name("history.csv").read_text(encoding="utf-8")
    return found


def resumes(place: Place) -> dict[str, int]:
    """Return how often each finished cell was resumed from a checkpoint, as its record says, by its id."""
    paths = sorted((place.out / "cells").glob("[0-9a-f]*/record.json"))
    records = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return {cell: int(record["provenance"]["resumed"]) for cell, record in records.items()}


def table(report: Path) -> list[Any]:
    """The rows of an experiment's table, without the quantities that are times or memory."""
    rows = csv.DictReader(io.StringIO((report / "table.csv").read_text(encoding="utf-8")))
    return [row for row in rows if not OF_TIME.search(row["metric"])]


def trials(place: Place) -> list[Any]:
    """The trials of a search by what they tried, without how long they took and in which order they were begun."""
    study = json.loads((place.report / "study.json").read_text(encoding="utf-8"))["study"]
    kept = [{name: value for name, value in one.items() if name not in ("seconds", "number")} for one in study]
    return sorted(kept, key=lambda one: json.dumps(one["params"], sort_keys=True))


def names(place: Place) -> frozenset[str]:
    """What lies in the folders of a run; leases, of which one file stays whatever its number, by their cells alone.

    A study's journal and leases are left out: they may lie in a database. So are stored plans, one for each experiment
    that was planned to its end, and the folder in which Python's fork server listens, which a killed command leaves.
    """
    roots = place.out, place.cache, place.temporary
    found = (path.relative_to(place.folder).as_posix() for root in roots for path in root.rglob("*"))
    kept = (name for name in found if not OF_STUDY.match(name) and "/answers" not in name and "/pymp-" not in name)
    return frozenset(re.sub(r"(/\.leases/[0-9a-f]+)/\d+$", r"\1/lease", name) for name in kept)


def differences(found: Outcome, whole: Outcome) -> list[str]:
    """List in words how a run differs from an undisturbed one."""
    said = []
    if lost := whole.cells.keys() - found.cells.keys():
        said.append(f"no record of {_counted(lost, 'cell')} of {len(whole.cells)}")
    if more := found.cells.keys() - whole.cells.keys():
        said.append(f"{_counted(more, 'cell')} more than {len(whole.cells)}")
    if other := [cell for cell in found.cells.keys() & whole.cells.keys() if found.cells[cell] != whole.cells[cell]]:
        said.append(f"{_counted(other, 'cell')} measured something else: {_few(one[:8] for one in other)}")
    if found.table != whole.table:
        said.append("the table differs")
    if left := found.files - whole.files:
        said.append(f"left behind: {_few(left)}")
    if missing := whole.files - found.files:
        said.append(f"not there: {_few(missing)}")
    return said


def _counted(found: Collection[str], word: str) -> str:
    return f"{len(found)} {word}{'s' * (len(found) != 1)}"


def _few(found: Iterable[str]) -> str:
    every = sorted(found)
    return ", ".join(every[:MOST_NAMED]) + (f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else "")


@dataclass
class Finished:
    """Counts how often each cell of a run is finished: its record is written at another time each time."""

    store: Path
    times: dict[str, set[int]] = field(default_factory=dict)
    """When its record was written, of each cell."""

    def __post_init__(self) -> None:
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Finished":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.over.wait(4 * LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Takes in what is there now."""
        for path in self.store.glob("[0-9a-f]*/record.json"):
            try:
                self.times.setdefault(path.parent.name, set()).add(path.stat().st_mtime_ns)
            except OSError:  # it was just being replaced
                continue

    def forget(self, cell: str) -> None:
        """The cell was taken away on purpose."""
        self.times.pop(cell, None)

    def twice(self) -> list[str]:
        """Cells that were trained to their end more than once, in words."""
        self.look()
        again = [cell for cell, seen in self.times.items() if len(seen) > 1]
        return [f"{_counted(again, 'cell')} trained to the end more than once"] if again else []
