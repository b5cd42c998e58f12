"""Code compiled for the blocks of a model: made once, and run by all layers and by later cells of the same shape."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn

from lm.config.plain import clipped
from lm.model.block import Block
from lm.model.transformer import Decoder, Model
from lm.training.adapter import runs_compiled, uncompile

LONGEST_REASON = 300

_in_memory = ""
"""The shape whose code this process holds; code of other shapes would count against the compiler's limit."""


def compile_blocks(model: Model, shape: str, try_out: Callable[[], object]) -> str | None:
    """Has the blocks of a model compiled, in place; the names of its parameters stay.

    What cannot be compiled stays as it is written: the same numbers up to rounding, at another cost.

    Args:
        model: on its device, in its precision.
        shape: what cells with the same code have in common.
        try_out: a step on the model that changes nothing, which has the code made.

    Returns:
        In one line why the blocks are not compiled, None where they are.
    """
    global _in_memory
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not isinstance(model, Decoder):
        return f"not compiled: {type(model).__name__} sees batches of many shapes, each of which would take a minute"
    if _in_memory != shape:
        torch.compiler.reset()
        _in_memory = shape
    for block in blocks:
        block.compile(dynamic=False)  # which leaves the names of its parameters alone
    try:
        try_out()
    except Exception as error:  # whatever a compiler, a user's part or a missing header may raise
        for block in blocks:
            uncompile(block)
        _in_memory = ""
        first = (str(error).strip() or "no reason given").splitlines()[0]
        return clipped(f"not compiled: {type(error).__name__}: {first}", LONGEST_REASON)
    return None


def as_written(model: nn.Module) -> AbstractContextManager[object]:
    """Within it nothing compiled runs: hooks are called, and batches may have any shape."""
    compiled = any(isinstance(module, Block) and runs_compiled(module) for module in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


@contextlib.contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Puts back what a pass through the model changes: its buffers, and the random state of the processor."""
    before = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
