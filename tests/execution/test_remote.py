"""Cells on other machines, from this end: what becomes of a cell whose machine goes away, and the mail of jobs."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import stand_in
from helpers import Patch
from records import blank
from stand_in import StandIn

from lm.execution.executor import Executor, Job
from lm.execution.on_slurm import FileMailbox, hidden_scheduler, send
from lm.store.store import Store

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


def test_a_cell_that_loses_its_machine_twice_is_lost(far: Far, job: Job) -> None:
    assert far._on_worker_lost(job, "the node was lost")
    assert far.poll(0.0) == [(job, ("waiting", "the node was lost; tried again from its last checkpoint"))]
    assert not far._on_worker_lost(job, "the node was lost")
    record = far.store.record(FIRST)
    assert far.poll(0.0) == [(job, ("ended", "recorded", 0, None, record))]
    assert (record["status"], record["error"]) == ("failed", "the node was lost")


def test_a_lost_cell_held_by_another_process_gets_no_record(far: Far, job: Job) -> None:
    job.losses = 1
    with far.store.lock(FIRST):
        assert not far._on_worker_lost(job, "the node was lost")
    (_, waiting), (_, ended) = far.poll(0.0)
    assert waiting[1].startswith("the node was lost; the cell is left to ")
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


def test_processes_of_a_job_see_no_scheduler_and_no_sigusr2(monkeypatch: Patch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("LM_CACHE", "kept")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with hidden_scheduler():
        assert "SLURM_NTASKS" not in os.environ
        assert os.environ["LM_CACHE"] == "kept"
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert os.environ["SLURM_NTASKS"] == "1"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
