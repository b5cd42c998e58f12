"""How far a cell has come, as its work folder says: whatever the clock does, and nothing where the file is damaged."""

import time
from pathlib import Path

import pytest

from lm.store.side_files import PROGRESS_FILE, SECONDS_BETWEEN, progress_saver, read_progress


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
