"""The loop between a source of cells and an executor, whichever that is."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Patch
from in_threads import InThreads
from interrupting import listening, press_unheard
from messages import CheckMessage, Refused
from stand_in import STEPS, StandIn, execution

from lm.execution import scheduler
from lm.execution.executor import Executor, Job, Outcome
from lm.execution.scheduler import Planned, Running, StaticQueue, Watcher, run_cells, train_cells
from lm.store import leases
from lm.store.leases import LostError
from lm.store.locks import Holder
from lm.store.store import Store

FIRST, SECOND, THIRD, FOURTH = (letter * 16 for letter in "abcd")

pytestmark = pytest.mark.usefixtures("light")


class Told(Watcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.lines: list[str] = []
        self.seen: list[list[tuple[str, int, int]]] = []
        self.left: list[int] = []

    def on_progress(self, running: list[Running], left: int) -> None:
        self.seen.append([(one.planned.name, one.slot, one.step) for one in running])
        self.left.append(left)

    def on_finished(self, planned: Planned, record: Any, seconds: float) -> None:
        assert seconds >= 0
        self.records[planned.name] = record

    def on_waiting(self, line: str) -> None:
        self.lines.append(line)


class Asked(StaticQueue):
    """Keeps what it is asked and told; lets a cell go on but for one."""

    def __init__(self, cells: list[Planned], stops: str = "") -> None:
        super().__init__(cells)
        self.stops = stops
        self.said: list[Any] = []

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        self.said.append((planned.name, step, measured))
        return planned.cell.id != self.stops

    def ended(self, planned: Planned, record: Any) -> None:
        self.said.append((planned.name, record and record["status"]))


def planned(*cells: Any) -> list[Planned]:
    return [Planned("arm", seed, cell) for seed, cell in enumerate(cells)]


def carried_out(store: Store, source: StaticQueue, told: Told, capacity: int = 2) -> int:
    with InThreads(store, capacity) as executor:
        return run_cells(source, executor, told, execution())


def test_every_cell_is_trained_in_its_order_and_told_of(store: Store) -> None:
    told, source = Told(), Asked(planned(*map(StandIn, (FIRST, SECOND, THIRD))))
    assert carried_out(store, source, told, capacity=1) == 0
    assert list(told.records) == ["arm seed 0", "arm seed 1", "arm seed 2"]
    assert list(told.records.values()) == [store.record(cell) for cell in (FIRST, SECOND, THIRD)]
    assert source.said == [(name, "ok") for name in told.records]
    assert all(len(running) <= 1 for running in told.seen)
    assert (told.left[0], told.left[-1]) == (2, 0)
    assert told.seen[-1] == []


def test_running_cells_stay_within_capacity_and_keep_their_slots(store: Store) -> None:
    told = Told()
    with InThreads(store, 2) as executor:
        assert train_cells(planned(*map(StandIn, (FIRST, SECOND, THIRD, FOURTH))), executor, told, execution()) == 0
    places: dict[str, set[int]] = {}
    for running in told.seen:
        assert len({place for _, place, _ in running}) == len(running) <= 2
        for name, place, step in running:
            places.setdefault(name, set()).add(place)
            assert 0 <= step <= STEPS
    assert all(len(found) == 1 and found <= {0, 1} for found in places.values())


def test_the_queue_judges_validations_and_hears_of_pruned_cells(store: Store, check_message: CheckMessage) -> None:
    told = Told()
    source = Asked(planned(StandIn(FIRST, {5: "validate"}), StandIn(SECOND, {4: "validate"})), stops=FIRST)
    assert carried_out(store, source, told, capacity=1) == 0
    assert source.said == [
        ("arm seed 0", 5, {"nll": 5.0}),
        ("arm seed 0", "pruned"),
        ("arm seed 1", 4, {"nll": 4.0}),
        ("arm seed 1", "ok"),
    ]
    assert told.records["arm seed 0"]["status"] == "pruned"
    check_message(told.records["arm seed 0"]["error"])


def test_failed_and_lost_cells_stop_no_other(store: Store) -> None:
    told = Told()
    cells = StandIn(FIRST, {3: "raise"}), StandIn(SECOND, {3: "SIGKILL", 5: "SIGKILL"}), StandIn(THIRD)
    assert carried_out(store, StaticQueue(planned(*cells)), told, capacity=1) == 0
    assert [record["status"] for record in told.records.values()] == ["failed", "failed", "ok"]


def test_a_cell_started_again_begins_to_be_timed_again(store: Store) -> None:
    one = Running(planned(StandIn(FIRST))[0], 0)
    one.update(5, STEPS, 1.0)
    one.update(6, STEPS, 1.0)
    assert one.pace is not None
    one.restart()
    assert (one.step, one.steps) == (0, 0)
    assert one.pace is None
    one.update(3, STEPS, 1.0)
    assert one.pace is None, "a step number below the first one is no pace"
    one.update(4, STEPS, 1.0)
    assert one.pace is not None


class Scripted(Executor):
    """Tells what it was given to tell, a poll at a time, of cells by their id."""

    def __init__(self, store: Store, polls: list[list[tuple[str, Any]]]) -> None:
        super().__init__(store, 2)
        self.polls = polls

    def _start(self, cell: Any, execution: Any, name: str) -> Job:
        return Job(cell, execution, name)

    def _listen(self, seconds: float) -> None:
        jobs = {job.cell.id: job for job in self.jobs}
        for cell, told in self.polls.pop(0):
            if isinstance(told, list):
                self._on_message(jobs[cell], told)
            else:
                self._end(jobs[cell], *told)

    def _send(self, job: Job, goes_on: bool) -> None: ...

    def close(self) -> None: ...


def test_a_full_disk_ends_the_loop_after_the_running_cells(store: Store) -> None:
    polls: list[list[tuple[str, Any]]] = [
        [(FIRST, (Outcome.INTERRUPTED, None, (28, "No space left on device", "a file")))],
        [(SECOND, ["progress", 3, STEPS, 1.0])],
        [(SECOND, (Outcome.PRUNED,))],
    ]
    told, source = Told(), Asked(planned(StandIn(FIRST), StandIn(SECOND), StandIn(THIRD)))
    with pytest.raises(OSError, match="No space left on device") as raised:
        run_cells(source, Scripted(store, polls), told, execution())
    assert (raised.value.errno, raised.value.filename) == (28, "a file")
    assert source.said == [("arm seed 0", None), ("arm seed 1", "pruned")]
    assert source.remaining() == 1


def test_interrupted_cells_are_counted(store: Store) -> None:
    told = Told()
    polls: list[list[tuple[str, Any]]] = [[(FIRST, (Outcome.INTERRUPTED,))]]
    assert run_cells(StaticQueue(planned(StandIn(FIRST))), Scripted(store, polls), told, execution()) == 1
    assert told.records == {"arm seed 0": None}


@pytest.fixture
def eager(monkeypatch: Patch) -> None:
    """Looks at what others train, and speaks of it, all the time."""
    monkeypatch.setattr(scheduler, "LOOK_SECONDS", 0.0)


def unnamed(line: str) -> str:
    """A line without what is of this process and this minute alone."""
    here = f"{os.getpid()} on host {socket.gethostname()}"
    return re.sub(r"since [-\d: ]*\d", "since WHEN", line.replace(here, "HERE"))


class LetsGo(Told):
    """Lets go of a cell once it is told of something."""

    def __init__(self, store: Store, cell: str, when: str) -> None:
        super().__init__()
        self.lock, self.when = store.lock(cell), when
        self.lock.__enter__()

    def on_finished(self, planned: Planned, record: Any, seconds: float) -> None:
        super().on_finished(planned, record, seconds)
        self.heard(planned.name)

    def on_waiting(self, line: str) -> None:
        super().on_waiting(line)
        self.heard(line)

    def heard(self, what: str) -> None:
        if self.when in what:
            self.lock.__exit__(None, None, None)


@pytest.mark.usefixtures("eager")
def test_cells_locked_elsewhere_are_trained_last(store: Store, check_message: CheckMessage) -> None:
    told, cells = LetsGo(store, FIRST, "arm seed 2"), planned(*map(StandIn, (FIRST, SECOND, THIRD)))
    with InThreads(store, 1) as executor:
        assert train_cells(cells, executor, told, execution()) == 0
    assert list(told.records) == ["arm seed 1", "arm seed 2", "arm seed 0"]
    check_message(unnamed(told.lines[0]))


@pytest.mark.usefixtures("eager")
def test_waiting_for_cells_locked_elsewhere_is_reported(store: Store) -> None:
    told = LetsGo(store, FIRST, "waiting for 1 cell being trained by process ")
    assert carried_out(store, StaticQueue(planned(StandIn(FIRST), StandIn(SECOND))), told) == 0
    assert list(told.records) == ["arm seed 1", "arm seed 0"]


@pytest.mark.usefixtures("eager")
def test_what_a_process_elsewhere_left_is_taken_over(
    store: Store, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    folder = store.cells / ".leases" / FIRST
    folder.mkdir(parents=True)
    (folder / "1").write_bytes(
        replace(Holder.this("a" * 16), machine="another", host="elsewhere", pid=7, parent_pid=5).written()
    )
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.001)
    told, cells = Told(), planned(*map(StandIn, (FIRST, SECOND)))
    with InThreads(store, 1) as executor:
        assert train_cells(cells, executor, told, execution()) == 0
    check_message(unnamed(told.lines[0]))
    assert list(told.records) == ["arm seed 1", "arm seed 0"]


def test_two_loops_on_one_store_train_each_cell_once(store: Store) -> None:
    """One begins, the other comes while it is at work."""
    other: list[int] = []

    class Joins(Told):
        def on_progress(self, running: list[Running], left: int) -> None:
            if not other and running:
                other.append(carried_out(store, StaticQueue(planned(*cells[1:])), Told(), capacity=1))

    cells = [StandIn(cell) for cell in (FIRST, SECOND, THIRD)]
    assert carried_out(store, StaticQueue(planned(*cells)), Joins(), capacity=1) == 0
    assert other == [0]
    assert [store.record(cell.id)["cost"]["tries"] for cell in cells] == [1, 1, 1]


@pytest.mark.parametrize("seed", [0, 2])
def test_no_cell_is_begun_once_the_folder_was_taken_away(store: Store, seed: int, refused: Refused) -> None:
    manifest = store.out / "small" / "experiment.json"
    manifest.parent.mkdir()
    manifest.write_text("{}")

    class TakesAway(Told):
        def on_finished(self, planned: Planned, record: Any, seconds: float) -> None:
            super().on_finished(planned, record, seconds)
            if planned.seed == seed:
                manifest.unlink()

    told, cells = TakesAway(), planned(*map(StandIn, (FIRST, SECOND, THIRD)))
    with refused(LostError), InThreads(store, 1) as executor:
        train_cells(cells, executor, told, execution(), manifest)
    assert list(told.records) == [f"arm seed {number}" for number in range(seed + 1)]
    assert executor.jobs == []


def test_an_interrupt_leaves_through_the_executor(store: Store, tmp_path: Path) -> None:
    class Interrupts(Told):
        def on_progress(self, running: list[Running], left: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), InThreads(store, 1) as executor:
        train_cells(planned(StandIn(FIRST, {5: "validate"})), executor, Interrupts(), execution())
    assert executor.jobs == []
    with store.claim(FIRST) as free:
        assert free


def test_a_swallowed_interrupt_still_ends_the_loop(store: Store) -> None:
    class Swallows(Told):
        def on_progress(self, running: list[Running], left: int) -> None:
            if running and not self.seen:
                press_unheard()
            super().on_progress(running, left)

    told = Swallows()
    with listening(), pytest.raises(KeyboardInterrupt), InThreads(store, 1) as executor:
        train_cells(planned(*map(StandIn, (FIRST, SECOND, THIRD))), executor, told, execution())
    assert len(told.seen) == 1
    assert executor.jobs == []
