"""Processes that take cell after cell: for how long they stay, which cell they are given, and when they are let go."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import stand_in
from stand_in import STEPS, StandIn

from lm.config.fingerprint import versions_of
from lm.config.tree import InputError
from lm.execution import worker_loop, worker_pool
from lm.execution.attempt import Attempt, Worker
from lm.execution.executor import Ended, Handle, Outcome, Started, Validation
from lm.execution.local import Local
from lm.store.locks import process_status
from lm.store.store import Store

FIRST, SECOND, THIRD = "a" * 16, "b" * 16, "c" * 16


# from inside ---------------------------------------------------------------------------------------------------------


class Given:
    """A pipe out of which cells come, until it is closed."""

    def __init__(self, cells: list[str]) -> None:
        self.cells = list(cells)
        self.said: list[Any] = []

    def recv(self) -> tuple[str, None, None]:
        if not self.cells:
            raise EOFError
        return self.cells.pop(0), None, None

    def send(self, message: Any) -> None:
        self.said.append(message)


def served(store: Store, cells: list[str], left: str = "") -> tuple[list[str], int]:
    """The cells that a process trains of those it is given, and after how many it stays; `left` leaves something."""
    pipe: Any = Given(cells)
    trained: list[str] = []

    def body(cell: str, *_: Any) -> bool:
        trained.append(cell)
        return cell == left

    worker_loop.run_worker(body, store, pipe)
    assert pipe.said == [("over",)] * len(pipe.said)
    return trained, len(pipe.said)


def test_a_process_takes_cells_until_none_comes(store: Store) -> None:
    assert served(store, ["a", "b", "c"]) == (["a", "b", "c"], 3)


def test_a_process_in_which_a_cell_left_something_ends_without_a_word(store: Store) -> None:
    assert served(store, ["a", "b", "c"], left="b") == (["a", "b"], 1)


def test_a_process_takes_so_many_cells_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loop, "MOST_CELLS", 2)
    assert served(store, ["a", "b", "c"])[0] == ["a", "b"]


def grown(monkeypatch: pytest.MonkeyPatch, name: str, sizes: list[int]) -> None:
    after: Iterator[int] = iter(sizes)
    monkeypatch.setattr(worker_loop, name, lambda: next(after))


@pytest.mark.parametrize(("last", "stays"), [(700, 3), (701, 2)])
def test_a_process_that_has_grown_past_its_bound_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch, last: int, stays: int
) -> None:
    grown(monkeypatch, "resident_bytes", [size * 2**20 for size in (100, 600, last, 100)])
    assert served(store, ["a", "b", "c"]) == (["a", "b", "c"], stays)


def test_a_process_in_which_files_stay_open_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(monkeypatch, "count_open_files", [10, 10 + worker_loop.MOST_OPEN_FILES, 11 + worker_loop.MOST_OPEN_FILES])
    assert served(store, ["a", "b", "c", "d"]) == (["a", "b", "c"], 2)


def test_what_a_process_holds_is_measured() -> None:
    assert worker_loop.resident_bytes() > 2**20
    if Path("/proc/self/fd").is_dir():
        before = worker_loop.count_open_files()
        with open(os.devnull) as first, open(os.devnull) as second:
            assert worker_loop.count_open_files() == before + len((first, second))


# which cell a process is given ---------------------------------------------------------------------------------------


class Silent:
    """A process of which nothing is to be known, and the pipe to it."""

    exitcode, closed = None, False

    def is_alive(self) -> bool:
        return True

    def poll(self) -> bool:
        return False

    def close(self) -> None: ...


def idle(store: Store, *cells: StandIn, capacity: int = 2) -> worker_pool.WorkerPool:
    """Processes without a cell, of which each had one of these."""
    found = worker_pool.WorkerPool(store, capacity, lambda *_: None, [], lambda line: None)
    for slot, one in enumerate(cells):
        cell: Any = one
        process: Any = Silent()
        found.mark_idle(Worker(process, process, slot, worker_pool.code_of(cell), worker_pool.shape_of(cell)))
    return found


def of(width: int, seed: int = 0, devices: int = 1, part: str = "Inner") -> StandIn:
    config = {"width": width, "seed": seed, "trainer": {"devices": devices}, "model": {"class_path": part}}
    return StandIn(f"{width}-{seed}", config=config)


def placed(found: worker_pool.WorkerPool, cell: Any, *taken: int, alone: bool = True) -> tuple[int, bool]:
    slot, worker = found.assign(cell, alone, set(taken))
    return slot, worker is not None


def test_a_cell_goes_where_the_last_one_differs_in_the_seed_alone(store: Store) -> None:
    found = idle(store, of(8), of(16), of(32), capacity=4)
    assert placed(found, of(16, seed=5), 3) == (1, True)
    assert placed(found, of(32, seed=1), 3) == (2, True)
    assert placed(found, of(64), 3) == (0, True), "the one that has waited longest"


def test_where_no_process_waits_a_fresh_one_takes_the_first_free_place(store: Store) -> None:
    assert placed(idle(store, capacity=3), of(8), 0) == (1, False)


def test_a_cell_of_several_devices_finds_no_process_waiting(store: Store) -> None:
    found = idle(store, of(8), of(8))
    assert placed(found, of(8, devices=2), alone=False) == (0, False)
    assert found.idle == {}
    assert len(found.leaving) == 2


def test_a_process_that_has_imported_other_code_makes_way(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("staying_one", "staying_two"):
        (tmp_path / f"{name}.py").write_text("class A: ...\nclass B: ...\n")
    own, others = of(8, part="staying_one.A"), of(8, part="staying_two.A")
    found = idle(store, of(8), own)
    assert placed(found, of(8, seed=1, part="staying_one.B")) == (1, True), "another class of the same file"
    assert placed(found, of(8)) == (0, True)
    assert placed(found, others) == (0, False)
    assert list(found.idle) == [1]
    (tmp_path / "staying_one.py").write_text("class A:\n    x = 1\nclass B: ...\n")
    with pytest.raises(InputError, match="was changed after it was imported"):
        versions_of(own.config)
    assert placed(found, own) == (0, False), "what waits has the older code"


def test_of_an_installed_package_its_version_is_the_code() -> None:
    ((module, known),) = versions_of({"class_path": "filelock.FileLock"})
    assert module.startswith("filelock")
    assert known == f"filelock {metadata.version('filelock')}"


def test_an_answer_is_given_once_so_that_the_next_cell_gets_none(store: Store) -> None:
    sent: list[bool] = []

    class Hears(Silent):
        pid = os.getpid()

        def send(self, answer: bool) -> None:
            sent.append(answer)

    whole: Any = Hears()
    attempt = Attempt(Worker(whole, whole, 0, frozenset()), None)
    attempt.answer(True)
    attempt.awaits_answer = True
    attempt.answer(False)
    attempt.answer(True)
    assert (sent, attempt.stopped) == ([False], True)


# from outside --------------------------------------------------------------------------------------------------------


class Watched:
    """Hands cells over one after another; knows which process each was given to."""

    def __init__(self, store: Store, capacity: int = 1) -> None:
        self.executor = Local(store, capacity)
        self.processes: list[int] = []

    def begin(self, cell: Any) -> Handle:
        handle = self.executor.submit(cell, stand_in.execution(), f"cell {cell.id[0]}")
        self.processes.append(self.executor.jobs[handle].attempt.process.pid)
        return handle

    def end(self, cancel: bool = False, answer: bool = True) -> list[Any]:
        events: list[Any] = []
        while self.executor.jobs:
            for event in self.executor.poll(1.0):
                events.append(event)
                if isinstance(event, Validation):
                    self.executor.cancel(event.handle) if cancel else event.answer(answer)
        return events

    def trained(self, *cells: StandIn, cancel: bool = False, answer: bool = True) -> list[Outcome]:
        events: list[Any] = []
        for cell in cells:
            self.begin(cell)
            events += self.end(cancel, answer)
        return [event.outcome for event in events if isinstance(event, Ended)]


@pytest.fixture
def watched(light: None, store: Store) -> Iterator[Watched]:
    found = Watched(store)
    yield found
    found.executor.close()


def gone(pid: int) -> bool:
    """Whether a process has ended, with the last of its threads, which may still hold its pipes; or does so soon."""
    deadline = time.monotonic() + 60
    while not _over(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return _over(pid)


def _over(pid: int) -> bool:
    try:
        return process_status(pid) in (None, "Z") and len(os.listdir(f"/proc/{pid}/task")) == 1
    except FileNotFoundError:
        return True


@pytest.mark.slow
def test_one_process_takes_cell_after_cell_and_ends_with_the_executor(watched: Watched, store: Store) -> None:
    stopped = StandIn(SECOND, {5: "validate"})
    assert watched.trained(StandIn(FIRST), StandIn(THIRD)) == [Outcome.RECORDED] * 2
    assert watched.trained(stopped, answer=False) == [Outcome.PRUNED]
    assert watched.trained(StandIn(SECOND)) == [Outcome.RECORDED]
    assert len(set(watched.processes)) == 1
    assert [store.record(cell)["steps"] for cell in (FIRST, SECOND, THIRD)] == [STEPS] * 3
    watched.executor.close()
    assert process_status(watched.processes[0]) in (None, "Z")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "cancel", "outcome"),
    [
        (StandIn(FIRST, {5: "raise"}), False, Outcome.RECORDED),
        (StandIn(FIRST, {5: "validate"}), True, Outcome.INTERRUPTED),
        (StandIn(FIRST, config={"trainer": {"devices": 2}}), False, Outcome.RECORDED),
        (StandIn(FIRST, config={"trainer": {"devices": 1, "strategy": "ddp"}}), False, Outcome.RECORDED),
        (StandIn(FIRST, config={"trainer": {"devices": 1, "num_nodes": 2}}), False, Outcome.RECORDED),
        (StandIn(FIRST, dict.fromkeys((5, 6), "SIGKILL")), False, Outcome.LOST),
    ],
    ids=["failed", "cancelled", "several devices", "several processes", "several machines", "killed"],
)
def test_after_a_cell_that_may_have_left_something_another_process_goes_on(
    watched: Watched, cell: StandIn, cancel: bool, outcome: Outcome
) -> None:
    assert watched.trained(cell, cancel=cancel) == [outcome]
    assert watched.trained(StandIn(SECOND)) == [Outcome.RECORDED]
    first, second = watched.processes
    assert first != second
    watched.executor.poll(0.0)
    assert gone(first)


@pytest.mark.slow
def test_a_process_killed_while_it_waits_costs_no_cell(watched: Watched) -> None:
    assert watched.trained(StandIn(FIRST)) == [Outcome.RECORDED]
    os.kill(watched.processes[0], signal.SIGKILL)
    assert gone(watched.processes[0])
    watched.begin(StandIn(SECOND))
    events = watched.end()
    assert sum(isinstance(event, Started) for event in events) == 1
    assert events[-1].outcome is Outcome.RECORDED
    assert watched.processes[0] != watched.processes[1]


@pytest.mark.slow
def test_cells_of_one_shape_meet_in_one_process(light: None, store: Store) -> None:
    watched = Watched(store, 2)
    with watched.executor:
        for seed in range(3):
            for width in (8, 16) if seed != 1 else (16, 8):
                watched.begin(of(width, seed))
            watched.end()
    a, b, c, d, e, f = watched.processes
    assert (a, b) == (d, c) == (e, f)


@pytest.mark.slow
def test_processes_begin_with_a_place_for_compiled_code(tmp_path: Path) -> None:
    """What they are forked from says so before it imports torch, and leaves Ctrl-C to the command."""
    code = """
import os, signal, sys
class Seen(dict):
    def find_spec(self, name, *_):
        self.setdefault(name, os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
seen = Seen()
sys.meta_path.insert(0, seen)
import lm.execution.forkserver_preload
print(seen["torch"], signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "lm.model.position" in sys.modules)
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**kept, "LM_CACHE": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "inductor"), "True", "True"]


def test_ctrl_c_waits_in_the_fork_server_until_it_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with what is blocked in the process that starts it."""
    blocked: list[bool] = []
    see = lambda: blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))  # noqa: E731
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", see)
    monkeypatch.setattr("multiprocessing.resource_tracker.ensure_running", lambda: None)
    worker_pool.start_fork_server()
    see()
    assert blocked == [True, False]
