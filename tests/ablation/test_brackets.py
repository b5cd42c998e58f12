"""A rate counts as the best one at a rung where a curve of that very configuration has it between two worse ones."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN
from records import record

from lm.ablation.derived import expand_rates, write_rates
from lm.ablation.experiment import load_experiment
from lm.ablation.ladder.plan import rates_at, setting_of, trained_curves
from lm.ablation.plan import Plan, make_plan, write_manifest
from lm.store.files import write_atomic
from lm.store.store import Store

RATES = (0.004, 0.008, 0.016)


def plan_of(folder: Path, name: str, **changes: Any) -> Plan:
    folder.mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(RUN))
    arms = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}
    path = folder / f"{name}.yaml"
    tree = {"base": "base.yaml", "baseline": "layer", "arms": arms, "seeds": 3, "confirmatory": False, **changes}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return make_plan(load_experiment(path, {}))


def train_curve(
    folder: Path, losses: dict[str, list[float]], seeds: int = 1, name: str = "rates", **changes: Any
) -> None:
    """Make up a finished curve of learning rates, with the loss of each arm at each rate."""
    grid = {"rates": list(RATES), "seeds": list(range(100, 100 + seeds))}
    plan, store = plan_of(folder, name, lr_curve=grid, **changes), Store(folder / "out")
    of_grid = make_plan(expand_rates(plan.experiment))
    for planned in of_grid.cells:
        arm, rate = planned.arm.split(".lr")
        stored = record(planned.cell.id, losses[arm][RATES.index(float(rate))], planned.seed)
        store.finish(planned.cell.id, stored)
        write_atomic(store.directory(planned.cell.id) / "config.yaml", yaml.safe_dump(planned.cell.config))
    write_manifest(plan, store)
    write_manifest(of_grid, store)
    write_rates(plan, store)


VALLEY, FALLING = [2.0, 1.8, 1.9], [2.0, 1.9, 1.8]


def test_a_rate_is_bracketed_where_a_curve_has_it_between_two_worse_ones(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": FALLING}, seeds=2)
    rung = plan_of(tmp_path, "rung", common={"optim.lr": 0.008})
    rates = rates_at(rung, trained_curves(tmp_path / "out"))
    assert rates["layer"] == {"rate": 0.008, "curve": "rates", "lower": 0.004, "higher": 0.016, "seeds": 2}
    assert rates["rms"]["curve"] is None  # best at the end of the grid
    other = plan_of(tmp_path, "rung", common={"optim.lr": 0.004})
    assert rates_at(other, trained_curves(tmp_path / "out"))["layer"]["curve"] is None


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"trainer.limit_val_batches": 1}, True),
        ({"seed": 7}, True),
        ({"trainer.max_steps": 9}, False),
        ({"model.layers": 1}, False),
        ({"optim.schedule.warmup": 1}, False),
    ],
)
def test_a_curve_of_another_size_or_length_brackets_nothing(
    tmp_path: Path, changes: dict[str, Any], counts: bool
) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": VALLEY})
    config = plan_of(tmp_path, "rung", common={"optim.lr": 0.008}).first("layer").config
    if "seed" in changes:
        assert setting_of({**config, "seed": 7}) == setting_of(config)
        return
    rung = plan_of(tmp_path, "rung", common={"optim.lr": 0.008, **changes})
    assert (rates_at(rung, trained_curves(tmp_path / "out"))["layer"]["curve"] == "rates") is counts


def test_of_several_curves_that_with_most_seeds_decides(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": VALLEY}, seeds=1, name="first")
    train_curve(tmp_path, {"layer": FALLING, "rms": VALLEY}, seeds=2, name="second")
    rates = rates_at(plan_of(tmp_path, "rung", common={"optim.lr": 0.008}), trained_curves(tmp_path / "out"))
    assert (rates["layer"]["curve"], rates["rms"]["curve"]) == (None, "second")


def test_a_damaged_curve_is_none(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": VALLEY})
    path = tmp_path / "out" / "rates" / "lr_curve.json"
    for content in ("{", '{"format": 1}', '{"format": 1, "arms": {"layer": {"names": {"x": "y"}}}}'):
        path.write_text(content)
        assert trained_curves(tmp_path / "out") == []
