"""What goes on inside a model on a fixed batch: entropy and size of attention, the residual stream, dead units.

Legend: b batch, h heads, g key-value heads, q queries, s keys, t time, d width, f hidden width, l layers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from lm.analysis.health import COLLAPSED
from lm.data import IGNORED
from lm.data.batch import Batch
from lm.metrics.gradients import full_tensor
from lm.model.attention import Mask, SoftmaxAttention
from lm.model.attention_impl import attention_weights, causal_bias
from lm.model.block import Block, ResidualConnection
from lm.model.mlp import MLP, ReGLU, ReLU
from lm.model.position import Position

MAX_LOGIT = 1e4
"""Attention scores past this size come before divergence (Wortsman et al. 2023, https://arxiv.org/abs/2309.14322)."""

ROWS = 8


@dataclass
class ProbeResult:
    """What was seen, layer by layer in the order in which they ran.

    Args:
        entropy: mean entropy of the attention rows over ln n, n the keys a row may see; by layer and head, (l, h).
        largest_logit: the largest scaled score before the softmax, by layer and head, (l, h).
        first_share: mean attention on the first key, over the rows that see others too, (l, h).
        residual_norm: mean 2-norm of the residual stream after each block.
        block_share: of each block the mean 2-norm of what its sublayers change in the stream, over that of the stream
            as it would be after the block if they gave zero.
        dead_share: share of the hidden units of each ReLU layer that are zero on every token.
    """

    entropy: list[list[float]] = field(default_factory=list)
    largest_logit: list[list[float]] = field(default_factory=list)
    first_share: list[list[float]] = field(default_factory=list)
    residual_norm: list[float] = field(default_factory=list)
    block_share: list[float] = field(default_factory=list)
    dead_share: list[float] = field(default_factory=list)

    def measured(self) -> dict[str, Any]:
        """The parts that the model has, by name."""
        return {name: value for name, value in asdict(self).items() if value}

    def headline(self) -> dict[str, float]:
        """One number each: the means, but the largest logit of all and the residual stream at the end."""
        found: dict[str, float] = {}
        if self.entropy:
            found["attention_entropy"] = _mean(self.entropy)
            found["attention_logit"] = max(map(max, self.largest_logit))
            found["attention_first"] = _mean(self.first_share)
        if self.residual_norm:
            found["residual_norm"] = self.residual_norm[-1]
        if self.dead_share:
            found["dead_share"] = sum(self.dead_share) / len(self.dead_share)
        return found

    def of_heads(self, among: Callable[[Tensor], Tensor]) -> "ProbeResult":
        """The same with what was seen of each head taken through `among`, (3, l, h) -> (3, l, h)."""
        if not self.entropy:
            return self
        of_each = among(torch.tensor([self.entropy, self.largest_logit, self.first_share], dtype=torch.float64))
        entropy, largest_logit, first_share = of_each.tolist()
        return replace(self, entropy=entropy, largest_logit=largest_logit, first_share=first_share)

    def flags(self) -> list[str]:
        """What looks like a collapse, in words."""
        found = []
        for layer, entropies in enumerate(self.entropy, start=1):
            if max(entropies) < COLLAPSED:
                found.append(
                    f"attention of layer {layer} of {len(self.entropy)} collapsed: entropy of every head at most "
                    f"{max(entropies):z.3f} ln n, under {COLLAPSED}"
                )
        for layer, logits in enumerate(self.largest_logit, start=1):
            if not max(logits) <= MAX_LOGIT:
                where = f"layer {layer} of {len(self.largest_logit)}"
                found.append(f"attention logit of {where} at {max(logits):z.3g}, over {MAX_LOGIT:z.0e}")
        return found


def _mean(rows: list[list[float]]) -> float:
    return sum(map(sum, rows)) / sum(map(len, rows))


def first_rows(batch: Batch, rows: int = ROWS) -> Batch:
    """The first rows of a batch."""
    return Batch(tuple(x[:rows] for x in batch.inputs), batch.targets_bt[:rows], batch.rows_b[:rows])


@torch.no_grad()
def probe(model: nn.Module, batch: Batch) -> ProbeResult:
    """Runs the model once on `batch`, in evaluation mode, and looks inside. The model is left as it was."""
    inside, training = ProbeResult(), model.training
    model.eval()
    try:
        with _observed(model, inside, batch.targets_bt != IGNORED):
            model(*batch.inputs)
    finally:
        model.train(training)
    return inside


@contextmanager
def _observed(model: nn.Module, inside: ProbeResult, kept_bt: Tensor) -> Iterator[None]:
    """Hooks that fill `inside`. Hidden units count on the tokens that are predicted, `kept_bt`."""

    def attention(module: SoftmaxAttention, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        for name, value in zip(
            ("entropy", "largest_logit", "first_share"), measure_attention_rows(module, *given[:4]), strict=True
        ):
            getattr(inside, name).append(value.tolist())

    def residual(module: nn.Module, given: tuple[Any, ...], x_btd: Tensor) -> None:
        inside.residual_norm.append(float(x_btd.double().norm(dim=-1).mean()))

    def share(block: Block) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        without_btd: Tensor | None = None

        def arrangement(module: nn.Module, given: tuple[Any, ...], x_btd: Tensor) -> None:
            nonlocal without_btd
            before_btd = given[0] if without_btd is None else without_btd
            without_btd = module.forward(before_btd, torch.zeros_like)  # not called, which would come back here
            if module is block.mlp_residual:
                inside.block_share.append(block_share(x_btd, without_btd))
                without_btd = None

        return arrangement

    def hidden(module: nn.Module, given: tuple[Any, ...]) -> None:
        x_btf = full_tensor(given[0])
        kept = kept_bt if kept_bt.shape == x_btf.shape[:2] else torch.ones_like(x_btf[..., 0], dtype=torch.bool)
        inside.dead_share.append(float((x_btf[kept] == 0).all(dim=0).float().mean()))

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, SoftmaxAttention):
                stack.callback(module.register_forward_pre_hook(attention, with_kwargs=True).remove)
            elif isinstance(module, Block):
                stack.callback(module.mlp_residual.register_forward_hook(residual).remove)
                follow = share(module)
                for part in module.children() if has_standard_forward(module) else ():
                    if isinstance(part, ResidualConnection):
                        stack.callback(part.register_forward_hook(follow).remove)
            elif isinstance(module, MLP) and isinstance(module, (ReLU, ReGLU)):
                stack.callback(module.down.register_forward_pre_hook(hidden).remove)
        yield


def has_standard_forward(block: Block) -> bool:
    """Says whether a block calls its arrangements with the stream and a sublayer alone, as those of this package do."""
    return (
        type(block).forward is Block.forward
        and type(block).forward_with_cross_attention is Block.forward_with_cross_attention
    )


def block_share(after_btd: Tensor, without_btd: Tensor) -> float:
    """Computes the share of a block in the residual stream: 0 for a block that leaves the stream as it is.

    Args:
        after_btd: the stream after the block.
        without_btd: the stream after the same block if its sublayers gave zero; after post-LN it is still normalised.
    """
    after_btd, without_btd = after_btd.double(), without_btd.double()
    return float((after_btd - without_btd).norm(dim=-1).mean() / without_btd.norm(dim=-1).mean())


def measure_attention_rows(
    attention: SoftmaxAttention, x_bqd: Tensor, position: Position, mask: Mask, memory_bsd: Tensor | None = None
) -> Sequence[Tensor]:
    """Entropy over ln n, largest score, and share of the first key of a layer's attention rows, each (h,).

    Rows that see one key have neither entropy nor choice and are left out, unless there are no others.
    """
    q_bhqk, k_bgsk, _ = attention.projected(x_bqd, position, memory_bsd)
    queries, keys = q_bhqk.shape[2], k_bgsk.shape[2]
    bias = mask.additive(queries, keys, attention.window, q_bhqk)
    if bias is None and mask.causal:
        bias = causal_bias(queries, keys, q_bhqk)
    exact = torch.promote_types(q_bhqk.dtype, torch.float32)
    q_bhqk, k_bhsk = q_bhqk.to(exact), k_bgsk.repeat_interleave(attention.groups, dim=1).to(exact)
    seen_bhqs = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q_bhqk.device)
    if bias is not None:
        bias = bias.to(exact)
        seen_bhqs = (bias > -math.inf).expand(*(1,) * (4 - bias.ndim), *bias.shape)
    scores_bhqs = (attention.scale * q_bhqk @ k_bhsk.transpose(-1, -2)).masked_fill(~seen_bhqs, -math.inf)
    weights_bhqs = attention_weights(q_bhqk, k_bhsk, attention.scale, bias, attention.softcap)
    seen_bhq = seen_bhqs.sum(-1).expand(weights_bhqs.shape[:3])
    chosen_bhq = (seen_bhq > 1).double()
    entropy_bhq = torch.special.entr(weights_bhqs.double()).sum(-1) / seen_bhq.clamp(min=2).double().log()
    count_h = chosen_bhq.sum((0, 2)).clamp(min=1)
    return (
        (entropy_bhq * chosen_bhq).sum((0, 2)) / count_h,
        scores_bhqs.amax((0, 2, 3)),
        (weights_bhqs[..., 0] * chosen_bhq).sum((0, 2)) / count_h,
    )
