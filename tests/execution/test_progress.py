"""What a person is shown while cells train: a line a cell in a log, bars in a terminal, and how long it may take."""

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Capture, Patch
from messages import CheckMessage
from records import blank, record
from rich.console import Console

from lm.execution import progress
from lm.execution.progress import Display, outcome_line, step_lines
from lm.execution.scheduler import Planned, Running
from lm.store.store import Store


@pytest.fixture(autouse=True)
def clock(monkeypatch: Patch) -> Iterator[list[float]]:
    """Seconds since some moment, which only a test lets go by."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    yield now
    monkeypatch.undo()  # before the test is timed


def planned(arm: str, seed: int = 0) -> Planned:
    cell: Any = None  # nothing here looks at it
    return Planned(arm, seed, cell)


def running(arm: str, place: int, step: int, pace: float, clock: list[float], steps: int = 100) -> Running:
    """A cell that was first heard of at step 1 and is at `step` now, `pace` seconds a step."""
    found = Running(planned(arm), place, started=clock[0])
    found.update(step, steps, 1.5)
    found.first = (1, clock[0] - pace * (step - 1))
    return found


def test_the_end_of_a_cell_in_a_few_words(tmp_path: Path, check_message: CheckMessage) -> None:
    pruned = {"status": "pruned", "error": "stopped after step 5"}
    ends = [record("c", 2.0, 0), record("c", "diverged", 0), None, pruned]
    check_message([outcome_line(end) for end in ends])
    store = Store(tmp_path)
    store.work("c").mkdir(parents=True)
    failed = store.finish("c", {**blank("c", "failed"), "error": "RuntimeError: no", "traceback": "Traceback"})
    check_message(outcome_line(failed, store))


def test_without_anything_known_there_is_no_estimate(clock: list[float]) -> None:
    display = Display(total=4, workers=2)
    assert display.left([], 4) is None
    assert display.left([running("a", 0, 1, 0.0, clock)], 3) is None, "one report has no pace"


def test_time_left_is_at_least_that_of_the_longest_cell(clock: list[float]) -> None:
    two = [running("a", 0, 51, 2.0, clock), running("b", 1, 81, 1.0, clock)]
    display = Display(total=6, workers=2)
    left = 49 * 2.0 + 19 * 1.0
    assert display.left(two, 0) == pytest.approx(98.0), "the first cell alone needs that long"
    typical = (100 * 2.0 + 100 * 1.0) / 2
    assert display.left(two, 4) == pytest.approx((left + 4 * typical) / 2)


def test_a_cell_without_a_pace_is_estimated_from_others(clock: list[float]) -> None:
    display = Display(total=3, workers=1, expected={"a": 30.0, "b": 10.0})
    assert display.left([running("c", 0, 1, 0.0, clock)], 2) == pytest.approx(20.0 + 2 * 20.0)


def test_a_log_has_lines_for_cells_and_overall_progress(
    clock: list[float], capsys: Capture, check_message: CheckMessage
) -> None:
    with Display(total=3, workers=1) as display:
        display.on_progress([running("[a]", 0, 11, 1.0, clock)], 2)
        assert capsys.readouterr().err == ""
        clock[0] += progress.LINE_SECONDS + 1
        display.on_progress([], 2)
        display.on_progress([Running(planned("b", 1), 0)], 2)
        display.on_finished(planned("[a]"), record("c", 2.0, 0), 65.0)
        display.on_finished(planned("b", 1), None, 5.0)
        display.on_settled("c seed 0", "trained already", 1)
        display.on_waiting("waiting for [another]")
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    check_message(lines[1:])


def test_a_terminal_shows_a_bar_for_each_running_cell(clock: list[float], monkeypatch: Patch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    display = Display(total=2, workers=2)
    first, second = running("a", 0, 11, 1.0, clock), Running(planned("b"), 1)
    display.on_progress([first, second], 0)
    bars = {task.description: task for task in display.bars.tasks}
    assert set(bars) == {"cells", "a seed 0", "b seed 0"}
    assert (bars["a seed 0"].completed, bars["a seed 0"].total) == (11, 100)
    assert [bars[name].fields["note"] for name in ("a seed 0", "b seed 0")] == ["loss 1.500", "starting"]
    assert bars["cells"].fields["note"].startswith("about ")
    display.on_finished(first.planned, record("c", 2.0, 0), 90.0)
    display.on_progress([second], 0)
    assert [task.description for task in display.bars.tasks] == ["cells", "b seed 0"]
    assert display.bars.tasks[0].completed == 1


def test_steps_of_a_run_are_shown_once_a_second(
    clock: list[float], capsys: Capture, check_message: CheckMessage
) -> None:
    report = step_lines()
    for step, at in ((4, 0.0), (5, 0.5), (6, 2.0), (7, 2.5), (8, 2.6)):
        clock[0] = 1000.0 + at
        report(step, 8, 2.0)
    check_message(capsys.readouterr().err.splitlines())
