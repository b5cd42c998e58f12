"""What is minimised, by which rule, at which rate. Optimisers are torch's; schedules are pure functions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def warmup_cosine(t: int, warmup: int, total: int, final: float = 0.0) -> float:
    """The share of the peak rate at update `t`, counted from 1: t / warmup, then half a cosine down.

    It is 1 at t = warmup and `final` at t = total (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983).
    """
    if t < warmup:
        return t / warmup
    progress = min(1.0, (t - warmup) / max(1, total - warmup))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


class Schedule(ABC):
    """How the learning rate moves over training."""

    @abstractmethod
    def factor(self, t: int, total: int) -> float:
        """The share of the peak rate for update `t`, counted from 1, of `total`."""


class Constant(Schedule):
    """The same rate throughout, after a linear warm-up.

    Args:
        warmup: optimiser steps.
    """

    def __init__(self, warmup: int = 0) -> None:
        self.warmup = _warmup(warmup)

    def factor(self, t: int, total: int) -> float:
        return min(1.0, t / self.warmup) if self.warmup else 1.0


class WarmupCosine(Schedule):
    """Linear warm-up, then half a cosine down.

    Args:
        warmup: optimiser steps.
        final: share of the peak rate at the end.
    """

    def __init__(self, warmup: int = 100, final: float = 0.1) -> None:
        if not 0 <= final <= 1:
            raise ValueError(f"final={final} must lie in [0, 1]")
        self.warmup = _warmup(warmup)
        self.final = final

    def factor(self, t: int, total: int) -> float:
        return warmup_cosine(t, self.warmup, total, self.final)


def _warmup(steps: int) -> int:
    if steps < 0:
        raise ValueError(f"warmup={steps} must be 0 or more steps")
    return steps


class Objective(ABC):
    """The loss that training minimises; evaluation always uses the plain negative log-likelihood."""

    @abstractmethod
    def loss(self, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        """A scalar, in nats per token."""


class CrossEntropy(Objective):
    """Mean cross-entropy against (1 - a) onehot + a / v (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567).

    Args:
        label_smoothing: a.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} must lie in [0, 1)")
        self.label_smoothing = label_smoothing

    def loss(self, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits_nv, targets_n, label_smoothing=self.label_smoothing)


def decay_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Two parameter groups: matrices, which decay, and vectors (gains, offsets), which do not."""
    trainable = [p for p in parameters if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= 2]},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Optim:
    """How a model is trained.

    Args:
        lr: the peak learning rate.
        optimizer: a torch optimiser; its own defaults hold where nothing is given.
        schedule: how the rate moves.
        objective: what is minimised.
    """

    def __init__(
        self,
        lr: float,
        optimizer: Callable[[Any, float], torch.optim.Optimizer],
        schedule: Schedule,
        objective: Objective,
    ) -> None:
        if not (lr > 0 and math.isfinite(lr)):
            raise ValueError(f"lr={lr} must be a finite number above 0")
        self.lr = lr
        self.optimizer = optimizer
        self.schedule = schedule
        self.objective = objective

    def build(
        self, parameters: Iterable[nn.Parameter], total: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """The optimiser over `parameters` and its schedule over `total` steps."""
        optimizer = self.optimizer(decay_groups(parameters), self.lr)
        schedule = self.schedule
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step + 1, total))
