"""Every arm gets the same search; its winner is frozen and trained on seeds that did not choose it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN

from lm.ablation.experiment import load_experiment
from lm.ablation.tune import tuned
from lm.analysis.results import load
from lm.cli import main
from lm.config.tree import InputError
from lm.report.figures.comparison import envelope
from lm.report.study import load_study
from lm.store.store import Store

SPACE = {"optim.lr": {"low": 1.0e-4, "high": 1.0e-1, "log": True}}


def write(folder: Path, tune: Any, **changes: Any) -> Path:
    (folder / "base.yaml").write_text(yaml.safe_dump(RUN))
    arms = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}
    tree = {"base": "base.yaml", "baseline": "layer", "arms": arms, "seeds": 6, "tune": tune, **changes}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ([], "expected a mapping with space and trials"),
        ({"space": SPACE}, "trials is missing"),
        ({"space": SPACE, "trials": 0}, "trials: expected a whole number from 1"),
        ({"space": SPACE, "trials": 3, "seed": [1]}, "no key 'seed'. Did you mean seeds?"),
        ({"space": SPACE, "trials": 3, "seeds": [4, 99]}, "[4] confirm the winner"),
        ({"space": SPACE, "trials": 3, "sampler": "tpee"}, "Did you mean tpe?"),
    ],
)
def test_a_wrong_search_is_one_line(tmp_path: Path, tune: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_experiment(write(tmp_path, tune), {})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ({"space": {"optim.lrr": {"low": 1, "high": 2}}, "trials": 3}, "Did you mean"),
        ({"space": SPACE, "trials": 10**9}, "tune.trials: expected at most"),
        ({"space": SPACE, "trials": 3, "sampler": {"name": "tpe", "n_startup_trials": "x"}}, "sampler"),
        ({"space": SPACE, "trials": 3, "sampler": "grid"}, "optim.lr"),
    ],
)
def test_a_search_that_cannot_be_carried_out_is_refused_by_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tune: Any, words: str
) -> None:
    assert main(["ablate", str(write(tmp_path, tune)), "--plan", "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_winners_are_added_to_what_each_arm_declares(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, {"space": SPACE, "trials": 3}), {})
    winners = {"layer": {"changes": {"optim.lr": 0.5}}, "rms": {"changes": None}}
    twin = tuned(experiment, winners)
    assert twin.arms == {"layer": {"optim.lr": 0.5}, "rms": {"model.norm": "RMSNorm"}}
    assert (twin.name, twin.baseline, twin.seeds) == ("small.tuned", "layer", experiment.seeds)


def test_the_envelope_is_the_lowest_trial_of_each_part_of_the_range() -> None:
    x, y = envelope([1.0, 1.1, 10.0, 100.0], [3.0, 2.0, 1.0, 4.0], log=True)
    assert list(zip(x, y, strict=True)) == [(1.1, 2.0), (10.0, 1.0), (100.0, 4.0)]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_every_arm_is_tuned_alike_and_confirmed_on_fresh_seeds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune = {"space": SPACE, "trials": 3, "seeds": [70], "sampler": {"name": "random", "seed": 3}}
    command = [
        "ablate",
        str(write(tmp_path, tune, seeds=[0, 1])),
        "--out",
        str(out),
        "--workers",
        "2",
        "--underpowered",
    ]
    assert main(command) == 0
    described = json.loads((out / "small" / "tune" / "tuned.json").read_text())
    studies = {arm: load_study(out / "small" / "tune" / arm) for arm in ("layer", "rms")}
    for arm, study in studies.items():
        assert list(study.trials.state) == ["complete"] * 3
        best = study.complete.sort_values("nll").iloc[0]
        assert described["arms"][arm]["changes"] == {"optim.lr": best["optim.lr"]}
        assert described["arms"][arm]["value"] == best.nll
    assert list(studies["layer"].trials["optim.lr"]) == list(studies["rms"].trials["optim.lr"]), "the same budget"
    twin = load(out / "small.tuned")
    for (arm, seed), record in twin.records.items():
        assert record is not None
        assert seed != 70
        config = yaml.safe_load((twin.store.directory(record["id"]) / "config.yaml").read_text())
        assert config["optim"]["lr"] == described["arms"][arm]["changes"]["optim.lr"]
    page = (out / "small" / "table.md").read_text()
    assert "## Tuning" in page
    assert "3 complete" in page
    before = {path.name for path in Store(out).cells.iterdir()}
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before, "nothing is trained again"
