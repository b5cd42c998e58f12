"""Measurements inside a model on a fixed batch: entropy and size of attention, residual stream, dead units.

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
from lm.model.block import Block, BlockLayout
from lm.model.experts import token_shares
from lm.model.mlp import ReGLU, ReLU, SquaredReLU
from lm.model.position import Position

# attention scores above this size precede divergence (Wortsman et al. 2023, https://arxiv.org/abs/2309.14322)
MAX_LOGIT = 1e4
# scores up to which a layer of attention is measured whole; of more, as many rows at a time as have so many
SCORES_MAX, SCORES_AT_ONCE = 2**27, 2**24


@dataclass
class ProbeResult:
    """Measurements of each layer, in the order in which they ran."""

    # mean entropy of the attention rows over ln n, n the keys a row may see; by layer and head, (l, h)
    entropy: list[list[float]] = field(default_factory=list)
    # the largest scaled score before the softmax, by layer and head, (l, h)
    largest_logit: list[list[float]] = field(default_factory=list)
    # mean attention on the first key, over the rows that see others too, (l, h)
    first_share: list[list[float]] = field(default_factory=list)
    residual_norm: list[float] = field(default_factory=list)  # mean 2-norm of the residual stream after each block
    # of each block the mean 2-norm of its sublayers' change of the stream, over that of the stream as it would
    # be after the block if they gave zero
    block_share: list[float] = field(default_factory=list)
    # share of the hidden units of each ReLU layer that are zero on every token
    dead_share: list[float] = field(default_factory=list)

    def measured(self) -> dict[str, Any]:
        """Return the parts that the model has, by name."""
        return {name: value for name, value in asdict(self).items() if value}

    def headline(self) -> dict[str, float]:
        """Return one number each: the means, but the largest logit of all and the residual stream at the end."""
        means: dict[str, float] = {}
        if self.entropy:
            heads = sum(map(len, self.entropy))
            means["attention_entropy"] = sum(map(sum, self.entropy)) / heads
            means["attention_logit"] = max(map(max, self.largest_logit))
            means["attention_first"] = sum(map(sum, self.first_share)) / heads
        if self.residual_norm:
            means["residual_norm"] = self.residual_norm[-1]
        if self.dead_share:
            means["dead_share"] = sum(self.dead_share) / len(self.dead_share)
        return means

    def of_heads(self, combine: Callable[[Tensor], Tensor]) -> "ProbeResult":
        """Return a copy whose values of heads are passed through `combine`, (3, l, h) -> (3, l, h)."""
        if not self.entropy:
            return self
        combined = combine(torch.tensor([self.entropy, self.largest_logit, self.first_share], dtype=torch.float64))
        entropy, largest_logit, first_share = combined.tolist()
        return replace(self, entropy=entropy, largest_logit=largest_logit, first_share=first_share)

    def flags(self) -> list[str]:
        """Describe what looks like a collapse."""
        flags = []
        for layer, entropies in enumerate(self.entropy, start=1):
            if max(entropies) < COLLAPSED:
                highest = f"entropy of every head at most {max(entropies):z.3f} ln n, under {COLLAPSED}"
                flags.append(f"attention of layer {layer} of {len(self.entropy)} collapsed: {highest}")
        for layer, logits in enumerate(self.largest_logit, start=1):
            if not max(logits) <= MAX_LOGIT:
                where = f"layer {layer} of {len(self.largest_logit)}"
                flags.append(f"attention logit of {where} at {max(logits):z.3g}, over {MAX_LOGIT:z.0e}")
        return flags


def first_rows(batch: Batch, rows: int = 8, start: int = 0) -> Batch:
    """Return the first rows of a batch from `start` on."""
    part = slice(start, start + rows)
    return Batch(tuple(x[part] for x in batch.inputs), batch.targets_bt[part], batch.rows_b[part])


@torch.no_grad()
def probe(model: nn.Module, batch: Batch) -> ProbeResult:
    """Run the model once on `batch`, in evaluation mode, and measure inside; the model is left as it was."""
    result, training = ProbeResult(), model.training
    model.eval()
    try:
        with _observed(model, result, batch.targets_bt != IGNORED):
            model(*batch.inputs)
    finally:
        model.train(training)
    return result


@contextmanager
def _observed(model: nn.Module, result: ProbeResult, counted_bt: Tensor) -> Iterator[None]:
    """Register hooks that fill `result`. Hidden units count on the tokens that are predicted, `counted_bt`."""

    def attention(module: SoftmaxAttention, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for name, value in zip(
            ("entropy", "largest_logit", "first_share"), measure_attention_rows(module, *inputs[:4]), strict=True
        ):
            getattr(result, name).append(value.tolist())

    def residual(module: nn.Module, inputs: tuple[Any, ...], x_btd: Tensor) -> None:
        result.residual_norm.append(float(x_btd.double().norm(dim=-1).mean()))

    def share_hook(last: nn.Module) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        without_btd: Tensor | None = None

        def joined(module: nn.Module, inputs: tuple[Any, ...], x_btd: Tensor) -> None:
            nonlocal without_btd
            before_btd = inputs[0] if without_btd is None else without_btd
            # not called, which would come back here
            without_btd = module.forward(before_btd, *(torch.zeros_like for _ in inputs[1:]))
            if module is last:
                result.block_share.append(block_share(x_btd, without_btd))
                without_btd = None

        return joined

    def hidden(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x_btf = full_tensor(inputs[0])
        x_nf = x_btf[counted_bt] if counted_bt.shape == x_btf.shape[:2] else x_btf.flatten(0, 1)
        result.dead_share.append(float((x_nf == 0).all(dim=0).float().mean()))

    experts = token_shares(model)  # a unit of one that few tokens pass need not be dead
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, SoftmaxAttention):
                stack.callback(module.register_forward_pre_hook(attention, with_kwargs=True).remove)
            elif isinstance(module, Block):
                stack.callback(module.register_forward_hook(residual).remove)
                layouts = [part for part in module.children() if isinstance(part, BlockLayout)]
                if type(module).forward is Block.forward:
                    hook = share_hook(layouts[-1])
                    for part in layouts:
                        stack.callback(part.register_forward_hook(hook).remove)
            elif isinstance(module, (ReLU, ReGLU, SquaredReLU)) and module not in experts:
                stack.callback(module.down.register_forward_pre_hook(hidden).remove)
        yield


def block_share(after_btd: Tensor, without_btd: Tensor) -> float:
    """Compute a block's share in the stream after it; `without_btd` is the stream if its sublayers gave zero."""
    after_btd, without_btd = after_btd.double(), without_btd.double()
    return float((after_btd - without_btd).norm(dim=-1).mean() / without_btd.norm(dim=-1).mean())


def measure_attention_rows(
    attention: SoftmaxAttention, x_bqd: Tensor, position: Position, mask: Mask, memory_bsd: Tensor | None = None
) -> Sequence[Tensor]:
    """Return entropy over ln n, largest score, share of the first key, each (h,), of rows that see several keys.

    A sink's share is left out of the weights, which then sum to less than 1, and its logit out of the scores.
    """
    q_bhqk, k_bgsk, _ = attention.projected(x_bqd, position, memory_bsd)
    queries, keys = q_bhqk.shape[2], k_bgsk.shape[2]
    bias = mask.additive(queries, keys, attention.window, q_bhqk)
    if bias is None and mask.causal:
        bias = causal_bias(queries, keys, q_bhqk)
    dtype = torch.promote_types(q_bhqk.dtype, torch.float32)
    q_bhqk, k_bhsk = q_bhqk.to(dtype), k_bgsk.repeat_interleave(attention.groups, dim=1).to(dtype)
    visible_bhqs = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q_bhqk.device)
    if bias is not None:
        bias = bias.to(dtype)
        visible_bhqs = (bias > -math.inf).expand(*(1,) * (4 - bias.ndim), *bias.shape)

    def measure(rows: slice) -> tuple[Tensor, ...]:
        """Return entropy over ln n, whether it counts, each head's largest score and the share of the first key."""
        some_bhqk, seen_bhqs = q_bhqk[:, :, rows], visible_bhqs[:, :, rows]
        added = None if bias is None else bias[..., rows, :]
        scores_bhqs = (attention.scale * some_bhqk @ k_bhsk.transpose(-1, -2)).masked_fill(~seen_bhqs, -math.inf)
        weights_bhqs = attention_weights(some_bhqk, k_bhsk, attention.scale, added, attention.softcap, attention.sinks)
        visible_bhq = seen_bhqs.sum(-1).expand(weights_bhqs.shape[:3])
        entropy_bhq = torch.special.entr(weights_bhqs.double()).sum(-1) / visible_bhq.clamp(min=2).double().log()
        return entropy_bhq, (visible_bhq > 1).double(), scores_bhqs.amax((0, 2, 3)), weights_bhqs[..., 0].double()

    scores_of_row = q_bhqk.shape[0] * q_bhqk.shape[1] * keys
    at_once = queries if scores_of_row * queries <= SCORES_MAX else max(1, SCORES_AT_ONCE // scores_of_row)
    measured = zip(*(measure(slice(start, start + at_once)) for start in range(0, queries, at_once)), strict=True)
    entropies, counted, largest, first = map(list, measured)
    entropy_bhq, counted_bhq, first_bhq = torch.cat(entropies, 2), torch.cat(counted, 2), torch.cat(first, 2)
    count_h = counted_bhq.sum((0, 2)).clamp(min=1)
    return (
        (entropy_bhq * counted_bhq).sum((0, 2)) / count_h,
        torch.stack(largest).amax(0),
        (first_bhq * counted_bhq).sum((0, 2)) / count_h,
    )
