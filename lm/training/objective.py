"""Training objectives, and the cross-entropy over a large vocabulary without all logits in memory.

Legend: n tokens, r some of them, d width, v vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lm.config.tree import nearest
from lm.data import IGNORED as IGNORED
from lm.model.fused_linear import autocasting

CPU_LOGITS = 2**24  # 64 MiB, and twice that for their gradient
CUDA_BYTES = 64  # of a device for each logit: all that a plain loss makes of the logits then takes a third of it


def max_logits(device: torch.device) -> int:
    """Return the number of logits from which on a loss is computed in chunks, of a quarter of them."""
    if device.type != "cuda":
        return CPU_LOGITS
    return int(torch.cuda.get_device_properties(device).total_memory // CUDA_BYTES)


class Objective(ABC):
    """The loss that training minimises; evaluation always uses the plain negative log-likelihood.

    `extra` holds the weights of the extra losses that parts of the model have, by name.
    """

    extra: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def loss(self, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        """Return the loss, a scalar in nats a token."""

    def of_product(self, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, softcap: float | None = None) -> Tensor:
        """Return `loss` of the logits x W^T, bounded by a soft-cap; a subclass may compute them in chunks."""
        logits_nv = nn.functional.linear(x_nd, weight_vd)
        return self.loss(logits_nv if softcap is None else softcap * (logits_nv / softcap).tanh(), targets_n)


class CrossEntropy(Objective):
    """Mean cross-entropy against (1 - a) onehot + a / v, plus z mean(log(sum(exp(logits)))^2).

    Label smoothing a: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567. The second term, the z-loss, keeps logits
    near log-probabilities: Chowdhery et al. 2022, section 5, https://arxiv.org/abs/2204.02311, with z = 1e-4. Means
    are over the targets that are not IGNORED, and 0 where there is none.

    Args:
        label_smoothing: a.
        z_loss: z.
        extra: weights of extra losses of the model's parts by name; by default those that the parts declare.
    """

    ADDED = ("extra",)

    def __init__(
        self, label_smoothing: float = 0.0, z_loss: float = 0.0, extra: dict[str, float] | None = None
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} must lie in [0, 1)")
        if not (z_loss >= 0 and math.isfinite(z_loss)):
            raise ValueError(f"z_loss={z_loss} must be a finite number, 0 or more; the PaLM paper has 1e-4")
        for name, weight in (extra or {}).items():
            if not math.isfinite(weight):
                raise ValueError(f"extra.{name}={weight} must be a finite number")
        self.label_smoothing, self.z_loss, self.extra = label_smoothing, z_loss, extra or {}

    def loss(self, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        """Return the mean loss of logits (n, v) over targets that count."""
        is_target_n = targets_n != IGNORED
        mean = nn.functional.cross_entropy(
            logits_nv, targets_n, ignore_index=IGNORED, label_smoothing=self.label_smoothing
        )
        mean = torch.where(is_target_n.any(), mean, 0.0)  # the mean of no tokens is NaN; asking in Python would wait
        if not self.z_loss:
            return mean
        exact_nv = logits_nv.float() if logits_nv.dtype in (torch.float16, torch.bfloat16) else logits_nv
        squared_n = exact_nv.logsumexp(-1).square()
        return mean + self.z_loss * (torch.where(is_target_n, squared_n, 0.0).sum() / is_target_n.sum().clamp(min=1))

    def of_product(self, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, softcap: float | None = None) -> Tensor:
        """Return the loss of the logits x @ weight.T without having all of them at once."""
        return chunked_cross_entropy(x_nd, weight_vd, targets_n, self.label_smoothing, self.z_loss, softcap)


def take_extra_losses(modules: Iterable[nn.Module], weights: Mapping[str, float]) -> dict[str, tuple[Tensor, float]]:
    """Return the extra losses of the last forward pass with their weights by name, and remove them from the parts.

    A part sets `extra_losses` (name to scalar, a mean over tokens) in each forward pass of training, and may declare
    default weights in `extra_weights`. The losses of parts that share a name are averaged. Raises ValueError for a loss
    without a weight.
    """
    values, defaults = dict[str, list[Tensor]](), dict[str, float]()
    for module in modules:
        if losses := vars(module).get("extra_losses"):
            for name, loss in losses.items():
                values.setdefault(name, []).append(loss)
            defaults |= getattr(module, "extra_weights", {})
            vars(module)["extra_losses"] = {}
    defaults |= weights
    if missing := [name for name in values if name not in defaults]:
        raise ValueError(f"extra.{missing[0]}: the model has this loss; give its weight, or 0 to record it alone")
    return {name: (torch.stack(losses).mean(), defaults[name]) for name, losses in sorted(values.items())}


def require_extra_losses(weights: Mapping[str, float], present: Mapping[str, object]) -> None:
    """Raise ValueError for a weight of an extra loss that no part of the model has."""
    for name in weights:
        if name not in present:
            listed = f"expected {', '.join(present)}" if present else "it has none"
            raise ValueError(f"extra.{name}: no part of the model has this loss; {listed}.{nearest(name, [*present])}")


def chunked_cross_entropy(
    x_nd: Tensor,
    weight_vd: Tensor,
    targets_n: Tensor,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Return `CrossEntropy` of the logits x W^T, a scalar in nats a token, computed in chunks of rows.

    The forward pass computes the logits of a chunk, their loss and the gradients of both factors, and keeps only these
    gradients. Under autocast products are taken in its precision, sums over the vocabulary in float32 at least.
    """
    kind = x_nd.device.type
    dtype = torch.get_autocast_dtype(kind) if autocasting(kind) else x_nd.dtype
    loss: Tensor = _Chunked.apply(x_nd, weight_vd, targets_n, label_smoothing, z_loss, softcap, dtype)
    return loss


def add_at(x_rv: Tensor, index_r1: Tensor, value_r1: Tensor, by_mask: bool) -> None:
    """Add a value to one entry of each row, in place; by a mask where scattering would sort to repeat its numbers."""
    if by_mask:
        x_rv += torch.where(torch.arange(x_rv.shape[1], device=x_rv.device) == index_r1, value_r1, 0.0)
    else:
        x_rv.scatter_add_(1, index_r1, value_r1)


class _Chunked(torch.autograd.Function):
    """The chunked cross-entropy, with its gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, a: float, z: float, cap: float | None, dtype: Any
    ) -> Tensor:
        vocabulary = len(weight_vd)
        exact = torch.promote_types(dtype, torch.float32)
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad_nd = torch.empty_like(x_nd) if needs_x else None
        sums = torch.promote_types(weight_vd.dtype, exact)
        grad_vd = torch.zeros_like(weight_vd, dtype=sums) if needs_weight else None
        is_target_n = targets_n != IGNORED
        count = is_target_n.sum().clamp(min=1)
        total = torch.zeros((), dtype=exact, device=x_nd.device)
        # float16 has no numbers as small as slopes of a mean over many tokens: it is taken with the scale of the loss
        divisor = torch.ones_like(count) if dtype == torch.float16 else count
        with torch.autocast(x_nd.device.type, enabled=False):
            cast_vd = weight_vd.to(dtype)
            for rows in torch.arange(len(x_nd)).split(max(1, max_logits(x_nd.device) // 4 // vocabulary)):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                cast_rd, is_target_r1 = x_nd[part].to(dtype), is_target_n[part, None]
                index_r1 = targets_n[part, None].clamp(min=0)
                logits_rv = (cast_rd @ cast_vd.t()).to(exact)
                if cap is not None:
                    bounded_rv = logits_rv.div_(cap).tanh_()
                    logits_rv = cap * bounded_rv
                target_r1 = logits_rv.gather(1, index_r1)
                mean_r1 = logits_rv.mean(-1, keepdim=True) if a else 0.0
                largest_r1 = logits_rv.amax(-1, keepdim=True)
                weight_rv = logits_rv.sub_(largest_r1).exp_()  # in the place of the logits
                sum_r1 = weight_rv.sum(-1, keepdim=True)
                normalizer_r1 = sum_r1.log() + largest_r1
                loss_r1 = normalizer_r1 - (1 - a) * target_r1 - a * mean_r1 + z * normalizer_r1.square()
                total += torch.where(is_target_r1, loss_r1, 0.0).sum()
                if grad_nd is None and grad_vd is None:
                    continue
                share_r1 = is_target_r1.to(exact) / divisor
                slope_rv = weight_rv.mul_((1 + 2 * z * normalizer_r1) / sum_r1 * share_r1)
                if a:
                    slope_rv.sub_(share_r1 * (a / vocabulary))
                add_at(slope_rv, index_r1, (a - 1) * share_r1, by_mask=slope_rv.is_cuda)
                if cap is not None:
                    slope_rv.mul_(1 - bounded_rv.square())
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
        ctx.share = divisor / count
        ctx.kinds = grad_nd is not None, grad_vd is not None, weight_vd.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        has_x, has_weight, dtype = ctx.kinds
        saved, slope = list(ctx.saved_tensors), slope * ctx.share
        grad_nd = saved.pop(0) * slope if has_x else None
        grad_vd = (saved.pop(0) * slope).to(dtype) if has_weight else None
        return grad_nd, grad_vd, None, None, None, None, None
