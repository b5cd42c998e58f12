"""What the loop that hands out cells takes for each of them, as their number grows: processor, memory, files.

The loop, what it shows and the store are the real ones; cells and those who train them are not. A thousand workers
train for made-up times by a clock that stands still while anybody computes. Of the cells one in twenty is killed in the
middle and started again, one in fifty fails, one in a hundred is interrupted, and one in fifty is held by another
command when its turn comes. What the workers themselves take, who write the records, is not counted.
"""

import hashlib
import heapq
import itertools
import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from lm.bench.asked import Asked
from lm.bench.rows import Row, exactly, row
from lm.bench.scale import OVER
from lm.execution.cell_queue import Planned, StaticQueue
from lm.execution.executor import Ended, Event, Executor, Handle, Outcome, Progress, Started
from lm.execution.foreign_cells import ForeignCells
from lm.execution.progress import Display
from lm.execution.scheduler import Clock, run_cells
from lm.store.holders import Holder
from lm.store.record import Record
from lm.store.store import Store
from lm.training.train import Execution

WORKERS, SIZES = 1000, (100, 1000, 10_000)
KILLED, FAILED, INTERRUPTED, HELD = 20, 50, 100, 50
"""One cell in so many."""

STEPS, SECONDS = 4, 60.0
"""Reports of a cell, and about how long one trains."""

LIMITS = {"processor": 2.0, "files": 1.25, "memory": 1.25}
"""How much more of each a cell may take among the most cells than among a tenth of them."""

TOUCHES = (
    "open",
    "os.listdir",
    "os.scandir",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.truncate",
)
"""What is counted, as Python's audit events call it; `os.stat`, of which there is none, is counted too."""


class Workers(Executor):
    """Trains nothing: cells end when their time has come, and leave the records that others wrote for them.

    Args:
        store: that records are read from.
        capacity: how many there are.
    """

    def __init__(self, store: Store, capacity: int) -> None:
        self.store, self.capacity = store, capacity
        self.foreign = ForeignCells(store)
        self.now, self.apart = 0.0, 0.0
        """Seconds that have gone by, and those of the processor that belong to the workers."""
        self.numbers = itertools.count()
        self.coming: list[tuple[float, int, Event]] = []
        self.ended: dict[Handle, bool] = {}
        self.held_until: dict[str, float] = {}

    def submit(self, cell: Any, execution: Execution, name: str) -> Handle:
        start = time.process_time()
        handle = Handle(next(self.numbers), cell.id, name)
        number = cell.number
        takes = SECONDS * (0.5 + number * 7919 % 1000 / 1000)
        times = [self.now + takes * step / STEPS for step in range(STEPS + 1)]
        events: list[Event] = [Started(handle), *(Progress(handle, step, STEPS, 2.0) for step in range(1, STEPS))]
        if number % KILLED == 3:  # in the middle, and taken up
            events[2:2] = [Started(handle)]
            times = [*times[:2], times[1] + 1.0, *(one + 2.0 for one in times[2:])]
        recorded = number % INTERRUPTED != 5
        events.append(Ended(handle, Outcome.RECORDED if recorded else Outcome.INTERRUPTED, STEPS))
        for moment, event in zip(times, events, strict=True):
            heapq.heappush(self.coming, (moment, next(self.numbers), event))
        if recorded:
            with _uncounted():
                _write_record(self.store, cell.id, number % FAILED == 7)
        self.apart += time.process_time() - start
        return handle

    def poll(self, timeout: float) -> Sequence[Event]:
        start = time.process_time()
        until, events = self.now + timeout, list[Event]()
        if self.coming and self.coming[0][0] <= until:
            self.now = max(self.now, self.coming[0][0])
            while self.coming and self.coming[0][0] <= self.now:
                events.append(heapq.heappop(self.coming)[2])
        else:
            self.now = until
        self.ended |= {event.handle: event.outcome is Outcome.RECORDED for event in events if isinstance(event, Ended)}
        self.apart += time.process_time() - start
        return events

    def held(self, cell: str) -> Holder | str | None:
        found = self.foreign.held(cell)
        return "another command" if self.held_until.get(cell, 0.0) > self.now else found

    def result(self, handle: Handle) -> Record | None:
        return self.store.record(handle.cell) if self.ended.pop(handle) else None

    def cancel(self, handle: Handle) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """There is nothing at work."""

    def sleep(self, seconds: float) -> None:
        """Lets time go by."""
        self.now += seconds


class Counting(Display):
    """The real display, which counts how cells ended."""

    def __init__(self, cells: int, store: Store, to: Console) -> None:
        super().__init__(cells, WORKERS, store)
        self.console = to
        self.ends: Counter[str] = Counter()

    def on_finished(self, planned: Planned, record: Any, seconds: float) -> None:
        self.ends["interrupted" if record is None else record["status"]] += 1
        super().on_finished(planned, record, seconds)


# counting ------------------------------------------------------------------------------------------------------------

_files = {"counted": False, "hooked": False}
_count = [0]


def _heard(event: str, arguments: Any) -> None:
    if _files["counted"] and event in TOUCHES:
        _count[0] += 1


@contextmanager
def _counting() -> Iterator[None]:
    """Counts what is done to files from here on."""
    if not _files["hooked"]:  # for good: Python takes no hook back
        sys.addaudithook(_heard)
        _files["hooked"] = True
    looks = {name: getattr(os, name) for name in ("stat", "lstat")}

    def counted(look: Callable[..., Any]) -> Callable[..., Any]:
        def counts(*arguments: Any, **named: Any) -> Any:
            _count[0] += _files["counted"]
            return look(*arguments, **named)

        return counts

    for name, look in looks.items():
        setattr(os, name, counted(look))
    _count[0], _files["counted"] = 0, True
    try:
        yield
    finally:
        _files["counted"] = False
        for name, look in looks.items():
            setattr(os, name, look)


@contextmanager
def _uncounted() -> Iterator[None]:
    """Counts nothing, for what the workers do."""
    before, _files["counted"] = _files["counted"], False
    try:
        yield
    finally:
        _files["counted"] = before


# a run ---------------------------------------------------------------------------------------------------------------


def _write_record(store: Store, cell: str, failed: bool) -> None:
    """A record that says little, as a worker leaves it."""
    folder = store.directory(cell)
    folder.mkdir(parents=True, exist_ok=True)
    status = {"status": "failed", "error": "RuntimeError: no"} if failed else {"status": "ok", "error": None}
    found: dict[str, Any] = {
        "format": 2,
        "id": cell,
        **status,
        "metrics": {"nll": 2.0},
        "flags": [],
        "provenance": {},
        "cost": {},
    }
    (folder / "record.json").write_text(json.dumps(found), encoding="utf-8")


def simulated(cells: int, workers: int, place: Path) -> tuple[dict[str, float], Counter[str]]:
    """Seconds of the processor and operations on files a cell, the clock's seconds at the end, and how cells ended."""
    store = Store(place)
    store.cells.mkdir(parents=True)
    ids = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(cells)]
    made: list[Any] = [SimpleNamespace(id=one, number=number) for number, one in enumerate(ids)]
    planned = [Planned(f"arm{number % 250}", number // 250, cell) for number, cell in enumerate(made)]
    at_work = Workers(store, workers)
    at_work.held_until = {one: 40.0 + number % 97 for number, one in enumerate(ids) if number % HELD == 11}
    with open(os.devnull, "w", encoding="utf-8") as nowhere, _counting():
        watcher = Counting(cells, store, Console(file=nowhere, width=120))
        start = time.process_time()
        interrupted = run_cells(
            StaticQueue(planned), at_work, watcher, Execution(), Clock(lambda: at_work.now, at_work.sleep)
        )
        taken = time.process_time() - start - at_work.apart
    if watcher.ends["interrupted"] != interrupted or sum(watcher.ends.values()) != cells:
        raise RuntimeError(f"{cells} cells were handed out, and these ended: {dict(watcher.ends)}")
    return {"processor": taken / cells, "files": _count[0] / cells, "until": at_work.now}, watcher.ends


def controller(asked: Asked) -> list[Row]:
    """A row for each number of cells."""
    sizes, workers = ((10, 100), 10) if asked.quick else (SIZES, WORKERS)
    rows: list[Row] = []
    before: dict[str, float] = {}
    for cells in sizes:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            found, ends = simulated(cells, workers, Path(one) / "out")
            tracemalloc.start()
            simulated(cells, workers, Path(other) / "out")
            found["memory"] = tracemalloc.get_traced_memory()[1] / cells
            tracemalloc.stop()
        over = [name for name, limit in LIMITS.items() if cells >= 10 * workers and found[name] > limit * before[name]]
        more: dict[str, float | None] = {"file_operations": found["files"], "peak_kib": found["memory"] / 1024}
        more |= {"simulated_seconds": found["until"], **{name: float(ends[name]) for name in ("ok", "failed")}}
        more["interrupted"] = float(ends["interrupted"])
        first = rows[0]["value"] if rows else found["processor"]
        rows.append(
            row(
                f"a cell, of the processor; {workers:,} workers",
                f"{cells:,} cells",
                found["processor"],
                to=f"{sizes[0]:,} cells",
                ratio=exactly(found["processor"] / first) if first else None,
                more=more,
                note=OVER if over else "",
            )
        )
        before = found
    return rows
