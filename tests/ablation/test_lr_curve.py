"""Every arm over a grid of learning rates: what may be asked for, which cells that is, and what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN

from lm.ablation.derived import arm_at_rate, expand_rates
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import make_plan
from lm.analysis.results import load
from lm.cli import main
from lm.config.tree import InputError
from lm.report.rates import rates_of, rows
from lm.store.store import Store

RATES = [0.1, 0.001, 0.01]


def write(folder: Path, curve: Any, **changes: Any) -> Path:
    (folder / "base.yaml").write_text(yaml.safe_dump(RUN))
    arms = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}
    tree = {"base": "base.yaml", "baseline": "layer", "arms": arms, "seeds": 6, "lr_curve": curve, **changes}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([], "expected a mapping with rates"),
        ({}, "rates is missing"),
        ({"rates": RATES, "seed": [1]}, "no key 'seed'. Did you mean seeds?"),
        ({"rates": [0.1, 0.2]}, "3 different rates or more"),
        ({"rates": [0.1, 0.2, 0.2, 0.3]}, "3 different rates or more"),
        ({"rates": [0.1, 0.2, 0]}, "expected numbers above 0, found 0"),
        ({"rates": [0.1, 0.2, -0.3]}, "expected numbers above 0, found -0.3"),
        ({"rates": [0.1, 0.2, True]}, "expected numbers above 0"),
        ({"rates": [0.1, 0.2, "x"]}, "expected numbers above 0"),
        ({"rates": 0.1}, "expected a list of rates, or {low, high, n}"),
        ({"rates": {"low": 0.1, "high": 1.0, "n": 2}}, "n: expected a whole number from 3"),
        ({"rates": {"low": 0.1, "high": 1.0}}, "n: expected a whole number from 3"),
        ({"rates": {"low": 0, "high": 1.0, "n": 3}}, "low: expected a number above 0"),
        ({"rates": {"low": 2.0, "high": 1.0, "n": 3}}, "expected low below high"),
        ({"rates": {"low": 0.1, "hihg": 1.0, "n": 3}}, "Did you mean high?"),
        ({"rates": RATES, "seeds": [4, 99]}, "[4] confirm the winner"),
    ],
)
def test_a_wrong_grid_is_one_line(tmp_path: Path, curve: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_experiment(write(tmp_path, curve), {})
    assert words in str(caught.value)
    assert "lr_curve" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tune": {"space": {"optim.lr": {"low": 0.1, "high": 1}}, "trials": 2}}, "tune and lr_curve both"),
        ({"metric": "attention_entropy"}, "of which neither more nor less is better"),
    ],
)
def test_what_a_grid_does_not_go_with_is_refused(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_experiment(write(tmp_path, {"rates": RATES}, **changes), {})


def test_rates_between_two_ends_are_even_in_their_logarithm(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, {"rates": {"low": 1e-3, "high": 1, "n": 4}}), {})
    assert experiment.grid is not None
    assert experiment.grid.rates == (0.001, 0.01, 0.1, 1.0)
    assert experiment.grid.seeds == [1000, 1001, 1002]


def test_the_grid_is_an_arm_for_each_arm_and_rate_and_its_cells_are_ordinary_ones(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, {"rates": RATES, "seeds": [70, 71]}), {})
    grid = make_plan(expand_rates(experiment))
    assert list(grid.by_arm) == [arm_at_rate(arm, rate) for arm in ("layer", "rms") for rate in (0.001, 0.01, 0.1)]
    assert len(grid.distinct) == 12
    plain = load_experiment(write(tmp_path, {"rates": RATES}, seeds=[70, 71]), {"optim.lr": 0.01})
    same = {planned.cell.id for planned in make_plan(plain).by_arm["rms"]}
    assert {planned.cell.id for planned in grid.by_arm["rms.lr0.01"]} == same


@pytest.mark.slow
def test_the_plan_shows_the_cells_of_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"rates": RATES, "seeds": [70]})
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    line = next(line for line in told.splitlines() if line.startswith("rms.lr0.1: "))
    assert "-> RMSNorm" in line
    assert "optim.lr: 0.001 -> 0.1" in line
    assert "6 cells: 0 done" in told
    assert "12 cells: 0 done" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_each_arm_is_trained_over_the_rates_and_compared_at_its_best(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write(tmp_path, {"rates": [1e-5, 1e-3, 1e-2], "seeds": [70, 71]}, seeds=[0, 1])
    command = ["ablate", str(path), "--out", str(out), "--workers", "2", "--underpowered"]
    assert main(command) == 0
    results = load(out / "small")
    rates = rates_of(results, out / "small")
    assert rates is not None
    for arm, curve in rates.curves.items():
        assert curve.values_rs.shape == (3, 2)
        assert curve.best is not None
        for record in rates.twin.of(arm):
            config = yaml.safe_load((rates.twin.store.directory(record["id"]) / "config.yaml").read_text())
            assert config["optim"]["lr"] == curve.rates[curve.best]
            assert config["seed"] in (0, 1)
    page = (out / "small" / "table.md").read_text()
    assert "## Learning rates" in page
    assert "(lr_curve.png)" in page
    assert [row[0] for row in rows(results, rates)] == ["layer", "rms"]
    before = {path.name for path in Store(out).cells.iterdir()}
    described = json.loads((out / "small" / "lr_curve.json").read_text())
    assert set(described["arms"]) == {"layer", "rms"}
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before, "nothing is trained again"
    assert main(["pack", str(out / "small"), "--out", str(tmp_path / "small.lmpack")]) == 0
    assert main(["unpack", str(tmp_path / "small.lmpack"), "--out", str(tmp_path / "there")]) == 0
    assert main(["report", str(tmp_path / "there" / "small")]) == 0
    assert "## Learning rates" in (tmp_path / "there" / "small" / "table.md").read_text()
