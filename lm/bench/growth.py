"""How time and memory of a training step grow with a model: exponents, beside those of what was counted.

A model of each size is timed in turn with the others. In the limit time goes with the square of the width and of the
context, and with the depth and the vocabulary to the power 1. At sizes like these other terms count as well: so what
is expected is fitted in the same way, over the same points, to the FLOPs of a step and to the bytes of weights, their
gradients, AdamW's moments and what the backward pass needs, as `lm count` has them. Time that grows less than its
FLOPs is what small models pay for each operation, whatever its size.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lm.bench.asked import Asked
from lm.bench.memory import added, in_child
from lm.bench.ratios import alternate, exponent, quartiles, timed
from lm.bench.rows import Row, row, rows_of
from lm.bench.sizes import BASE
from lm.config.components import build, resolve
from lm.config.tree import override
from lm.model.count import activation_bytes, flops_per_token
from lm.model.transformer import Model, initialized
from lm.runs.ways import threads_of
from lm.training.optim import decay_groups
from lm.training.run import Run

BATCH = 4
STATE = 16
"""Bytes a parameter: its value, its gradient and AdamW's two moments in float32."""


@dataclass(frozen=True)
class Grown:
    """A model and what it reads."""

    width: int = 64
    layers: int = 2
    context: int = 64
    vocabulary: int = 256


AXES: dict[str, tuple[int, ...]] = {
    "width": (64, 128, 256, 512),
    "layers": (1, 2, 4, 8, 16),
    "context": (64, 128, 256, 512, 1024),
    "vocabulary": (256, 1024, 4096, 16384),
}
FITTED = 3
"""Points that an exponent is fitted over: the largest."""


def growth(asked: Asked) -> list[Row]:
    """For each axis its points, then the exponents of time and of memory."""
    rows: list[Row] = []
    with threads_of(asked.threads):
        for axis, points in AXES.items():
            rows += _along(axis, points[:3] if asked.quick else points, asked)
    return rows


def _along(axis: str, points: tuple[int, ...], asked: Asked) -> list[Row]:
    group = f"growth with {axis}; else {_said(Grown(), axis)}"
    ways = {f"{axis} {value}": timed(_stepping(_grown(axis, value)), 1 if asked.quick else 3) for value in points}
    taken = alternate(ways, 2 if asked.quick else 7)
    held = [None if asked.quick else in_child("growth", axis, value, asked.threads) for value in points]
    counted = [_counted(_grown(axis, value)) for value in points]
    more: dict[str, dict[str, float | None]] = {
        way: {"added_mib": mib, "counted_gflop": flops / 1e9, "counted_mib": size / 2**20}
        for way, mib, (flops, size) in zip(ways, held, counted, strict=True)
    }
    rows = rows_of(group, taken, next(iter(ways)), more=more)
    fits = [exponent(points, seconds, FITTED) for seconds in zip(*taken.values(), strict=True)]
    expected = exponent(points, [flops for flops, _ in counted], FITTED)
    rows.append(_fitted(group, f"exponent of time over the largest {FITTED}", fits, expected))
    if all(mib is not None for mib in held):
        fits = [exponent(points, [float(mib or 0) for mib in held], FITTED)]
        expected = exponent(points, [size for _, size in counted], FITTED)
        rows.append(_fitted(group, f"exponent of memory over the largest {FITTED}", fits, expected))
    return rows


def _fitted(group: str, way: str, fits: list[float], expected: float) -> Row:
    """A row for an exponent: its median over the rounds, its quartiles, and that of what was counted."""
    known = [fit for fit in fits if fit == fit]
    if not known:
        return row(group, way, None, "exponent", more={"expected": expected}, note="no points above zero")
    low, _, high = quartiles(known)
    more = {"low": low, "high": high, "expected": expected}
    return row(group, way, statistics.median(known), "exponent", more=more)


def _said(at: Grown, axis: str) -> str:
    rest = ", ".join(f"{name} {value}" for name, value in vars(at).items() if name != axis)
    return f"{rest}, {BATCH} rows a batch"


def _grown(axis: str, value: int) -> Grown:
    return Grown(**{**vars(Grown()), axis: value})


# a model -------------------------------------------------------------------------------------------------------------


def _model(at: Grown) -> Model:
    tree = override(BASE, {"model.width": at.width, "model.layers": at.layers})
    run: Run = build(resolve(tree, Run), Run)
    return initialized(run.model, at.vocabulary, at.context, 0)


def _stepping(at: Grown) -> Callable[[], object]:
    """A training step of a fresh model on random tokens."""
    model = _model(at)
    optimizer = torch.optim.AdamW(decay_groups(model.parameters()), lr=1e-3, fused=True)
    tokens_bt = torch.randint(at.vocabulary, (BATCH, at.context), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        loss = cross_entropy(model(tokens_bt).flatten(0, 1), tokens_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _counted(at: Grown) -> tuple[float, float]:
    """FLOPs of a step, and bytes of the weights, their state and what the backward pass needs."""
    model = _model(at)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = flops_per_token(model, at.context).total * BATCH * at.context
    return flops, STATE * parameters + activation_bytes(model, at.context, BATCH)["float32"]


def memory_here(axis: str, value: int, threads: int) -> float:
    """MiB that a model adds to this process by being made and trained for two steps; a small one has gone before."""
    torch.set_num_threads(threads)
    _stepping(Grown(width=16, layers=1, context=8))()

    def work() -> None:
        step = _stepping(_grown(axis, value))
        step()
        step()

    return added(work)
