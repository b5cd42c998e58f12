"""The simulated controller: what it counts, and that nothing it does for a cell grows with the number of cells."""

from pathlib import Path

import pytest

from lm.bench.controller import HELD, simulated
from lm.execution.cell_queue import Planned
from lm.execution.progress import DRAW_SECONDS, FEW, Display
from lm.execution.watcher import Running


@pytest.mark.slow
def test_every_cell_ends_once_and_what_is_done_to_files_is_in_proportion(tmp_path: Path) -> None:
    few, ends = simulated(100, 20, tmp_path / "few")
    assert ends == {"ok": 97, "failed": 2, "interrupted": 1}
    many, ends = simulated(400, 20, tmp_path / "many")
    assert ends == {"ok": 388, "failed": 8, "interrupted": 4}
    assert 1.0 < many["files"] < 1.25 * few["files"]
    assert many["until"] == pytest.approx(400 * 60.0 / 20, rel=0.1), "as long as so many workers need"
    assert HELD < 100, "some cells were held by others at first"


def test_the_cells_of_a_thousand_workers_are_drawn_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, drawn = [0.0], list[float]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    cell: object = None
    running = [Running(Planned("a", number, cell), number) for number in range(FEW + 1)]  # type: ignore[arg-type]
    display = Display(total=99, workers=FEW + 1)
    monkeypatch.setattr(display, "left", lambda *_: drawn.append(now[0]))
    for _ in range(101):
        display.on_progress(running, 0)
        now[0] += DRAW_SECONDS / 50
    assert drawn == pytest.approx([0.0, DRAW_SECONDS, 2 * DRAW_SECONDS])
    display.on_progress(running[:FEW], 0)
    assert len(drawn) == 4, "few are drawn whenever one reports"
