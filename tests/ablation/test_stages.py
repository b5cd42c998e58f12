"""Seeds in stages, costs held equal, and plans that refuse what they cannot bear out."""

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from experiment_files import write_experiment
from helpers import RUN, Capture, Patch, known
from messages import CheckMessage, Refused, RefusedCommand

from lm.ablation.ablate import settled_arms
from lm.ablation.experiment import check_power, load_experiment
from lm.ablation.plan import equal_steps, make_plan, write_manifest
from lm.analysis.results import load
from lm.cli import main
from lm.config.tree import override
from lm.execution.estimate import Stopwatch
from lm.stats.sequential import plan_looks
from lm.store.store import Store
from lm.training.cell import check, sizes

MakeExperiment = Callable[..., Path]
ARMS = {"base": {}, "slow": {"optim.lr": 1.0e-5}}
BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95, 2.0, 2.12, 1.99, 2.04, 2.07, 1.93]
write = functools.partial(write_experiment, baseline="base", arms=ARMS)


# stages


def test_stages_are_the_looks_at_the_level_of_one_comparison(tmp_path: Path) -> None:
    arms = {**ARMS, "other": {"model.norm": "RMSNorm"}}
    experiment = load_experiment(write(tmp_path, arms=arms, seeds={"min": 6, "max": 24, "stages": 3}), {})
    assert experiment.inference.looks == plan_looks(6, 24, 3, 0.025)
    assert experiment.seeds == list(range(24))
    assert load_experiment(write(tmp_path, seeds={"min": 6, "max": 24}), {}, [1, 2]).inference.looks == ()


def test_manifest_of_a_stage_holds_its_seeds_and_looks(tmp_path: Path) -> None:
    plan = make_plan(load_experiment(write(tmp_path, seeds={"min": 6, "max": 12, "stages": 2}), {}))
    first = plan.experiment.inference.looks[0]
    found = json.loads((write_manifest(plan.upto(first), Store(tmp_path)) / "experiment.json").read_text())
    assert found["seeds"] == list(range(first))
    assert found["adaptive"] == {"looks": list(plan.experiment.inference.looks), "maximum": 12}
    assert {len(arm["cells"]) for arm in found["arms"].values()} == {first}


def test_a_clear_difference_is_settled_and_none_is_not(experiment: MakeExperiment) -> None:
    far, near = [x - 0.4 for x in BASE], [x + (-1) ** i * 0.01 for i, x in enumerate(BASE)]
    results = load(experiment({"base": BASE, "far": far, "near": near}))
    assert settled_arms(results, plan_looks(6, 12, 2, 0.025), ["far", "near"]) == {"far": True, "near": False}


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_training_stops_where_the_difference_is_found(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    short = {"trainer.max_steps": 5, "trainer.val_check_interval": 5, "trainer.limit_val_batches": 1}
    spec = write(tmp_path, seeds={"min": 6, "max": 12, "stages": 2}, common=short)
    assert main(["ablate", str(spec), "--out", str(tmp_path / "out"), "--workers", "2"]) == 0
    first = plan_looks(6, 12, 2, 0.05)[0]
    check_message([line for line in capsys.readouterr().err.splitlines() if f" {first} seeds" in line])
    assert len(list((tmp_path / "out" / "cells").glob("[0-9a-f]*"))) == 2 * first


# power


def test_seeds_that_cannot_bear_out_the_comparisons_are_refused(tmp_path: Path, refused: Refused) -> None:
    check_power(load_experiment(write(tmp_path), {}))
    with refused():
        check_power(load_experiment(write(tmp_path, seeds=5), {}))
    check_power(load_experiment(write(tmp_path, seeds=5, confirmatory=False), {}))
    check_power(load_experiment(write(tmp_path, seeds={"init": 4, "data": 4}), {}))  # for the shares of the variance
    arms = {**ARMS, "other": {"model.norm": "RMSNorm"}}
    with refused():
        check_power(load_experiment(write(tmp_path, arms=arms), {}))
    check_power(load_experiment(write(tmp_path, arms=arms, confirmatory=["slow"]), {}))


def test_quantities_declared_beside_the_headline_take_more_seeds(tmp_path: Path, refused: Refused) -> None:
    experiment = load_experiment(write(tmp_path, secondary=["accuracy", "ece"]), {})
    assert experiment.inference.comparisons == 3
    with refused():
        check_power(experiment)
    staged = load_experiment(write(tmp_path, secondary=["accuracy"], seeds={"min": 6, "max": 24, "stages": 3}), {})
    assert staged.inference.looks == plan_looks(6, 24, 3, 0.025)


def test_what_is_declared_is_in_the_manifest(tmp_path: Path) -> None:
    plan = make_plan(load_experiment(write(tmp_path, secondary=["accuracy"], seeds=8), {}))
    found = json.loads((write_manifest(plan, Store(tmp_path)) / "experiment.json").read_text())
    assert (found["metric"], found["secondary"]) == ("nll", ["accuracy"])


def test_a_refused_experiment_leaves_nothing(tmp_path: Path, refused_command: RefusedCommand) -> None:
    refused_command(["ablate", write(tmp_path, seeds=2), "--out", tmp_path / "out"])
    assert not (tmp_path / "out").exists()


# costs held equal


def cells(**arms: dict[str, Any]) -> dict[str, Any]:
    return {name: check(override(RUN, {"trainer.max_steps": 100, **changes})) for name, changes in arms.items()}


def test_flops_are_equal_to_within_a_step() -> None:
    found = cells(base={}, wide={"model.width": 32}, deep={"model.layers": 4})
    steps = equal_steps(found, "base", "flops", lambda cell: 0.0)
    per_step = {arm: sizes(c).tokens_per_step * known(sizes(c).flops_per_token) for arm, c in found.items()}
    budget = 100 * per_step["base"]
    assert steps["base"] == 100
    for arm in ("wide", "deep"):
        assert abs(steps[arm] * per_step[arm] - budget) <= per_step[arm] / 2
        assert steps[arm] < 100


def test_tokens_and_seconds_are_equal() -> None:
    found = cells(base={}, halves={"data.batch_size": 4}, twice={"trainer.accumulate_grad_batches": 2})
    assert equal_steps(found, "base", "tokens", lambda cell: 0.0) == {"base": 100, "halves": 200, "twice": 50}
    pace = {found["base"].id: 0.2, found["halves"].id: 0.15, found["twice"].id: 0.4}
    assert equal_steps(found, "base", "seconds", lambda cell: pace[cell.id]) == {
        "base": 100,
        "halves": 133,
        "twice": 50,
    }


def test_an_arm_that_sets_its_steps_cannot_have_them_set(refused: Refused) -> None:
    found = cells(base={}, more={"trainer.max_steps": 7})
    assert equal_steps(found, "base", "steps", lambda cell: 0.0) == {"base": 100, "more": 7}
    with refused():
        equal_steps(found, "base", "flops", lambda cell: 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"data.batch_size": {"0": 4, "2000": 16}},
        {"data.context_warmup": {"start": 2, "batches": 300}},
        {"data.batch_size": {"0": 4, "900": 8}, "trainer.accumulate_grad_batches": 2},
    ],
    ids=str,
)
def test_arms_whose_batches_grow_read_as_many_tokens(changes: dict[str, Any], refused: Refused) -> None:
    found = cells(base={"trainer.max_steps": 200}, grown={**changes, "trainer.max_steps": 200})
    steps = equal_steps(found, "base", "tokens", None)["grown"]
    tokens = 200 * sizes(found["base"]).tokens_per_step
    plan, every = found["grown"].open().data.plan, found["grown"].config["trainer"]["accumulate_grad_batches"]
    off = {at: abs(plan.tokens(every * at) - tokens) for at in range(1, 800)}
    assert off[steps] == min(off.values())
    with refused():
        equal_steps(found, "base", "seconds", lambda cell: 1.0)


def test_a_plan_holds_flops_equal_and_says_so(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    spec = write(tmp_path, arms={"base": {}, "deep": {"model.layers": 4}}, equal="flops")
    plan = make_plan(load_experiment(spec, {}))
    assert plan.first("base").config["trainer"]["max_steps"] == 12
    assert plan.first("deep").config["trainer"]["max_steps"] < 12
    assert "trainer.max_steps" in plan.changes["deep"]
    assert main(["ablate", str(spec), "--out", str(tmp_path / "out"), "--plan"]) == 0
    check_message([line for line in capsys.readouterr().out.splitlines() if "flops" in line])


def test_a_step_is_timed_once(tmp_path: Path) -> None:
    (cell,) = cells(base={}).values()
    watch = Stopwatch(tmp_path / "seconds.json")
    first = watch(cell)
    assert first > 0
    assert Stopwatch(tmp_path / "seconds.json")(cell) == first
    faster, wider = cells(faster={"optim.lr": 0.5}, wider={"model.width": 32}).values()
    assert watch(faster) == first, "an arm has as many steps at each learning rate"
    assert watch(wider) != first


def test_a_step_is_timed_once_for_all_rates_of_an_arm(tmp_path: Path, monkeypatch: Patch) -> None:
    timed = itertools.count(8)
    monkeypatch.setattr("lm.execution.estimate.step_seconds", lambda *_, **__: (next(timed), 1.0, 1))
    spec = write(tmp_path, arms={"base": {}, "deep": {"model.layers": 4}}, equal="seconds", tune="rates")
    out = tmp_path / "out"
    assert main(["ablate", str(spec), "--out", str(out), "--plan"]) == 0
    (path,) = out.glob("*/seconds.json")
    assert path.parent.name == spec.stem
    assert len(json.loads(path.read_text())["seconds"]) == 2


def test_a_step_that_another_command_times_is_not_timed(tmp_path: Path, monkeypatch: Patch) -> None:
    (cell,), path = cells(base={}).values(), tmp_path / "seconds.json"

    @contextlib.contextmanager
    def waited(*_: object) -> Iterator[None]:
        path.write_text(json.dumps({cell.id: 0.25}))
        yield

    monkeypatch.setattr("lm.store.side_files.locked", waited)
    assert Stopwatch(path)(cell) == 0.25


CLAIM = {"claim": "slow is worse", "kind": "ours", "metric": "nll", "relation": "greater", "arm": "slow"}


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": 10**12},
        {"seeds": {"min": 6, "max": 10**9}},
        {"seeds": {"min": 9, "max": 6}},
        {"confirmatory": ["slow", "slow"]},
        {"secondary": ["acuracy"]},
        {"secondary": ["nll"]},
        {"margin": {"accuracy": 0.1}},
        {"seeds": {"min": 6, "max": 12}, "claims": [CLAIM]},
        {"metric": "nll@x"},
    ],
)
def test_what_no_experiment_could_mean_is_refused(tmp_path: Path, changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        load_experiment(write(tmp_path, **changes), {}, tier="G" if "tiers" in changes else "")
