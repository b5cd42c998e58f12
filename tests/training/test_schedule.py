"""Schedules against torch's own and against formulas written out."""

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from messages import Refused
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler

from lm.config.choices import choices
from lm.training.schedule import (
    Constant,
    InverseSquareRoot,
    Schedule,
    WarmupCosine,
    WarmupLinear,
    WarmupStableDecay,
    in_steps,
    noam,
    warmup_cosine,
)


@pytest.mark.parametrize(("warmup", "total", "final"), [(0, 10, 0.0), (3, 20, 0.1), (1, 7, 1.0), (19, 20, 0.3)])
def test_the_schedule_peaks_after_warmup_and_ends_at_final(warmup: int, total: int, final: float) -> None:
    factors = [warmup_cosine(t, warmup, total, final) for t in range(warmup, total + 1)]
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(final, abs=1e-15)
    assert (np.diff(factors) <= 0).all()
    assert warmup_cosine(total + 5, warmup, total, final) == factors[-1]
    assert np.diff([warmup_cosine(t, warmup, total, final) for t in range(warmup + 1)]) == pytest.approx(
        [1 / warmup] * warmup if warmup else []
    )


@pytest.mark.parametrize(
    ("own", "torchs"),
    [
        (WarmupCosine, lambda optimizer, steps, final: CosineAnnealingLR(optimizer, T_max=steps, eta_min=final)),
        (WarmupLinear, lambda optimizer, steps, final: LinearLR(optimizer, 1.0, final, total_iters=steps)),
    ],
)
def test_the_cosine_and_the_line_are_torchs(own: Callable[..., Schedule], torchs: Callable[..., LRScheduler]) -> None:
    warmup, total, final = 5, 30, 0.1
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torchs(optimizer, total - warmup, final)
    for t in range(warmup, total + 1):
        assert own(warmup, final).factor(t, total) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        schedule.step()


def test_a_constant_rate_warms_up_linearly_and_stays() -> None:
    assert [Constant(4).factor(t, 8) for t in range(1, 9)] == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    assert [Constant().factor(t, 3) for t in range(1, 4)] == [1, 1, 1]


def test_noam_peaks_at_7e_4_for_the_papers_base_model() -> None:
    rates = [noam(t, 512, 4000) for t in range(1, 20001)]
    assert int(np.argmax(rates)) + 1 == 4000
    assert max(rates) == pytest.approx(6.9877e-4, abs=1e-8)


@pytest.mark.parametrize("width", [64, 512])
def test_the_inverse_square_root_is_noam_over_its_peak(width: int) -> None:
    schedule, peak = InverseSquareRoot(40), noam(40, width, 40)
    for t in (1, 7, 39, 40, 41, 160, 10**6):
        assert schedule.factor(t, 100) == pytest.approx(noam(t, width, 40) / peak, rel=1e-12)
    assert schedule.factor(40, 100) == 1.0
    assert schedule.factor(160, 100) == pytest.approx(0.5, rel=1e-14)


def test_warmup_stable_decay_worked_by_hand() -> None:
    shares = [WarmupStableDecay(4, 4, 0.2).factor(t, 12) for t in range(1, 13)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2], rel=1e-14)


@pytest.mark.parametrize(("decay", "steps"), [(0.25, 5), (5, 5), (0.001, 1), (1, 1)])
def test_a_decay_below_one_is_a_fraction_of_the_steps(decay: float, steps: int) -> None:
    schedule = WarmupStableDecay(3, decay, 0.5)
    for t in range(1, 21):
        assert schedule.factor(t, 20) == WarmupStableDecay(3, steps, 0.5).factor(t, 20)
    assert schedule.factor(20 - steps, 20) == 1.0
    assert schedule.factor(20, 20) == 0.5


SCHEDULES = [
    Constant(5),
    Constant(),
    WarmupCosine(5, 0.1),
    WarmupLinear(5, 0.1),
    WarmupLinear(0, 0.0),
    InverseSquareRoot(5),
    WarmupStableDecay(5, 0.3, 0.1),
    WarmupStableDecay(0, 20, 0.0),
]


def test_every_schedule_is_tested_here() -> None:
    assert {type(schedule) for schedule in SCHEDULES} == set(choices(Schedule).values())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_every_schedule_rises_in_warmup_to_one_and_never_again(schedule: Schedule) -> None:
    factors = [schedule.factor(t, 20) for t in range(1, 21)]
    peak = max(1, getattr(schedule, "warmup", 0))
    expected_peak = 0.95 if getattr(schedule, "warmup", 0) == 0 and len(set(factors)) > 1 else 1.0
    assert factors[peak - 1] == pytest.approx(max(factors), rel=1e-14)
    assert max(factors) == pytest.approx(expected_peak, rel=1e-14)
    assert factors[:peak] == pytest.approx([t / peak * expected_peak for t in range(1, peak + 1)], rel=1e-14)
    assert (np.diff(factors[peak - 1 :]) <= 0).all()
    if "final" in inspect.signature(type(schedule)).parameters:
        assert factors[-1] == pytest.approx(vars(schedule)["final"], abs=1e-15)


WRONG: dict[str, Callable[[], object]] = {
    "final of a cosine": lambda: WarmupCosine(1, 1.5),
    "final of a line": lambda: WarmupLinear(1, -0.1),
    "final of a decay": lambda: WarmupStableDecay(1, 0.5, 2.0),
    "warmup of a cosine": lambda: WarmupCosine(-1),
    "warmup of a line": lambda: WarmupLinear(-1),
    "warmup of a constant": lambda: Constant(-1),
    "warmup of a decay": lambda: WarmupStableDecay(-1),
    "warmup of a root": lambda: InverseSquareRoot(0),
    "no decay": lambda: WarmupStableDecay(1, 0),
    "decay of no whole steps": lambda: WarmupStableDecay(1, 2.5),
    "decay nan": lambda: WarmupStableDecay(1, math.nan),
    "decay inf": lambda: WarmupStableDecay(1, math.inf),
    "longer than the run": lambda: WarmupStableDecay(50, 30).factor(1, 60),
}


@pytest.mark.parametrize("name", WRONG)
def test_numbers_out_of_range_are_refused_by_name(name: str, refused: Refused) -> None:
    with refused(ValueError):
        WRONG[name]()


@pytest.mark.parametrize("kind", [Constant, WarmupCosine, WarmupLinear, InverseSquareRoot, WarmupStableDecay])
def test_a_warmup_below_one_is_a_share_of_the_steps(kind: type[Schedule], refused: Refused) -> None:
    of_share, of_steps = kind(warmup=0.15), kind(warmup=3)  # type: ignore[call-arg]
    assert [of_share.factor(t, 20) for t in range(1, 21)] == [of_steps.factor(t, 20) for t in range(1, 21)]
    assert of_share.in_proportion == 0.15
    with refused(ValueError):
        kind(warmup=1.5)  # type: ignore[call-arg]


def test_a_fraction_of_the_steps_is_at_least_one() -> None:
    assert [in_steps(warmup, 30) for warmup in (0, 0.001, 0.049, 0.1, 0.999, 1, 7.0)] == [0, 1, 1, 3, 30, 1, 7]


def test_the_warmup_of_a_users_own_schedule_is_left_alone() -> None:
    class Own(WarmupCosine):
        pass

    assert Own(0.1).in_proportion is None
