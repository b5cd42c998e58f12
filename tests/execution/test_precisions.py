"""Whether a reduced precision pays, by a clock that stands in for the machine's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers import RUN, Capture, Patch
from messages import CheckMessage

from lm.cli import main
from lm.config.tree import override
from lm.execution import estimate, machine
from lm.execution.estimate import advice, relative_step_time
from lm.execution.machine import ROUNDS, SECONDS, format_ratios, in_turn, measure_products
from lm.training.cell import check
from lm.training.identified import Cell


class Clock:
    """Time that goes by as the work says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        """Return work that takes so long each time, in the end always as long as the last."""
        left = list(seconds)

        def take() -> None:
            self.done.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return take


def test_the_ratio_is_of_medians_of_interleaved_work() -> None:
    clock = Clock()
    ratio = in_turn(clock.work("bf16", 9.0, 0.8, 0.2, 0.4, 0.4), clock.work("fp32", 7.0, 0.1, 0.1, 0.3, 0.1), clock)
    assert ratio == pytest.approx(4.0)
    assert clock.done == ["bf16", "fp32"] * (ROUNDS + 1)


def test_work_that_takes_long_is_done_once_besides() -> None:
    clock = Clock()
    assert in_turn(clock.work("bf16", 16 * SECONDS), clock.work("fp32", SECONDS), clock) == 16.0
    assert len(clock.done) == 4


@pytest.mark.parametrize(
    "ratio",
    [16.4, 1.2, 1.05, 0.52],
)
def test_what_is_said_of_a_precision(check_message: CheckMessage, ratio: float) -> None:
    ((precision, words),) = format_ratios({"bf16-mixed": ratio})
    assert precision == "bf16-mixed"
    check_message(words)


def test_products_are_timed_in_each_precision(monkeypatch: Patch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(machine, "SIZE", 4)
    ticks = iter(range(1000))
    assert measure_products(lambda: next(ticks)) == {"bf16-mixed": 1.0}


def cell(precision: str) -> Cell:
    """Return the small cell in a precision, on the processor."""
    return check(override(RUN, {"trainer.precision": precision, "trainer.accelerator": "cpu"}))


def test_a_step_is_timed_in_both_precisions(monkeypatch: Patch) -> None:
    timed: list[str] = []

    def timer(reduced: Callable[[], object], plain: Callable[[], object]) -> float:
        assert all(isinstance(way(), float) for way in (reduced, plain))
        return 3.0

    def loop(of: Cell) -> estimate.Loop:
        timed.append(of.config["trainer"]["precision"])
        return whole(of)

    whole = estimate.Loop
    monkeypatch.setattr(estimate, "in_turn", timer)
    monkeypatch.setattr(estimate, "Loop", loop)
    assert relative_step_time(cell("bf16-mixed"), 1) == 3.0
    assert timed == ["bf16-mixed", "32-true"]


@pytest.mark.parametrize("ratio", [16.4, 1.09, None])
def test_a_plan_says_so_where_a_precision_does_not_pay(
    ratio: float | None, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(estimate, "relative_step_time", lambda *_: ratio)
    plain, reduced = cell("32-true"), cell("bf16-mixed")
    line = advice([reduced, reduced], 1)
    assert (line is None) == (ratio != 16.4)
    if line is not None:
        check_message(line)
    assert advice([plain], 1) is None
    assert advice([plain, reduced], 1) is None  # which precision is better is what they are to show
    assert advice([], 1) is None


def experiment(folder: Path, **more: object) -> Path:
    """Write an experiment of the small base in bf16."""
    (folder / "base.yaml").write_text(yaml.safe_dump(override(RUN, {"trainer.precision": "bf16-mixed"})))
    tree = {"base": "base.yaml", "baseline": "a", "arms": {"a": {}, "b": {"model.norm": "RMSNorm"}}, "seeds": 2}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**tree, **more}, sort_keys=False))
    return path


LADDER = {"rungs": {"s": {"common": {"model.width": 8}}, "m": {"common": {"model.width": 16}}}}


@pytest.mark.parametrize("more", [{}, {"ladder": LADDER}])
def test_every_plan_asks(more: dict[str, object], tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(estimate, "relative_step_time", lambda *_: 16.4)
    monkeypatch.setattr(estimate, "measured_seconds", lambda *_: 1.0)
    line = advice([cell("bf16-mixed")], 1)
    path = experiment(tmp_path, **more)
    out = ["--out", str(tmp_path / "out"), "--plan"]
    assert main(["ablate", str(path), *out]) == 0
    assert line in capsys.readouterr().out.splitlines()
    assert main(["ablate", str(path), "--set", "trainer.precision=32-true", *out]) == 0
    assert line not in capsys.readouterr().out.splitlines()
    if more:
        ladders = ["reproduce", "--tier", "L", "--experiments", str(tmp_path), *out]
        assert main(ladders) == 0
        assert line in capsys.readouterr().out.splitlines()
        assert main([*ladders, "--set", "trainer.precision=32-true"]) == 0
        assert line not in capsys.readouterr().out.splitlines()
