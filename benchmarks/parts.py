"""The parts of a model and of its training, each forward and backward against another that does the same work.

Norms, position encodings, attention layers and MLPs are found by themselves, as configurations find them. Ways to
compute attention and the loss stand in ATTENTION and LOSSES: a new one is a line there.

Legend: b batch, h heads, t time, k head size, d width, n tokens, v vocabulary.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from benchmarks.asked import Asked
from benchmarks.calibration import calibration
from benchmarks.memory import added, in_child
from benchmarks.ratios import alternate, timed
from benchmarks.rows import Row, rows_of
from lm.config.choices import choices
from lm.inference.autotune import as_in_training
from lm.model.attention import Attention, Mask
from lm.model.attention_impl import ATTENTION_IMPLS, AttentionArgs, AttentionImpl
from lm.model.mlp import MLP
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.shape import Shape
from lm.training.objective import chunked_cross_entropy

Work = Callable[[], object]
"""One forward and backward pass."""

LOSS = "loss from the last hidden states"
"""The group of ways to compute it, a case of its own."""

ROUND = 0.05
"""Seconds that a way is repeated for in a round, at least."""


@dataclass(frozen=True)
class At:
    """What a part is tried on."""

    batch: int
    time: int
    width: int
    heads: int
    vocabulary: int = 8192

    @property
    def shape(self) -> Shape:
        """The sizes of a model with one layer at this point."""
        return Shape(self.vocabulary, self.time, self.width, self.heads, layers=1)

    def __str__(self) -> str:
        return f"{self.batch} x {self.time} tokens of width {self.width}"


QUICK = At(2, 16, 16, 2, 64)
SMALL, LARGE = At(16, 64, 64, 4), At(16, 256, 384, 6)
LONG = (At(64, 64, 384, 6), LARGE, At(4, 1024, 384, 6), At(2, 2048, 384, 6))
"""4,096 tokens a batch, of rows that grow longer."""


def both_ways(result: Callable[[], Tensor], wanted: list[Tensor]) -> Work:
    """Computes a result and its gradients in `wanted`."""
    slope = torch.randn_like(result())
    return lambda: torch.autograd.grad(result(), wanted, slope)


def _with_parameters(x: Tensor, *modules: torch.nn.Module) -> list[Tensor]:
    return [x, *dict.fromkeys(p for module in modules for p in module.parameters())]


# components ----------------------------------------------------------------------------------------------------------


def of_norm(cls: Any, at: At) -> Work:
    """A norm on the residual stream."""
    x_btd, norm = _stream(at), cls(at.shape)
    return both_ways(lambda: norm(x_btd), _with_parameters(x_btd, norm))


def of_mlp(cls: Any, at: At) -> Work:
    """An MLP on the residual stream."""
    x_btd, mlp = _stream(at), cls(at.shape)
    return both_ways(lambda: mlp(x_btd), _with_parameters(x_btd, mlp))


def of_position(cls: Any, at: At) -> Work:
    """An attention layer with an encoding: what it adds, turns, and what its bias costs the attention."""
    return _attention(choices(Attention)["MultiHead"](at.shape), cls(at.shape), at)


def of_attention(cls: Any, at: At) -> Work:
    """An attention layer without positions."""
    return _attention(cls(at.shape), choices(Position)["NoPosition"](at.shape), at)


def _attention(attention: Any, position: Any, at: At) -> Work:
    x_btd = _stream(at)

    def result() -> Tensor:
        mask = Mask(True, position.bias(at.time, at.time))
        mixed: Tensor = attention(position.embed(x_btd), position, mask)
        return mixed

    return both_ways(result, _with_parameters(x_btd, attention, position))


def _stream(at: At) -> Tensor:
    return torch.randn(at.batch, at.time, at.width, requires_grad=True)


# ways ----------------------------------------------------------------------------------------------------------------


def by(way: AttentionImpl) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Causal attention of several heads by one of the model's ways."""
    mix = ATTENTION_IMPLS[way]
    return lambda q_bhtk, k_bhtk, v_bhtk: mix(q_bhtk, k_bhtk, v_bhtk, AttentionArgs(1 / math.sqrt(q_bhtk.shape[-1])))


ATTENTION: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "SDPA": by("sdpa"),
    "plain products": by("plain"),
    "plain products, 128 queries at a time": by("blocked"),
}
"""Causal attention of several heads (b, h, t, k) by name; the first is what the others are compared with."""


def of_way(way: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype, at: At) -> Work:
    """A way to compute attention, without projections."""
    shape = at.batch, at.heads, at.time, at.width // at.heads
    qkv = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
    return both_ways(lambda: way(*qkv), list(qkv))


def whole(x_nd: Tensor, head_vd: Tensor, targets_n: Tensor) -> Tensor:
    """Cross-entropy of all logits at once."""
    return cross_entropy(x_nd @ head_vd.T, targets_n)


def chunked(x_nd: Tensor, head_vd: Tensor, targets_n: Tensor, rows: int = 512) -> Tensor:
    """Cross-entropy of so many rows of logits at a time, which are computed again for the backward pass."""

    def part(chunk_nd: Tensor, chunk_n: Tensor) -> Tensor:
        return cross_entropy(chunk_nd @ head_vd.T, chunk_n, reduction="sum")

    parts = zip(x_nd.split(rows), targets_n.split(rows), strict=True)
    sums = [checkpoint(part, chunk_nd, chunk_n, use_reentrant=False) for chunk_nd, chunk_n in parts]
    return torch.stack(sums).sum() / len(targets_n)


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "all at once": whole,
    "in parts, with their gradients": chunked_cross_entropy,
    "chunks of 512 rows, computed again": chunked,
}
"""From the last hidden states (n, d), the map to logits (v, d) and targets (n,) to the mean loss, by name."""

if hasattr(torch.nn, "LinearCrossEntropyOptions"):  # from torch 2.13 on
    LOSSES["torch's linear_cross_entropy, in chunks"] = functools.partial(
        torch.nn.functional.linear_cross_entropy, options=torch.nn.LinearCrossEntropyOptions()
    )


def of_loss(way: Callable[[Tensor, Tensor, Tensor], Tensor], at: At) -> Work:
    """A way to compute the loss from the last hidden states."""
    x_nd = torch.randn(at.batch * at.time, at.width, requires_grad=True)
    head_vd = torch.randn(at.vocabulary, at.width, requires_grad=True)
    targets_n = torch.randint(at.vocabulary, (len(x_nd),))
    return both_ways(lambda: way(x_nd, head_vd, targets_n), [x_nd, head_vd])


# groups --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Ways to do the same thing.

    Args:
        name: for the table.
        first: the way that the others are compared with.
        makers: of each way what makes its work.
        tried_on: sizes.
        told: how a size is called.
        weighed: whether the memory of each way is measured too, in a process of its own.
    """

    name: str
    first: str
    makers: Mapping[str, Callable[[At], Work]]
    tried_on: tuple[At, ...] = (SMALL, LARGE)
    told: Callable[[At], str] = str
    weighed: bool = False


def groups() -> Iterator[Group]:
    """All that is compared."""
    kinds: tuple[tuple[str, str, type, Callable[[Any, At], Work]], ...] = (
        ("norm", "LayerNorm", Norm, of_norm),
        ("MLP", "GELU", MLP, of_mlp),
        ("attention with positions", "NoPosition", Position, of_position),
        ("attention layer", "MultiHead", Attention, of_attention),
    )
    for name, first, base, make in kinds:
        found = {way: functools.partial(make, cls) for way, cls in choices(base).items()}
        yield Group(name, first, {first: found.pop(first), **found})
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        ways = {name: functools.partial(of_way, way, dtype) for name, way in ATTENTION.items()}
        yield Group(f"causal attention alone, {precision}", next(iter(ATTENTION)), ways, LONG, weighed=True)
    told = lambda at: f"{at} and a vocabulary of {at.vocabulary:,}"  # noqa: E731
    of_losses = {name: functools.partial(of_loss, way) for name, way in LOSSES.items()}
    larger = (SMALL, LARGE, *(replace(at, vocabulary=32768) for at in (SMALL, LARGE)))
    yield Group(LOSS, next(iter(LOSSES)), of_losses, larger, told, weighed=True)


def parts(asked: Asked) -> list[Row]:
    """Rows of every group but that of losses at its sizes, and calibration."""
    with _alike(asked):
        return compared([group for group in groups() if group.name != LOSS], asked) + calibration(asked)


def losses(asked: Asked) -> list[Row]:
    """Rows of the ways to compute the loss."""
    with _alike(asked):
        return compared([group for group in groups() if group.name == LOSS], asked)


@contextlib.contextmanager
def _alike(asked: Asked) -> Iterator[None]:
    """As many threads as are asked for, and the same numbers every time."""
    with as_in_training(asked.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def compared(those: Sequence[Group], asked: Asked) -> list[Row]:
    """Rows of groups at their sizes."""
    rows: list[Row] = []
    for group in those:
        for at in (QUICK,) if asked.quick else group.tried_on:
            made = {name: make(at) for name, make in group.makers.items()}
            ways = {name: timed(work, 1 if asked.quick else _times(work)) for name, work in made.items()}
            taken = alternate(ways, 2 if asked.quick else 7)
            rows += rows_of(f"{group.name}, {group.told(at)}", taken, group.first, more=_memory(group, at, asked))
    return rows


def _memory(group: Group, at: At, asked: Asked) -> dict[str, dict[str, float | None]]:
    """The MiB that each way adds, where that is asked of the group."""
    if asked.quick or not group.weighed:
        return {}
    sizes = list(vars(at).values())
    return {way: {"added_mib": in_child("part", group.name, way, sizes, asked.threads)} for way in group.makers}


def memory_here(group: str, way: str, sizes: list[int], threads: int) -> float:
    """MiB that one pass adds to this process, with what it reads; a small one has loaded what it needs before."""
    torch.set_num_threads(threads)
    make = next(one for one in groups() if one.name == group).makers[way]
    make(QUICK)()
    return added(lambda: make(At(*sizes))())


def _times(work: Work) -> int:
    """How often to repeat a pass so that a round takes ROUND."""
    work()
    once = timed(work)()
    return max(1, math.ceil(ROUND / max(once, 1e-9)))
