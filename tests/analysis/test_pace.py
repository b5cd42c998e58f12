"""How soon an arm is as good as the baseline, on curves whose crossing is known."""

import math
from typing import Any

import numpy as np
import pytest
from records import MakeExperiment

from lm.analysis.pace import steps_to_baseline_loss, steps_to_reach
from lm.analysis.results import Records, load
from lm.store.files import write_atomic

STEPS = (10, 20, 30, 40)
BASE = (5.0, 4.0, 3.0, 2.0)


Curves = dict[str, list[tuple[float, ...]]]


def with_curves(experiment: MakeExperiment, curves: Curves, change: Any = lambda *_: None, **manifest: Any) -> Records:
    """An experiment whose cells left these validation losses at STEPS."""
    folder = experiment({arm: [2.0] * len(of_arm) for arm, of_arm in curves.items()}, change, **manifest)
    store = load(folder).store
    for arm, of_arm in curves.items():
        for seed, losses in enumerate(of_arm):
            rows = [f"{step},{loss},{loss / 2}\n" for step, loss in zip(STEPS, losses, strict=True)]
            head = "step,validation_nll,validation_bits_per_byte\n"
            write_atomic(store.history(f"{arm}-{seed}"), head + "".join(rows))
    return load(folder)


def costs(arm: str, seed: int, record: dict[str, Any]) -> None:
    """The arm needs twice the FLOPs per token and half the time."""
    record["steps"] = 40
    record["cost"] |= {"flops_per_token": 200 if arm == "arm" else 100, "train_seconds": 4 if arm == "arm" else 8}


def test_twice_as_fast_needs_half_the_steps(experiment: MakeExperiment) -> None:
    # Between steps 10 and 20 the arm goes from 3 to 1.5, so it is at 2 by step 10 + 10 * 2 / 3.
    fast = (3.0, 1.5, 1.2, 1.0)
    (found,) = steps_to_baseline_loss(
        with_curves(experiment, {"base": [BASE, BASE], "arm": [fast, (4.0, 2.0, 1.0, 0.5)]}, costs)
    )
    steps = [(10 + 20 / 3) / 40, 0.5]
    assert found.shares["steps"] == pytest.approx(steps)
    assert found.shares["FLOPs"] == pytest.approx([2 * share for share in steps])
    assert found.shares["seconds"] == pytest.approx([share / 2 for share in steps])
    assert (found.arm, found.missed, found.seeds) == ("arm", [], 2)


def test_seeds_that_miss_the_target_are_listed(experiment: MakeExperiment) -> None:
    slow = (6.0, 5.0, 4.0, 3.0)
    (found,) = steps_to_baseline_loss(with_curves(experiment, {"base": [BASE] * 3, "arm": [slow, BASE, slow]}))
    assert (found.missed, found.shares["steps"], found.seeds) == ([0, 2], [1.0], 3)


@pytest.mark.parametrize("losses", [BASE, (5.0, 1.5, 1.9, 2.0), (2.0, 2.0, 2.0, 2.0), (2.0, 3.0, 4.0, 5.0)])
def test_the_baseline_against_itself_needs_all_of_it(experiment: MakeExperiment, losses: tuple[float, ...]) -> None:
    (found,) = steps_to_baseline_loss(with_curves(experiment, {"base": [losses], "arm": [losses]}, costs))
    assert found.shares["steps"] == [1.0]


def test_the_target_is_the_last_loss_of_the_baseline(experiment: MakeExperiment) -> None:
    # It is down to its last loss, 2, for the first time at step 10 + 10 * 3 / 4; the arm is at step 30.
    curves: Curves = {"base": [(5.0, 1.0, 1.5, 2.0)], "arm": [(5.0, 4.0, 2.0, 1.9)]}
    (found,) = steps_to_baseline_loss(with_curves(experiment, curves))
    assert found.shares["steps"] == pytest.approx([30 / 17.5])


def test_flops_that_nobody_counted_are_left_out(experiment: MakeExperiment) -> None:
    (found,) = steps_to_baseline_loss(with_curves(experiment, {"base": [BASE], "arm": [BASE]}))
    assert list(found.shares) == ["steps"]


def test_seeds_without_curve_or_with_other_text_are_excluded(experiment: MakeExperiment) -> None:
    def other(arm: str, seed: int, record: dict[str, Any]) -> None:
        if (arm, seed) == ("arm", 1):
            record["evaluated"]["tokens"], record["reliability"] = 7, None

    results = with_curves(experiment, {"base": [BASE] * 3, "arm": [BASE] * 3}, other)
    write_atomic(results.store.history("arm-2"), "step,train_loss\n10,1.0\n")
    assert steps_to_baseline_loss(results)[0].seeds == 1
    for seed in range(3):
        write_atomic(results.store.history(f"base-{seed}"), "step,train_loss\n10,1.0\n")
    assert steps_to_baseline_loss(results) == []


def test_losses_per_token_of_several_tokenizers_have_no_pace(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["data"]["tokenizer"] = arm

    curves: Curves = {"base": [BASE], "arm": [tuple(np.array(BASE) / 2)]}
    assert steps_to_baseline_loss(with_curves(experiment, curves, change)) == []
    (found,) = steps_to_baseline_loss(with_curves(experiment, curves, change, metric="bits_per_byte"))
    assert found.shares["steps"] == [20 / 40]


@pytest.mark.parametrize(
    ("losses", "target", "step"),
    [
        ([4.0, 3.0, 2.0, 1.0], 2.5, 25.0),
        ([4.0, 3.0, 2.0, 1.0], 2.0, 30.0),
        ([4.0, 3.0, 2.0, 1.0], 4.0, 10.0),
        ([4.0, 3.0, 2.0, 1.0], 5.0, 10.0),
        ([4.0, 3.0, 2.0, 1.0], 0.9, math.nan),
        ([4.0, 2.0, 3.0, 1.0], 1.5, 35.0),
        ([4.0, math.nan, 2.0, 1.0], 3.0, 20.0),
        ([math.inf, 3.0, 2.0, 1.0], 2.5, 25.0),
        ([4.0, 3.0, math.nan, math.nan], 2.0, math.nan),
        ([math.nan] * 4, 2.0, math.nan),
    ],
)
def test_the_step_at_which_a_curve_reaches_a_loss(losses: list[float], target: float, step: float) -> None:
    assert steps_to_reach([10, 20, 30, 40], losses, target) == pytest.approx(step, rel=1e-12, nan_ok=True)


def test_a_lower_loss_is_never_reached_earlier() -> None:
    losses = np.cumsum(np.random.default_rng(0).normal(-0.1, 0.5, 60)).tolist()
    steps = [steps_to_reach(range(60), losses, target) for target in np.linspace(0, min(losses), 50)]
    assert (np.diff(steps) >= 0).all()
