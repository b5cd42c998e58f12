"""How far a cell has come, as its work folder says: whatever the clock does, and nothing where the file is damaged."""

import time
from pathlib import Path

import pytest

from lm.store.side_files import CURVE_POINTS, PROGRESS_FILE, SECONDS_BETWEEN, progress_saver, read_progress


def test_clocks_that_jump_back_change_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, wall = [100.0], [1e9]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: wall[0])
    heard: list[int] = []
    report = progress_saver(tmp_path, lambda step, steps, loss: heard.append(step))
    for step in (1, 2, 3):
        report(step, 10, 2.0)
        now[0] += SECONDS_BETWEEN
        wall[0] -= 86400
    found = read_progress(tmp_path)
    assert found is not None
    assert (found["step"], found["steps"], found["pace"]) == (3, 10, SECONDS_BETWEEN)
    assert found["at"] == 1e9 - 2 * 86400
    assert heard == [1, 2, 3]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "step": "3", "steps": 10, "at": 1}']
)
def test_damaged_progress_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / PROGRESS_FILE).write_text(content)
    assert read_progress(tmp_path) is None


def curve_of(folder: Path) -> list[tuple[int, float]]:
    progress = read_progress(folder)
    assert progress is not None
    return progress["curve"]


def test_progress_holds_a_thinned_curve_that_a_resumed_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.store.side_files.SECONDS_BETWEEN", float("inf"))
    report = progress_saver(tmp_path, lambda *_: None)
    for step in range(1, 10_000):
        report(step, 10_000, 1000.0 / step)
    monkeypatch.setattr("lm.store.side_files.SECONDS_BETWEEN", 0.0)
    report(10_000, 10_000, 0.1)
    curve = curve_of(tmp_path)
    assert len(curve) == CURVE_POINTS
    assert curve[:2] == [(1, 1000.0), (51, 1000.0 / 51)]
    report = progress_saver(tmp_path, lambda *_: None)
    report(120, 10_000, 7.0)
    report(200, 10_000, float("nan"))
    assert curve_of(tmp_path) == [(1, 1000.0), (51, 1000.0 / 51), (101, 1000.0 / 101)]
    report(240, 10_000, 6.0)
    assert curve_of(tmp_path)[-1] == (240, 6.0)


@pytest.mark.parametrize(
    "curve", ["", ', "curve": 3', ', "curve": [[1]]', ', "curve": [[1, "x"]]', ', "curve": [[1, NaN]]']
)
def test_progress_without_a_sound_curve_is_still_progress(tmp_path: Path, curve: str) -> None:
    (tmp_path / PROGRESS_FILE).write_text(f'{{"format": 1, "step": 3, "steps": 10, "at": 1{curve}}}')
    assert curve_of(tmp_path) == []
