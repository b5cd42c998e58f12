"""Norms of gradients before clipping, of weights and of updates, and the gradient noise scale.

Norms are of everything, by block and by kind of matrix. The noise scale is the batch size above which more rows hardly
improve a step: McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, appendix A.1.

Legend: p parameters, g groups, each the parameters of one kind in one part of the model.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from lm.model.attention import Attention
from lm.model.mlp import MLP
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.transformer import Embedding

# matrices of each kind: the module, and its attribute
KINDS: tuple[tuple[type[nn.Module], str, str], ...] = (
    *((Attention, name, name) for name in ("query", "key", "value")),
    (Attention, "output", "attention_output"),
    *((MLP, name, "mlp_in") for name in ("up", "gate")),
    (MLP, "down", "mlp_out"),
    (Embedding, "tokens", "embedding"),
    (Embedding, "head", "head"),
)
KIND_NAMES = frozenset(kind for *_, kind in KINDS) | {"norm", "position", "bias", "other"}  # names of all kinds


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a value that a sharding strategy holds as a DTensor; a plain tensor is returned as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def gradient_norm(parameters: Iterable[nn.Parameter], order: float = 2.0) -> Tensor:
    """Compute a norm of all gradients together, of order infinity the largest absolute entry; zero without any."""
    by_layout: dict[Any, list[Tensor]] = {}  # of DTensors
    for gradient in [p.grad for p in parameters if p.grad is not None]:
        layout = getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None)
        by_layout.setdefault(layout, []).append(gradient)
    norms = [full_tensor(get_total_norm(same_layout, order, foreach=None)) for same_layout in by_layout.values()]
    if len(norms) < 2:
        return norms[0] if norms else torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(norms), order)


def clip_by_norm(parameters: Sequence[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scale all gradients, whose norm is `norm`, so that their norm is at most `limit`."""
    clip_grads_with_norm_(_local_shards(parameters), limit, norm)


def clip_by_value(parameters: Sequence[nn.Parameter], limit: float) -> None:
    """Clip every entry of the gradients to at most `limit` in size."""
    clip_grad_value_(_local_shards(parameters), limit)


def _local_shards(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Replace each sharded parameter by this process's shard of its gradient."""
    shards = []
    for parameter in parameters:
        to_local = getattr(parameter.grad, "to_local", None)
        if to_local is not None:
            share = to_local()
            parameter = nn.Parameter(share, requires_grad=False)
            parameter.grad = share
        shards.append(parameter)
    return shards


def parameters_by_part(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group trainable parameters by child, or member of a ModuleList; a shared one belongs to the first part.

    A parameter of the model itself is a part of its own.
    """
    lists = {name for name, child in model.named_children() if isinstance(child, nn.ModuleList)}
    by_part: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():  # each once
        first, *rest = name.split(".")
        if parameter.requires_grad:
            by_part.setdefault(f"{first}.{rest[0]}" if first in lists else first, []).append(parameter)
    return by_part


def parameter_kinds(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return the kind of each parameter: one of a matrix, `norm` (a gain), `position`, `bias` (a vector) or `other`."""
    kinds: dict[nn.Parameter, str] = {}
    for module in model.modules():
        for cls, attribute, kind in KINDS:
            matrix = getattr(getattr(module, attribute, None), "weight", None) if isinstance(module, cls) else None
            if isinstance(matrix, nn.Parameter):
                kinds.setdefault(matrix, kind)  # a tied head is the embedding
        gain = getattr(module, "weight", None)
        if isinstance(module, (Norm, nn.RMSNorm, nn.LayerNorm, nn.BatchNorm1d)) and isinstance(gain, nn.Parameter):
            kinds.setdefault(gain, "norm")
        if isinstance(module, Position):
            kinds |= dict.fromkeys(module.parameters(), "position")
    for parameter in model.parameters():
        kinds.setdefault(parameter, "bias" if parameter.ndim < 2 else "other")
    return kinds


class ParameterGroups:
    """The trainable parameters of a model by part and kind, and norms over them."""

    def __init__(self, model: nn.Module) -> None:
        kinds, names = parameter_kinds(model), dict[tuple[str, str], int]()
        self.parameters: list[nn.Parameter] = []
        groups: list[int] = []
        for part, members in parameters_by_part(model).items():
            for parameter in members:
                self.parameters.append(parameter)
                groups.append(names.setdefault((part, kinds[parameter]), len(names)))
        self.names = list(names)
        self.group_p = torch.tensor(groups)

    def squared_norms(self, tensors_p: Sequence[Tensor | None]) -> Tensor:
        """Sum the squares in each group, float64 of shape (g,), of one tensor per parameter; None is zero."""
        present = [index for index, tensor in enumerate(tensors_p) if tensor is not None]
        tensors = [tensor.detach() for tensor in tensors_p if tensor is not None]
        if not tensors:
            return torch.zeros(len(self.names), dtype=torch.float64)
        exact = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
        if any(hasattr(tensor, "full_tensor") for tensor in tensors):
            norms = [full_tensor(torch.linalg.vector_norm(tensor, dtype=exact)) for tensor in tensors]
        else:  # in one kernel
            norms = list(torch._foreach_norm(tensors, 2, exact))
        norms_p = torch.stack(norms).double()
        sums_g = norms_p.new_zeros(len(self.names))
        return sums_g.index_add_(0, self.group_p[present].to(norms_p.device), norms_p.square())

    def gradients(self) -> Tensor:
        """Sum squared gradients, (g,)."""
        return self.squared_norms([p.grad for p in self.parameters])

    def weights(self) -> Tensor:
        """Sum squared weights, (g,)."""
        return self.squared_norms(self.parameters)

    def updates(self, before: Sequence[Tensor]) -> Tensor:
        """Sum squared changes since `before`, (g,)."""
        return self.squared_norms([p.detach() - old for p, old in zip(self.parameters, before, strict=True)])

    def summed(self, squares_g: Tensor) -> dict[str, float]:
        """Compute norms by part `blocks.0`, kind `query`, and both; a part named as a kind gets `.all`."""
        sums: dict[str, float] = {}
        for (part, kind), square in zip(self.names, squares_g.tolist(), strict=True):
            for name in (f"{part}.all" if part in KIND_NAMES else part, kind, f"{part}.{kind}"):
                sums[name] = sums.get(name, 0.0) + square
        return {name: square**0.5 for name, square in sums.items()}

    def by_layer(self, squares_g: Tensor) -> dict[str, list[float]]:
        """Return norms by kind, one for each part that holds it, in the order of the model."""
        norms: dict[str, list[float]] = {}
        for (_, kind), square in zip(self.names, squares_g.tolist(), strict=True):
            norms.setdefault(kind, []).append(square**0.5)
        return norms


def estimate_noise(small: float, big: float, small_tokens: float, big_tokens: float) -> tuple[float, float]:
    """Estimate from the mean squared gradient norms of pieces of `small_tokens` and of all `big_tokens` tokens.

    Returns the trace of the covariance of one token's gradient and the squared norm of the true gradient, both without
    bias, so that either may be negative.

    >>> estimate_noise(small=5.0, big=2.0, small_tokens=8, big_tokens=32)
    (32.0, 1.0)
    """
    signal = (big_tokens * big - small_tokens * small) / (big_tokens - small_tokens)
    trace = (small - big) / (1 / small_tokens - 1 / big_tokens)
    return trace, signal


def measure_noise(
    parameters: Sequence[nn.Parameter], losses: Sequence[Callable[[], Tensor]], tokens: Sequence[int]
) -> tuple[float, float]:
    """Estimate noise from gradients of the mean losses of disjoint pieces; no `.grad` is touched, no hook runs."""
    whole_p = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
    small, all_tokens = 0.0, float(sum(tokens))
    for loss, count in zip(losses, tokens, strict=True):
        gradients_p = torch.autograd.grad(loss(), list(parameters), allow_unused=True)
        gradients = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients_p if g is not None]
        small += float(sum(g.square().sum().double() for g in gradients)) / len(losses)
        for total, gradient in zip(whole_p, gradients_p, strict=True):
            if gradient is not None:
                total.add_(gradient, alpha=count / all_tokens)
    big = float(sum(total.square().sum().double() for total in whole_p))
    # The noise of a piece falls with its tokens, so that of pieces of several sizes has their harmonic mean.
    return estimate_noise(small, big, statistics.harmonic_mean(tokens), all_tokens)
