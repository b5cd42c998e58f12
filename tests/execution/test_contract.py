"""What every executor promises, put to each of them: what is handed over ends once, and no kill loses anything."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import stand_in
from records import blank
from stand_in import STEPS, StandIn

from lm.config.tree import InputError
from lm.execution.executor import Ended, Event, Executor, Handle, Outcome, Progress, Started, Validation, Waiting
from lm.execution.factory import make_executor
from lm.store.store import Store

FIRST, SECOND, THIRD = "a" * 16, "b" * 16, "c" * 16
Make = Callable[..., Executor]
Do = Callable[[Event], None]


def hand_over(executor: Executor, cell: Any, again: bool = False) -> Handle:
    return executor.submit(cell, stand_in.execution(again), f"cell {cell.id[0]}")


def go_on(event: Event) -> None:
    """Answers a validation with yes."""
    if isinstance(event, Validation):
        event.answer(True)


def stop(event: Event) -> None:
    """Answers a validation with no."""
    if isinstance(event, Validation):
        event.answer(False)


def leave(event: Event) -> None:
    """Answers nothing."""


class Heard:
    """All that an executor has told."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.events: list[Event] = []

    def until(self, done: Callable[[], Any], do: Do) -> None:
        """Listens until something is so; `do` is done at each event."""
        while not done():
            for event in self.executor.poll(1.0):
                self.events.append(event)
                do(event)

    def of(self, handle: Handle, kind: Any = object) -> list[Any]:
        """What was told of a cell."""
        return [event for event in self.events if event.handle == handle and isinstance(event, kind)]


def follow(executor: Executor, *handles: Handle, do: Do = go_on) -> list[Event]:
    """What happens until these cells have ended, beside which there is none in hand."""
    heard = Heard(executor)
    heard.until(lambda: all(heard.of(handle, Ended) for handle in handles), do)
    return heard.events


def ends(events: list[Event]) -> list[Outcome]:
    return [event.outcome for event in events if isinstance(event, Ended)]


def starts(events: list[Event]) -> int:
    return sum(isinstance(event, Started) for event in events)


def untouched(store: Store, cell: str) -> bool:
    """Whether nobody holds the cell."""
    with store.claim(cell) as free:
        return free


def test_events_of_a_cell_come_in_order_with_one_end(engine: Make, store: Store) -> None:
    executor = engine()
    first, second = hand_over(executor, StandIn(FIRST, {7: "validate"})), hand_over(executor, StandIn(SECOND))
    events = follow(executor, first, second)
    for handle in (first, second):
        own = [event for event in events if event.handle == handle and not isinstance(event, Waiting)]
        assert isinstance(own[0], Started)
        assert isinstance(own[-1], Ended)
        assert own[-1] == Ended(handle, Outcome.RECORDED, STEPS)
        steps = [event.step for event in own if isinstance(event, Progress)]
        assert steps == list(range(1, STEPS + 1))
        assert {event.steps for event in own if isinstance(event, Progress)} == {STEPS}
    (asked,) = (place for place, event in enumerate(events) if isinstance(event, Validation))
    assert [e.step for e in events[:asked] if isinstance(e, Progress) and e.handle == first] == list(range(1, 8))
    assert executor.poll(0.0) == []


def test_a_result_is_the_stored_record_and_is_returned_once(engine: Make, store: Store) -> None:
    executor = engine()
    handle = hand_over(executor, StandIn(FIRST))
    assert (handle.cell, handle.name) == (FIRST, "cell a")
    with pytest.raises(KeyError):
        executor.result(handle)
    follow(executor, handle)
    assert executor.result(handle) == store.record(FIRST)
    with pytest.raises(KeyError):
        executor.result(handle)


def test_a_cell_is_pruned_if_its_validation_is_answered_no(engine: Make, store: Store) -> None:
    executor, asked = engine(), []

    def keep_one(event: Event) -> None:
        if isinstance(event, Validation):
            asked.append((event.handle, event.step, event.measured))
            event.answer(event.handle == kept)

    kept = hand_over(executor, StandIn(FIRST, {5: "validate"}))
    stopped = hand_over(executor, StandIn(SECOND, {5: "validate"}))
    events = follow(executor, kept, stopped, do=keep_one)
    assert sorted(asked, key=lambda one: one[0].number) == [(kept, 5, {"nll": 5.0}), (stopped, 5, {"nll": 5.0})]
    assert Ended(kept, Outcome.RECORDED, STEPS) in events
    assert Ended(stopped, Outcome.PRUNED, 5) in events
    assert executor.result(stopped) is None
    assert not store.finished(SECOND)
    assert not store.work(SECOND).exists()


def test_an_exception_is_recorded_and_not_retried(engine: Make, store: Store) -> None:
    executor = engine()
    handle = hand_over(executor, StandIn(FIRST, {5: "raise"}))
    events = follow(executor, handle)
    assert ends(events) == [Outcome.RECORDED]
    assert starts(events) == 1
    record = executor.result(handle)
    assert record == store.record(FIRST)
    assert (record["status"], record["error"]) == ("failed", "RuntimeError: out of luck")


def test_a_cell_killed_once_resumes_from_its_last_step(engine: Make, store: Store) -> None:
    executor = engine()
    handle = hand_over(executor, StandIn(FIRST, {5: "SIGKILL"}))
    events = follow(executor, handle)
    assert ends(events) == [Outcome.RECORDED]
    assert starts(events) == 2
    record = executor.result(handle)
    assert record is not None
    assert (record["steps"], record["cost"]["tries"]) == (STEPS, 2)


def test_a_cell_killed_again_and_again_is_recorded_as_lost(engine: Make, store: Store) -> None:
    executor = engine()
    handle = hand_over(executor, StandIn(FIRST, dict.fromkeys(range(STEPS), "SIGKILL")))
    other = hand_over(executor, StandIn(SECOND))
    events = follow(executor, handle, other)
    own = [event for event in events if event.handle == handle]
    assert ends(own) == [Outcome.LOST]
    assert 2 <= starts(own) < STEPS
    assert executor.result(handle) == store.record(FIRST)
    assert store.record(FIRST)["status"] == "failed"
    assert "killed" in (store.record(FIRST)["error"] or "")
    assert ends([event for event in events if event.handle == other]) == [Outcome.RECORDED]


def test_kills_are_counted_anew_for_each_submission(engine: Make, store: Store) -> None:
    executor = engine()
    stopped = hand_over(executor, StandIn(FIRST, {5: "validate"}))
    follow(executor, stopped, do=stop)
    handle = hand_over(executor, StandIn(FIRST, {5: "SIGKILL"}))
    assert ends(follow(executor, handle)) == [Outcome.RECORDED]


def test_a_cancelled_cell_is_interrupted_and_resumes(engine: Make, store: Store) -> None:
    executor = engine()
    heard = Heard(executor)
    handle, other = hand_over(executor, StandIn(FIRST, {5: "validate"})), hand_over(executor, StandIn(SECOND))
    heard.until(lambda: heard.of(handle, Validation), leave)
    executor.cancel(handle)
    executor.cancel(handle)
    heard.until(lambda: heard.of(handle, Ended) and heard.of(other, Ended), leave)
    assert ends(heard.of(handle)) == [Outcome.INTERRUPTED]
    assert ends(heard.of(other)) == [Outcome.RECORDED]
    assert executor.result(handle) is None
    assert not store.finished(FIRST)
    assert untouched(store, FIRST)
    executor.cancel(handle)
    again = hand_over(executor, StandIn(FIRST, {5: "validate"}))
    assert again != handle
    assert ends(follow(executor, again)) == [Outcome.RECORDED]
    record = executor.result(again)
    assert record is not None
    assert (record["steps"], record["cost"]["tries"]) == (STEPS, 2)


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
            for event in executor.poll(0.1):
                if not isinstance(event, Ended):
                    continue
                record, cell = executor.result(event.handle), event.handle.cell
                if event.outcome is Outcome.RECORDED:
                    assert record == store.record(cell)
                    told.append((executor, cell))
                    continue
                assert (event.outcome, record) == (Outcome.LOCKED_ELSEWHERE, None)
                waiting.append((executor, cell))  # not waited for: who holds it may need this thread to go on
        time.sleep(0.01)
    assert len(set(told)) == 4
    assert [store.record(cell)["cost"]["tries"] for cell in (FIRST, SECOND)] == [1, 1]


def test_a_cell_locked_elsewhere_ends_at_once(engine: Make, store: Store) -> None:
    executor = engine()
    assert executor.held(FIRST) is None
    with store.lock(FIRST):
        handle = hand_over(executor, StandIn(FIRST))
        assert ends(follow(executor, handle)) == [Outcome.LOCKED_ELSEWHERE]
        assert executor.result(handle) is None
        assert str(executor.held(FIRST)).startswith(f"process {os.getpid()} on host ")
        assert not store.work(FIRST).exists()
    assert executor.held(FIRST) is None
    assert ends(follow(executor, hand_over(executor, StandIn(FIRST)))) == [Outcome.RECORDED]


def test_a_full_disk_interrupts_a_cell_with_the_error(engine: Make, store: Store) -> None:
    executor = engine()
    handle = hand_over(executor, StandIn(FIRST, {5: "disk"}))
    ended = follow(executor, handle)[-1]
    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.INTERRUPTED
    assert ended.broken is not None
    assert (ended.broken.errno, ended.broken.filename) == (28, "a file")
    assert executor.result(handle) is None
    assert not store.finished(FIRST)
    later = engine()
    handle = hand_over(later, StandIn(FIRST, {5: "disk"}))
    assert ends(follow(later, handle)) == [Outcome.RECORDED]


def test_submitting_beyond_the_capacity_raises(engine: Make) -> None:
    executor = engine(1)
    assert executor.capacity == 1
    first = hand_over(executor, StandIn(FIRST))
    with pytest.raises(RuntimeError, match="cell b"):
        hand_over(executor, StandIn(SECOND))
    follow(executor, first)
    assert ends(follow(executor, hand_over(executor, StandIn(SECOND)))) == [Outcome.RECORDED]


def test_polling_without_cells_returns_at_once(engine: Make) -> None:
    assert list(engine().poll(3600.0)) == []


def test_a_recorded_cell_is_not_trained_again(engine: Make, store: Store) -> None:
    executor = engine()
    follow(executor, hand_over(executor, StandIn(FIRST)))
    handle = hand_over(executor, StandIn(FIRST))
    events = follow(executor, handle)
    assert ends(events) == [Outcome.RECORDED]
    assert not [event for event in events if isinstance(event, Progress)]
    assert executor.result(handle) == store.record(FIRST)


def test_a_failure_stays_recorded_until_its_retry_ends(engine: Make, store: Store) -> None:
    executor = engine()
    store.finish(FIRST, {**blank(FIRST, "failed"), "error": "before"})
    heard, handle = Heard(executor), hand_over(executor, StandIn(FIRST, {5: "validate"}), again=True)
    heard.until(lambda: heard.of(handle, Validation), leave)
    executor.cancel(handle)
    assert ends(follow(executor, handle)) == [Outcome.INTERRUPTED]
    assert executor.result(handle) is None
    assert store.record(FIRST)["error"] == "before"
    handle = hand_over(executor, StandIn(FIRST, {5: "validate"}), again=True)
    assert ends(follow(executor, handle)) == [Outcome.RECORDED]
    assert store.record(FIRST)["status"] == "ok"


def test_a_closed_executor_leaves_cells_that_resume(engine: Make, store: Store) -> None:
    with engine() as executor:
        heard, first = Heard(executor), hand_over(executor, StandIn(FIRST, {5: "validate"}))
        heard.until(lambda: heard.of(first, Validation), leave)
    executor.close()
    assert untouched(store, FIRST)
    assert not store.finished(FIRST)
    later = engine()
    handle = hand_over(later, StandIn(FIRST, {5: "validate"}))
    assert ends(follow(later, handle)) == [Outcome.RECORDED]
    assert store.record(FIRST)["steps"] == STEPS


def test_an_unknown_executor_is_answered_with_the_choices(store: Store) -> None:
    with pytest.raises(InputError, match=r"no executor 'lcoal'. Did you mean local\? Choose from local, ray, slurm"):
        make_executor("lcoal", store, 1)
