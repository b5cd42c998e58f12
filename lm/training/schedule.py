"""Learning-rate schedules: the share of the peak rate at update t, counted from 1 to `total`."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar


def warmup_cosine(t: int, warmup: int, total: int, final: float = 0.0) -> float:
    """Return the fraction of the peak rate at update `t`, counted from 1: t / warmup, then half a cosine down.

    It is 1 at t = warmup and `final` at t = total (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983).

    >>> [round(warmup_cosine(t, warmup=2, total=6), 3) for t in range(1, 7)]
    [0.5, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if t < warmup:
        return t / warmup
    progress = min(1.0, (t - warmup) / max(1, total - warmup))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def noam(t: int, width: int, warmup: int) -> float:
    """Return the learning rate width^-.5 min(t^-.5, t warmup^-1.5) at update `t`; it peaks at t = warmup.

    Vaswani et al. 2017, section 5.3, https://arxiv.org/abs/1706.03762.

    >>> [round(noam(t, width=4, warmup=4), 4) for t in (1, 4, 16)]
    [0.0625, 0.25, 0.125]
    """
    return float(width**-0.5 * min(t**-0.5, t * warmup**-1.5))


def in_steps(warmup: float, total: int) -> int:
    """Return a warm-up as a number of updates; below 1 it is a fraction of `total`, and 1 at least.

    >>> [in_steps(warmup, 300) for warmup in (0, 0.001, 0.05, 50)]
    [0, 1, 15, 50]
    """
    return max(1, round(warmup * total)) if 0 < warmup < 1 else int(warmup)


class Schedule(ABC):
    """The learning rate over the course of training."""

    # whether the rate, up to a descent at the end, is the same for any number of steps: short runs begin as long ones
    same_at_any_length: ClassVar[bool] = False

    @property
    def in_proportion(self) -> float | None:
        """The option `warmup` of a schedule of this module, for `in_steps`; None of any other."""
        return getattr(self, "warmup", None) if type(self).__module__ == __name__ else None

    @abstractmethod
    def factor(self, t: int, total: int) -> float:
        """Return the share of the peak rate at update `t`, from 1, of `total`. Raises ValueError for a long warm-up."""


class _Warmup(Schedule):
    """A linear warm-up, then what `after` returns.

    Args:
        warmup: optimiser steps; below 1 a share of all of them.
    """

    def __init__(self, warmup: int | float, final: float = 0.0) -> None:
        if not (0 <= warmup < math.inf) or (warmup >= 1 and not float(warmup).is_integer()):
            expected = "must be 0 or more steps, a whole number, or a share of them between 0 and 1"
            raise ValueError(f"warmup={warmup} {expected}")
        if not 0 <= final <= 1:
            raise ValueError(f"final={final} must lie in [0, 1]")
        self.warmup, self.final = warmup, final

    def factor(self, t: int, total: int) -> float:
        """Return the share of the peak rate at update `t` of `total`."""
        warmup = in_steps(self.warmup, total)
        if warmup > total:
            hint = "shorten it, give a share of them such as 0.05, or raise trainer.max_steps"
            raise ValueError(f"warmup={self.warmup} is more than the {total} steps of the run; {hint}")
        return self.of_updates(t, warmup, total)

    @abstractmethod
    def of_updates(self, t: int, warmup: int, total: int) -> float:
        """Return the share of the peak rate, with the warm-up as a number of updates."""


class Constant(_Warmup):
    """A constant rate after a linear warm-up."""

    same_at_any_length = True

    def __init__(self, warmup: int | float = 0) -> None:
        super().__init__(warmup)

    def of_updates(self, t: int, warmup: int, total: int) -> float:
        """Return t / warmup, then 1."""
        return min(1.0, t / warmup) if warmup else 1.0


class WarmupCosine(_Warmup):
    """Linear warm-up, then half a cosine down.

    Args:
        final: share of the peak rate at the end.
    """

    def __init__(self, warmup: int | float = 100, final: float = 0.1) -> None:
        super().__init__(warmup, final)

    def of_updates(self, t: int, warmup: int, total: int) -> float:
        """Return t / warmup, then half a cosine from 1 at t = warmup to `final` at t = total."""
        return warmup_cosine(t, warmup, total, self.final)


class WarmupLinear(_Warmup):
    """Linear warm-up, then a straight line down.

    Args:
        final: share of the peak rate at the end.
    """

    def __init__(self, warmup: int | float = 100, final: float = 0.0) -> None:
        super().__init__(warmup, final)

    def of_updates(self, t: int, warmup: int, total: int) -> float:
        """Return t / warmup, then a line from 1 at t = warmup to `final` at t = total."""
        if t < warmup:
            return t / warmup
        return 1 + (self.final - 1) * min(1.0, (t - warmup) / max(1, total - warmup))


class InverseSquareRoot(_Warmup):
    """Linear warm-up, then down with 1 / sqrt(t) (Vaswani et al. 2017); 1 at its peak, t = warmup.

    The rate of that paper itself is had with `optim.lr` = noam(warmup, width, warmup) = (width warmup)^-.5.
    """

    same_at_any_length = True

    def __init__(self, warmup: int | float = 4000) -> None:
        super().__init__(warmup)
        if not warmup:
            raise ValueError(f"warmup={warmup} must be 1 or more steps: the rate peaks at the end of warm-up")

    def of_updates(self, t: int, warmup: int, total: int) -> float:
        """Return `noam` over its peak."""
        return noam(t, 1, warmup) / noam(warmup, 1, warmup)


class WarmupStableDecay(_Warmup):
    """Linear warm-up, a long constant rate, then a straight line down at the end.

    Hu et al. 2024, section 4.2, https://arxiv.org/abs/2404.06395, with the linear decay of Hagele et al. 2024,
    https://arxiv.org/abs/2405.18392.

    Args:
        decay: optimiser steps of the descent; below 1 a share of all of them.
        final: share of the peak rate at the end.
    """

    same_at_any_length = True

    def __init__(self, warmup: int | float = 100, decay: float = 0.2, final: float = 0.0) -> None:
        if not (decay > 0 and (decay < 1 or float(decay).is_integer())):
            raise ValueError(f"decay={decay} must be a share between 0 and 1, or a whole number of steps")
        super().__init__(warmup, final)
        self.decay = decay

    def of_updates(self, t: int, warmup: int, total: int) -> float:
        """Return t / warmup, 1 from t = warmup to t = total - decay, then a line to `final` at t = total."""
        decay = max(1, round(self.decay * total)) if self.decay < 1 else int(self.decay)
        if warmup + decay > total:
            steps = f"a decay of {decay} steps are more than the {total} steps of the run"
            raise ValueError(f"warmup={self.warmup} and {steps}; shorten them or raise trainer.max_steps")
        if t < warmup:
            return t / warmup
        return 1 + (self.final - 1) * min(1.0, max(0, t - (total - decay)) / decay)
