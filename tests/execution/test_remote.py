"""Cells on other machines, from this end: what becomes of a cell whose machine goes away, and the mail of jobs."""

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stand_in
from helpers import Patch
from messages import CheckMessage, Refused
from records import blank, text
from stand_in import StandIn

from lm.execution import local, on_slurm
from lm.execution.executor import Executor, Job
from lm.execution.local import RemoteWorker
from lm.execution.on_slurm import BEAT, ORDER, FileMailbox, Slurm, run_order, send, sigusr2_blocked
from lm.store.formats import CELL
from lm.store.store import LOG, Store
from lm.training.process import Execution

FIRST = "a" * 16


class Far(Executor):
    """A machine of which one hears what the test says."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 1)
        self.sent: list[Any] = []

    def _start(self, cell: Any, execution: Any, name: str) -> Job:
        return Job(cell, execution, name)

    def _listen(self, seconds: float) -> None:
        pass

    def _send(self, job: Job, goes_on: bool) -> None:
        self.sent.append(goes_on)

    def close(self) -> None:
        pass


@pytest.fixture
def far(tmp_path: Path, monkeypatch: Patch) -> Far:
    def finish(cell: Any, store: Store, outcome: Any, times: Any) -> Any:
        return store.finish(cell.id, {**blank(cell.id), **outcome})

    monkeypatch.setattr("lm.training.train.finish", finish)
    return Far(Store(tmp_path))


@pytest.fixture
def job(far: Far) -> Job:
    cell: Any = StandIn(FIRST)
    return far.submit(cell, stand_in.execution(), "cell a")


def test_messages_are_handed_on_and_a_validation_is_answered_once(far: Far, job: Job) -> None:
    messages = [("started",), ("progress", 3, 9, 0.5), ("validation", 4, {"nll": 2.0}), ("waiting", "a line")]
    for message in messages:
        far._on_message(job, message)
    assert far.poll(0.0) == [(job, message) for message in messages]
    assert job.step == 4
    far.answer(job, False)
    far.answer(job, True)  # said already
    assert far.sent == [False]


def test_a_cell_that_loses_its_machine_twice_is_lost(far: Far, job: Job, check_message: CheckMessage) -> None:
    assert far._on_worker_lost(job, "the node was lost")
    ((_, (kind, line)),) = far.poll(0.0)
    assert kind == "waiting"
    check_message(line)
    assert not far._on_worker_lost(job, "the node was lost")
    record = far.store.record(FIRST)
    assert far.poll(0.0) == [(job, ("ended", "recorded", 0, None, record))]
    assert (record["status"], record["error"]) == ("failed", "the node was lost")


def test_a_lost_cell_held_by_another_process_gets_no_record(far: Far, job: Job, check_message: CheckMessage) -> None:
    job.kills = 1
    with far.store.lock(FIRST):
        assert not far._on_worker_lost(job, "the node was lost")
    (_, waiting), (_, ended) = far.poll(0.0)
    check_message(waiting[1].partition(str(os.getpid()))[0])
    assert ended == ("ended", "interrupted", 0, None, None)


def test_a_mailbox_reads_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "told"
    mail = FileMailbox(path)
    assert mail.new() == []
    send(path, ("progress", 1, 2, 0.25))
    with path.open("a") as file:
        file.write('["half"')
    assert mail.new() == [["progress", 1, 2, 0.25]]
    with path.open("a") as file:
        file.write("]\n")
    assert mail.new() == [["half"]]
    assert mail.new() == []


def test_processes_of_a_job_see_no_sigusr2() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with sigusr2_blocked():
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_the_command_tells_its_jobs_that_it_lives(tmp_path: Path) -> None:
    executor = Slurm.__new__(Slurm)
    executor.folder, executor.jobs, executor.real, executor.last_query, executor.every = tmp_path, [], False, 0.0, 0.0
    executor._query_states()
    assert (tmp_path / BEAT).exists()


def test_a_job_that_awaits_a_killed_command_ends(tmp_path: Path, monkeypatch: Patch, refused: Refused) -> None:
    class Asking(RemoteWorker):
        """A worker whose cell has asked; it waits for a minute at each look."""

        awaits_answer = True

        def submit(self, *_: Any) -> None:
            pass

        def take_messages(self, seconds: float) -> list[Any]:
            looks.append(seconds)
            clock[0] += 60
            if len(looks) < 20:  # the command lives so long
                os.utime(tmp_path / BEAT, (clock[0], clock[0]))
            return []

    looks, clock = list[float](), [0.0]
    cell = {"config": {}, "facts": {"folder": "", **text()}, "id": FIRST}
    order = {"cell": CELL.stamped(cell), "execution": {}, "name": "cell", "out": str(tmp_path), "path": []}
    (tmp_path / (FIRST + ORDER)).write_text(json.dumps(order))
    (tmp_path / BEAT).touch()
    monkeypatch.setattr(on_slurm, "RemoteWorker", Asking)
    monkeypatch.setattr(on_slurm, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: None))
    with refused(RuntimeError):
        run_order(tmp_path, FIRST)
    assert len(looks) == 30


Trained = Callable[..., dict[str, str]]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: Patch) -> Trained:
    """Runs what trains a cell in this process and asks once; returns its environment."""

    def run(slot: int | None = None, devices: int = 0, prunable: bool = False) -> dict[str, str]:
        seen: dict[str, str] = {}

        def train(
            cell: Any, store: Any, report: Any, execution: Any, judge: Any, say: Any, on_start: Any, wait: bool
        ) -> None:
            seen.update(os.environ)
            on_start(tmp_path)
            assert judge(1, {})

        pipe: Any = SimpleNamespace(send=lambda message: sent.append(message[0]), recv=lambda: True)
        cell: Any = StandIn(FIRST)
        with monkeypatch.context() as patch:
            patch.setattr("lm.training.train.train", train)
            patch.setattr(signal, "signal", lambda *_: None)
            patch.setattr(sys, "argv", [])
            patch.setattr(faulthandler, "register", lambda _, file: os.close(file))
            patch.setattr(os, "dup2", lambda *_: None)
            patch.setattr(sys.modules["__main__"], "__spec__", None)
            patch.setattr(os, "environ", {"SLURM_NTASKS": "4"})
            local.train_one(pipe, cell, Store(tmp_path), Execution(prunable=prunable), slot, devices)
        assert sent == ["validation"] * prunable
        sent.clear()
        return seen

    sent = list[str]()
    return run


def test_a_cell_sees_no_tasks_of_its_slurm_job(trained: Trained) -> None:
    assert "SLURM_NTASKS" not in trained()


def test_only_a_cell_that_can_be_pruned_asks_at_validations(trained: Trained) -> None:
    for prunable in (False, True):
        trained(prunable=prunable)


def test_a_slot_is_a_device_of_those_that_torch_counts(trained: Trained) -> None:
    assert [trained(slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["0", "1", "0"]
    assert "CUDA_VISIBLE_DEVICES" not in trained(1, 0)


def test_the_log_of_a_cell_follows_the_umask(trained: Trained, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        trained()
    finally:
        os.umask(before)
    assert (tmp_path / LOG).stat().st_mode & 0o777 == 0o664
