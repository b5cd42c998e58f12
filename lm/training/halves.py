"""A batch in two halves, one after the other, where memory does not suffice for it at once.

The gradient of a mean over tokens is the sum of those of its halves, each weighed by its share of the tokens: the step
is the same up to rounding, and so is all that is counted in batches. Dropout draws other numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lm.data import IGNORED
from lm.data.batch import Batch

WORDS = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""In the messages of errors that are no more than a RuntimeError."""


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is that memory did not suffice."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


def halves(batch: Batch) -> list[Batch]:
    """The first rows and the others; the batch itself where it is one row."""
    rows = len(batch.rows_b)
    cuts = [(0, rows)] if rows < 2 else [(0, (rows + 1) // 2), ((rows + 1) // 2, rows)]
    return [
        Batch(tuple(x[start:end] for x in batch.inputs), batch.targets_bt[start:end], batch.rows_b[start:end])
        for start, end in cuts
    ]


def shares(batch: Batch) -> list[tuple[Batch, Tensor]]:
    """The halves, each with its share of the targets, a float64."""
    all_of_them = (batch.targets_bt != IGNORED).sum().double().clamp(min=1)
    return [(half, (half.targets_bt != IGNORED).sum() / all_of_them) for half in halves(batch)]


class _Backward(torch.autograd.Function):
    """Stands for a loss whose gradients are all added up by a function, when they are asked for."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, run: Callable[[Tensor], None]) -> Tensor:
        ctx.run = run
        return handle.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        with torch.enable_grad():
            ctx.run(scale)
        return torch.zeros_like(scale), None


def later(run: Callable[[Tensor], None], device: torch.device) -> Tensor:
    """A loss, of value 0, whose backward pass is `run` of what the loss is scaled by."""
    found: Tensor = _Backward.apply(torch.zeros((), device=device, requires_grad=True), run)
    return found
