"""The cross-entropy over a vocabulary without all logits in memory.

Rows are taken a few at a time: their logits, their loss and the gradients of both factors of the logits are computed in
the forward pass, and only these gradients are kept.

Legend: n tokens, r some of them, d width, v vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lm.data import IGNORED
from lm.model.fused_linear import autocasting

PART = 2**22
"""Logits in memory at a time."""


def chunked_cross_entropy(
    x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Tensor:
    """What `lm.training.objective.CrossEntropy` makes of the logits x W^T, a scalar in nats a token.

    Under autocast products are taken in its precision, sums over the vocabulary in float32 at least.

    Args:
        x_nd: what the map to logits reads.
        weight_vd: its matrix; it has no offset.
        targets_n: of which those that are IGNORED count for nothing.
        label_smoothing: a.
        z_loss: z.
    """
    kind = x_nd.device.type
    dtype = torch.get_autocast_dtype(kind) if autocasting(kind) else x_nd.dtype
    found: Tensor = _Chunked.apply(x_nd, weight_vd, targets_n, label_smoothing, z_loss, dtype)
    return found


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, a: float, z: float, dtype: Any) -> Tensor:
        vocabulary = len(weight_vd)
        exact = torch.promote_types(dtype, torch.float32)
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        grad_nd = torch.empty_like(x_nd) if wants_x else None
        sums = torch.promote_types(weight_vd.dtype, exact)
        grad_vd = torch.zeros_like(weight_vd, dtype=sums) if wants_weight else None
        kept_n = targets_n != IGNORED
        count = kept_n.sum().clamp(min=1)
        total = torch.zeros((), dtype=exact, device=x_nd.device)
        with torch.autocast(x_nd.device.type, enabled=False):
            cast_vd = weight_vd.to(dtype)
            for rows in torch.arange(len(x_nd)).split(max(1, PART // vocabulary)):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                cast_rd, kept_r1 = x_nd[part].to(dtype), kept_n[part, None]
                place_r1 = targets_n[part, None].clamp(min=0)
                logits_rv = (cast_rd @ cast_vd.t()).to(exact)
                target_r1 = logits_rv.gather(1, place_r1)
                mean_r1 = logits_rv.mean(-1, keepdim=True) if a else 0.0
                largest_r1 = logits_rv.amax(-1, keepdim=True)
                weight_rv = logits_rv.sub_(largest_r1).exp_()  # in the place of the logits
                sum_r1 = weight_rv.sum(-1, keepdim=True)
                normalizer_r1 = sum_r1.log() + largest_r1
                loss_r1 = normalizer_r1 - (1 - a) * target_r1 - a * mean_r1 + z * normalizer_r1.square()
                total += torch.where(kept_r1, loss_r1, 0.0).sum()
                if grad_nd is None and grad_vd is None:
                    continue
                share_r1 = kept_r1.to(exact) / count
                slope_rv = weight_rv.mul_((1 + 2 * z * normalizer_r1) / sum_r1 * share_r1)
                if a:
                    slope_rv.sub_(share_r1 * (a / vocabulary))
                slope_rv.scatter_add_(1, place_r1, (a - 1) * share_r1)
                cast_rv = slope_rv.to(dtype)
                if grad_nd is not None:
                    grad_nd[part] = cast_rv @ cast_vd
                if grad_vd is None:
                    continue
                if grad_vd.dtype == dtype:
                    grad_vd.addmm_(cast_rv.t(), cast_rd)
                else:
                    grad_vd += cast_rv.t() @ cast_rd
        ctx.save_for_backward(*(x for x in (grad_nd, grad_vd) if x is not None))
        ctx.kinds = grad_nd is not None, grad_vd is not None, weight_vd.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        has_x, has_weight, dtype = ctx.kinds
        saved = list(ctx.saved_tensors)
        grad_nd = saved.pop(0) * slope if has_x else None
        grad_vd = (saved.pop(0) * slope).to(dtype) if has_weight else None
        return grad_nd, grad_vd, None, None, None, None
