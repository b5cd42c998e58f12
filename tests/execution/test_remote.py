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

from lm.execution.executor import Ended, Executor, Handle, Job, Outcome, Progress, Started, Validation, Waiting
from lm.execution.on_slurm import FileMailbox, hidden_scheduler, send
from lm.store.store import Store

FIRST = "a" * 16


class Far(Executor):
    """A machine of which one hears what the test says."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 1)
        self.sent: list[Any] = []

    def _start(self, handle: Handle, cell: Any, execution: Any) -> Job:
        return Job(handle, cell, execution)

    def _listen(self, seconds: float) -> None:
        pass

    def _send(self, job: Job, answer: bool | str) -> None:
        self.sent.append(answer)

    def close(self) -> None:
        pass


@pytest.fixture
def far(tmp_path: Path, monkeypatch: Patch) -> Far:
    def finish(cell: Any, store: Store, outcome: Any, times: Any) -> Any:
        return store.finish(cell.id, {**blank(cell.id), **outcome})

    monkeypatch.setattr("lm.training.train.finish", finish)
    return Far(Store(tmp_path))


def hand_over(far: Far) -> tuple[Handle, Job]:
    cell: Any = StandIn(FIRST)
    handle = far.submit(cell, stand_in.execution(), "cell a")
    return handle, far.jobs[handle]


def test_messages_become_events_in_order(far: Far) -> None:
    handle, job = hand_over(far)
    for message in (("started",), ("progress", 3, 9, 0.5), ("validation", 4, {"nll": 2.0}), ("waiting", "a line")):
        far._on_message(job, message)
    told = list(far.poll(0.0))
    assert told[:2] == [Started(handle), Progress(handle, 3, 9, 0.5)]
    assert isinstance(told[2], Validation)
    assert (told[2].step, told[2].measured) == (4, {"nll": 2.0})
    assert told[3] == Waiting(handle, "a line")
    told[2].answer(False)
    told[2].answer(True)  # said already
    assert far.sent == [False]


def test_a_cell_that_loses_its_machine_twice_is_lost(far: Far) -> None:
    handle, job = hand_over(far)
    assert far._on_worker_lost(job, "the node was lost")
    assert list(far.poll(0.0)) == [Waiting(handle, "the node was lost; tried again from its last checkpoint")]
    assert not far._on_worker_lost(job, "the node was lost")
    assert list(far.poll(0.0)) == [Ended(handle, Outcome.LOST, 0)]
    record = far.result(handle)
    assert record is not None
    assert record == far.store.record(FIRST)
    assert (record["status"], record["error"]) == ("failed", "the node was lost")


def test_a_cancelled_cell_whose_machine_is_lost_is_interrupted(far: Far) -> None:
    handle, job = hand_over(far)
    far.cancel(handle)
    far.cancel(handle)
    assert far.sent == ["cancel"]
    assert not far._on_worker_lost(job, "the node was lost")
    assert list(far.poll(0.0)) == [Ended(handle, Outcome.INTERRUPTED, 0)]
    assert far.result(handle) is None
    assert not far.store.finished(FIRST)


def test_a_lost_cell_held_by_another_process_gets_no_record(far: Far) -> None:
    handle, job = hand_over(far)
    job.losses = 1
    with far.store.lock(FIRST):
        assert not far._on_worker_lost(job, "the node was lost")
    waiting, ended = far.poll(0.0)
    assert isinstance(waiting, Waiting)
    assert waiting.line.startswith("the node was lost; the cell is left to ")
    assert ended == Ended(handle, Outcome.INTERRUPTED, 0)


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
