"""What every executor promises, put to each of them: what is handed over ends once, and no kill loses anything."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import stand_in
from messages import Refused
from records import blank
from stand_in import STEPS, StandIn

from lm.execution.executor import Executor, Job, Message
from lm.execution.factory import make_executor
from lm.store.store import Store

FIRST, SECOND, THIRD = "a" * 16, "b" * 16, "c" * 16
Make = Callable[..., Executor]


class Heard:
    """All that an executor has told; validations are answered with `answer`, None for no answer."""

    def __init__(self, executor: Executor, answer: bool | None = True) -> None:
        self.executor, self.answer = executor, answer
        self.messages: list[tuple[Job, Message]] = []

    def until(self, done: Callable[[], Any]) -> "Heard":
        """Listens until something is so."""
        while not done():
            for job, message in self.executor.poll(1.0):
                self.messages.append((job, message))
                if message[0] == "validation" and self.answer is not None:
                    self.executor.answer(job, self.answer)
        return self

    def of(self, job: Job, kind: str = "") -> list[Message]:
        """What was told of a cell."""
        return [message for of, message in self.messages if of is job and kind in ("", message[0])]

    def end(self, job: Job) -> Message:
        """The end of a cell."""
        (ended,) = self.of(job, "ended")
        assert self.of(job)[-1] is ended
        return ended


def hand_over(executor: Executor, cell: Any, again: bool = False) -> Job:
    return executor.submit(cell, stand_in.execution(again), f"cell {cell.id[0]}")


def follow(executor: Executor, *jobs: Job, answer: bool | None = True) -> Heard:
    """What is told until these cells have ended."""
    heard = Heard(executor, answer)
    return heard.until(lambda: all(heard.of(job, "ended") for job in jobs))


def trained(executor: Executor, cell: Any, **more: Any) -> Message:
    """How a cell ends."""
    job = hand_over(executor, cell, **more)
    return follow(executor, job).end(job)


def untouched(store: Store, cell: str) -> bool:
    """Whether nobody holds the cell."""
    with store.claim(cell) as free:
        return free


def test_messages_of_a_cell_come_in_order_with_one_end(engine: Make, store: Store) -> None:
    executor = engine()
    first, second = hand_over(executor, StandIn(FIRST, {7: "validate"})), hand_over(executor, StandIn(SECOND))
    heard = follow(executor, first, second)
    for job in (first, second):
        own = [message for message in heard.of(job) if message[0] != "waiting"]
        assert own[0][0] == "started"
        assert own[-1] == ("ended", "recorded", STEPS, None, store.record(job.cell.id))
        assert [[*message[1:3]] for message in own if message[0] == "progress"] == [
            [n + 1, STEPS] for n in range(STEPS)
        ]
    kinds = [message[0] for message in heard.of(first) if message[0] != "waiting"]
    assert kinds.index("validation") == 8, "after the start and seven steps"
    assert executor.poll(0.0) == []


def test_a_cell_is_pruned_if_its_validation_is_answered_no(engine: Make, store: Store) -> None:
    executor = engine()
    stopped, other = hand_over(executor, StandIn(FIRST, {5: "validate"})), hand_over(executor, StandIn(SECOND))
    heard = follow(executor, stopped, other, answer=False)
    assert [tuple(message) for message in heard.of(stopped, "validation")] == [("validation", 5, {"nll": 5.0})]
    assert heard.end(stopped) == ("ended", "pruned", 5, None, None)
    assert heard.end(other)[1] == "recorded"
    assert not store.finished(FIRST)
    assert not store.work(FIRST).exists()


def test_an_exception_is_recorded_and_not_retried(engine: Make, store: Store) -> None:
    executor = engine()
    job = hand_over(executor, StandIn(FIRST, {5: "raise"}))
    heard = follow(executor, job)
    record = heard.end(job)[4]
    assert len(heard.of(job, "started")) == 1
    assert record == store.record(FIRST)
    assert (record["status"], record["error"]) == ("failed", "RuntimeError: out of luck")


def test_a_cell_killed_once_resumes_from_its_last_step(engine: Make, store: Store) -> None:
    executor = engine()
    job = hand_over(executor, StandIn(FIRST, {5: "SIGKILL"}))
    heard = follow(executor, job)
    record = heard.end(job)[4]
    assert len(heard.of(job, "started")) == 2
    assert (record["steps"], record["cost"]["tries"]) == (STEPS, 2)


def test_a_cell_killed_again_and_again_is_recorded_as_failed(engine: Make, store: Store) -> None:
    executor = engine()
    job = hand_over(executor, StandIn(FIRST, dict.fromkeys(range(STEPS), "SIGKILL")))
    other = hand_over(executor, StandIn(SECOND))
    heard = follow(executor, job, other)
    assert heard.end(job)[4] == store.record(FIRST)
    assert 2 <= len(heard.of(job, "started")) < STEPS
    assert store.record(FIRST)["status"] == "failed"
    assert "killed" in (store.record(FIRST)["error"] or "")
    assert heard.end(other)[4]["status"] == "ok"


def test_kills_are_counted_anew_for_each_submission(engine: Make, store: Store) -> None:
    executor = engine()
    stopped = hand_over(executor, StandIn(FIRST, {5: "validate"}))
    follow(executor, stopped, answer=False)
    assert trained(executor, StandIn(FIRST, {5: "SIGKILL"}))[1] == "recorded"


def test_two_executors_on_one_store_train_each_cell_once(engine: Make, store: Store) -> None:
    executors = engine(), engine()
    for executor in executors:
        for cell in (FIRST, SECOND):
            hand_over(executor, StandIn(cell))
    told: list[tuple[Executor, str]] = []
    waiting: list[tuple[Executor, str]] = []
    while len(told) < 4:
        for executor, cell in [(executor, cell) for executor, cell in waiting if executor.held(cell) is None]:
            waiting.remove((executor, cell))
            hand_over(executor, StandIn(cell))
        for executor in executors:
            for job, (kind, *values) in executor.poll(0.1):
                if kind == "ended" and values[0] == "recorded":
                    assert values[3] == store.record(job.cell.id)
                    told.append((executor, job.cell.id))
                elif kind == "ended":
                    assert (values[0], values[3]) == ("held", None)
                    waiting.append((executor, job.cell.id))  # who holds it may need this thread to go on
        time.sleep(0.01)
    assert len(set(told)) == 4
    assert [store.record(cell)["cost"]["tries"] for cell in (FIRST, SECOND)] == [1, 1]


def test_a_cell_locked_elsewhere_ends_at_once(engine: Make, store: Store) -> None:
    executor = engine()
    assert executor.held(FIRST) is None
    with store.lock(FIRST):
        ended = trained(executor, StandIn(FIRST))
        assert (ended[1], ended[4]) == ("held", None)
        assert str(os.getpid()) in str(executor.held(FIRST))
        assert not store.work(FIRST).exists()
    assert executor.held(FIRST) is None
    assert trained(executor, StandIn(FIRST))[1] == "recorded"


def test_a_full_disk_interrupts_a_cell_with_the_error(engine: Make, store: Store) -> None:
    _, outcome, _, broken, record = trained(engine(), StandIn(FIRST, {5: "disk"}))
    assert (outcome, broken[0], broken[2], record) == ("interrupted", 28, "a file", None)
    assert not store.finished(FIRST)
    assert trained(engine(), StandIn(FIRST, {5: "disk"}))[1] == "recorded"


def test_submitting_beyond_the_capacity_raises(engine: Make) -> None:
    executor = engine(1)
    first = hand_over(executor, StandIn(FIRST))
    with pytest.raises(RuntimeError, match="cell b"):
        hand_over(executor, StandIn(SECOND))
    follow(executor, first)
    assert trained(executor, StandIn(SECOND))[1] == "recorded"


def test_polling_without_cells_returns_at_once(engine: Make) -> None:
    assert list(engine().poll(3600.0)) == []


def test_a_recorded_cell_is_not_trained_again(engine: Make, store: Store) -> None:
    executor = engine()
    trained(executor, StandIn(FIRST))
    job = hand_over(executor, StandIn(FIRST))
    heard = follow(executor, job)
    assert not heard.of(job, "progress")
    assert heard.end(job)[4] == store.record(FIRST)


def test_a_closed_executor_leaves_resumable_cells_and_old_failures(engine: Make, store: Store) -> None:
    store.finish(FIRST, {**blank(FIRST, "failed"), "error": "before"})
    with engine() as executor:
        heard, first = Heard(executor, None), hand_over(executor, StandIn(FIRST, {5: "validate"}), again=True)
        heard.until(lambda: heard.of(first, "validation"))
    executor.close()
    assert untouched(store, FIRST)
    assert store.record(FIRST)["error"] == "before"
    record = trained(engine(), StandIn(FIRST, {5: "validate"}), again=True)[4]
    assert (record["status"], record["steps"]) == ("ok", STEPS)


def test_an_unknown_executor_is_answered_with_the_choices(store: Store, refused: Refused) -> None:
    with refused():
        make_executor("lcoal", store, 1)
