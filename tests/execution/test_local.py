"""Fork servers, processes and locks taken away from cells that train, and they are as if nothing had been."""

import contextlib
import multiprocessing.forkserver
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import stand_in
from helpers import Patch
from messages import CheckMessage, Refused
from records import blank
from stand_in import STEPS, StandIn

from lm.execution import local
from lm.execution.executor import ATTEMPTS, Message
from lm.execution.fork_server import MAX_FORKSERVER_RESTARTS
from lm.execution.local import Local, LocalJob
from lm.execution.scheduler import Planned, Running, Watcher, train_cells
from lm.store.locks import Holder, process_status
from lm.store.record import Ending
from lm.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("light")]
FIRST, SECOND, THIRD = "a" * 16, "b" * 16, "c" * 16


class Told(Watcher):
    """Keeps what it is told, and does something to the cells in hand once they have come to a step."""

    executor: Local

    def __init__(self, deed: Callable[[list[LocalJob]], None] | None = None, step: int = 3) -> None:
        self.deed, self.step = deed, step
        self.lines: list[str] = []
        self.records: dict[str, Any] = {}

    def on_progress(self, running: list[Running], left: int) -> None:
        if self.deed is not None and running and all(one.step >= self.step for one in running):
            deed, self.deed = self.deed, None
            deed(list(self.executor.jobs))

    def on_finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        self.records[planned.cell.id] = record

    def on_waiting(self, line: str) -> None:
        self.lines.append(line)


def trained(store: Store, told: Told, *cells: StandIn, workers: int = 2, again: bool = False) -> int:
    planned: list[Any] = [Planned("arm", seed, cell) for seed, cell in enumerate(cells)]  # type: ignore[arg-type]
    with Local(store, workers) as told.executor:
        return train_cells(planned, told.executor, told, stand_in.execution(again))


def server() -> int:
    """The process number of multiprocessing's fork server."""
    pid = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    return pid


def kill_server(jobs: list[LocalJob]) -> None:
    os.kill(server(), signal.SIGKILL)


def whole(store: Store, *cells: str) -> bool:
    """Whether every cell went through each of its steps once."""
    return all(store.record(cell)["steps"] == STEPS for cell in cells)


def test_cells_survive_their_fork_server_and_the_next_has_another(store: Store) -> None:
    killed: list[int] = []

    def kill(jobs: list[LocalJob]) -> None:
        killed.append(server())
        kill_server(jobs)

    told = Told(kill)
    assert trained(store, told, StandIn(FIRST), StandIn(SECOND), StandIn(THIRD)) == 0
    assert whole(store, FIRST, SECOND, THIRD)
    assert {record["status"] for record in told.records.values()} == {"ok"}
    assert [record["cost"]["tries"] for record in told.records.values()] == [1, 1, 1]
    assert server() not in killed


def test_cells_killed_with_their_fork_server_resume_uncounted(store: Store) -> None:
    kills = []

    def kill_all(jobs: list[LocalJob]) -> None:
        kills.append(len(jobs))
        told.deed = kill_all if len(kills) < 3 else None
        told.step += 4
        kill_server(jobs)
        for job in jobs:
            os.kill(job.attempt.process.pid, signal.SIGKILL)

    told = Told(kill_all)
    assert ATTEMPTS < 3 < MAX_FORKSERVER_RESTARTS
    assert trained(store, told, StandIn(FIRST), StandIn(SECOND)) == 0
    assert kills  # how many there is time for depends on the machine
    assert whole(store, FIRST, SECOND)
    assert all(record["status"] == "ok" for record in told.records.values())
    assert max(record["cost"]["tries"] for record in told.records.values()) > 1


def test_a_cell_that_loses_every_fork_server_is_interrupted(store: Store) -> None:
    def kill_all(jobs: list[LocalJob]) -> None:
        told.deed = kill_all
        kill_server(jobs)
        os.kill(jobs[0].attempt.process.pid, signal.SIGKILL)

    told = Told(kill_all, step=1)
    assert trained(store, told, StandIn(FIRST)) == 1
    assert told.records == {FIRST: None}
    assert not store.finished(FIRST)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(EOFError, 0.0), (ConnectionRefusedError, 0.5)],
)
def test_a_fork_server_that_ends_during_a_start_is_replaced(
    store: Store, monkeypatch: Patch, error: type[Exception], seconds: float
) -> None:
    """Also where it takes a while to end: it listens no more, and as long as it is there no other is started."""
    whose, began = multiprocessing.context.ForkServerProcess, time.monotonic()
    failed: list[Any] = []

    def start(self: Any, real: Callable[[Any], None] = whose.start) -> None:
        if not failed or time.monotonic() - began < seconds:
            failed.append(self)
            raise error
        real(self)

    monkeypatch.setattr(whose, "start", start)
    assert trained(store, Told(), StandIn(FIRST)) == 0
    assert failed
    assert whole(store, FIRST)


def test_fork_servers_that_all_end_are_an_input_error(store: Store, monkeypatch: Patch, refused: Refused) -> None:
    def start(self: Any) -> None:
        raise EOFError

    monkeypatch.setattr(multiprocessing.context.ForkServerProcess, "start", start)
    with refused():
        trained(store, Told(), StandIn(FIRST))


@pytest.mark.parametrize("orphaned", [False, True], ids=["", "orphaned"])
def test_an_interrupt_leaves_no_process_behind(store: Store, orphaned: bool) -> None:
    pids: list[int] = []

    def interrupt(jobs: list[LocalJob]) -> None:
        pids.extend(job.attempt.process.pid for job in jobs)
        if orphaned:
            kill_server(jobs)
            os.kill(pids[0], signal.SIGSTOP)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(store, Told(interrupt), StandIn(FIRST), StandIn(SECOND))
    deadline = time.monotonic() + 10
    while any(process_status(pid) not in (None, "Z") for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [process_status(pid) for pid in pids if process_status(pid) not in (None, "Z")] == []
    with store.claim(FIRST) as free:
        assert free


def test_a_retried_failure_that_is_killed_once_resumes(store: Store, check_message: CheckMessage) -> None:
    store.finish(FIRST, {**blank(FIRST, "failed"), "error": "before"})
    told = Told()
    assert trained(store, told, StandIn(FIRST, {5: "SIGKILL"}), again=True) == 0
    check_message(told.lines)
    assert told.records[FIRST]["status"] == "ok"
    assert whole(store, FIRST)


def test_a_stopped_process_is_reported_and_continues_after_sigcont(store: Store, check_message: CheckMessage) -> None:
    class LetsGo(Told):
        def on_waiting(self, line: str) -> None:
            super().on_waiting(line)
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped[0], signal.SIGCONT)

    stopped: list[int] = []

    def stop(jobs: list[LocalJob]) -> None:
        stopped.append(jobs[0].attempt.process.pid)
        os.kill(stopped[0], signal.SIGSTOP)

    told = LetsGo(stop)
    assert trained(store, told, StandIn(FIRST)) == 0
    (line,) = {re.sub(r"\d+ s:", "N s:", line) for line in told.lines}
    check_message(line.replace(f"process {stopped[0]}", "process PID"))
    assert whole(store, FIRST)


def test_a_killed_process_records_no_cell_it_lost(
    store: Store, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    def lose(jobs: list[LocalJob]) -> None:
        other = replace(Holder.this("a" * 16), machine="another", host="elsewhere", pid=7)
        (store.cells / ".leases" / FIRST / "2").write_bytes(other.written())
        os.kill(jobs[0].attempt.process.pid, signal.SIGKILL)

    monkeypatch.setattr(local, "ATTEMPTS", 1)
    told = Told(lose)
    assert trained(store, told, StandIn(FIRST)) == 1
    assert told.records == {FIRST: None}
    assert not store.finished(FIRST)
    check_message(told.lines[-1].partition(" since ")[0])


def hung(store: Store, *deeds: int) -> tuple[list[str], Any]:
    """What is told of a cell that hangs before some of its steps, without process numbers, and its record."""
    told, cell = Told(), StandIn(FIRST, dict.fromkeys(deeds, "hang"))
    planned: list[Any] = [Planned("arm", 0, cell)]  # type: ignore[arg-type]
    with Local(store, 1) as told.executor:
        assert train_cells(planned, told.executor, told, stand_in.execution(hang_seconds=3.0)) == 0
    return [re.sub(r"process \d+", "process PID", line) for line in told.lines], store.record(FIRST)


def test_a_cell_that_hangs_once_is_tried_again(store: Store, monkeypatch: Patch, check_message: CheckMessage) -> None:
    monkeypatch.setattr(local, "STACK_SECONDS", 0.3)
    lines, record = hung(store, 5)
    assert (record["status"], record["cost"]["tries"]) == ("ok", 2)
    check_message(lines)


@pytest.mark.extra
def test_a_cell_that_hangs_twice_fails_with_its_stack(
    store: Store, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(local, "STACK_SECONDS", 0.3)
    lines, record = hung(store, 5, 7)
    assert record["status"] == "failed"
    check_message(re.sub(r'"[^"]*/(\w+\.py)", line \d+', r'"\1", line N', record["error"]))
    assert "most recent call first" in record["traceback"]
    check_message(lines)


def ended(executor: Local) -> list[tuple[LocalJob, Message]]:
    """What is told until no cell is in hand."""
    messages: list[tuple[LocalJob, Message]] = []
    while executor.jobs:
        messages += executor.poll(1.0)
    return messages


def test_a_process_that_ignores_sigterm_is_killed_on_close(store: Store, monkeypatch: Patch) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.05)
    with Local(store, 1) as executor:
        cell: Any = StandIn(FIRST, {3: "deaf", 5: "validate"})
        executor.submit(cell, stand_in.execution(), "cell")
        while not any(message[0] == "validation" for _, message in executor.poll(1.0)):
            pass
        pid = executor.jobs[0].attempt.process.pid
    while process_status(pid) not in (None, "Z"):
        time.sleep(0.01)
    assert not store.finished(FIRST)
    with store.claim(FIRST) as free:
        assert free


def test_a_cell_killed_after_a_full_disk_is_not_restarted(store: Store) -> None:
    with Local(store, 1) as executor:
        executor.submit(StandIn(FIRST, {5: "disk"}), stand_in.execution(), "first")  # type: ignore[arg-type]
        ended(executor)
        executor.submit(StandIn(SECOND, {5: "SIGKILL"}), stand_in.execution(), "second")  # type: ignore[arg-type]
        messages = [message for _, message in ended(executor)]
    assert [message[1] for message in messages if message[0] == "ended"] == ["interrupted"]
    assert sum(message[0] == "started" for message in messages) == 1


def test_a_cell_of_one_device_gets_the_first_free_slot(store: Store, monkeypatch: Patch) -> None:
    monkeypatch.setattr(local, "train_one", stand_in.tell_slot)
    wide = {"trainer": {"devices": 2, "precision": None}}
    with Local(store, 3) as executor:
        for cell in (StandIn(FIRST), StandIn(SECOND, config=wide), StandIn(THIRD)):
            executor.submit(cell, stand_in.execution(), "cell")  # type: ignore[arg-type]
        told = {job.cell.id: message[1] for job, message in ended(executor) if message[0] == "waiting"}
    assert told == {FIRST: "slot 0", SECOND: "slot None", THIRD: "slot 2"}
