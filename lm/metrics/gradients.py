"""Norms of gradients before clipping, of weights and of updates: of everything, by block and by kind of matrix.

Legend: p parameters, g groups, each the parameters of one kind in one part of the model.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from lm.model.attention import Attention
from lm.model.mlp import MLP
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.transformer import Embedding

KINDS: tuple[tuple[type[nn.Module], str, str], ...] = (
    (Attention, "query", "query"),
    (Attention, "key", "key"),
    (Attention, "value", "value"),
    (Attention, "output", "attention_output"),
    (MLP, "up", "mlp_in"),
    (MLP, "gate", "mlp_in"),
    (MLP, "down", "mlp_out"),
    (Embedding, "tokens", "embedding"),
    (Embedding, "head", "head"),
)
"""Where the matrices of each kind are: the module, and its attribute."""

KIND_NAMES = frozenset(kind for *_, kind in KINDS) | {"norm", "position", "bias", "other"}
"""Of all kinds."""


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a value that a sharding strategy may hold as a DTensor; a plain tensor is returned as it is."""
    whole = getattr(tensor, "full_tensor", None)
    return tensor if whole is None else whole()


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The 2-norm of all gradients together, a scalar tensor; zero where there are none."""
    return _joint_norm([p.grad for p in parameters if p.grad is not None], 2.0)


def largest_gradient(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The largest absolute entry of all gradients, a scalar tensor; zero where there are none."""
    return _joint_norm([p.grad for p in parameters if p.grad is not None], torch.inf)


def _joint_norm(gradients: Sequence[Tensor], order: float) -> Tensor:
    """The norm of all gradients together; those that are held in different ways, whole or in shares, one after the
    other."""
    held: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        held.setdefault((getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None)), []).append(
            gradient
        )
    norms = [full_tensor(get_total_norm(alike, order, foreach=None)) for alike in held.values()]
    if len(norms) < 2:
        return norms[0] if norms else torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(norms), order)


def clip_by_norm(parameters: Sequence[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scales all gradients so that their norm, found to be `norm`, is `limit` at most."""
    clip_grads_with_norm_(_local_shards(parameters), limit, norm)


def clip_by_value(parameters: Sequence[nn.Parameter], limit: float) -> None:
    """Cuts every entry of the gradients to `limit` at most in size."""
    clip_grad_value_(_local_shards(parameters), limit)


def _local_shards(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters, or in the place of one that is shared out what this process holds of its gradient."""
    found = []
    for parameter in parameters:
        mine = getattr(parameter.grad, "to_local", None)
        if mine is not None:
            share = mine()
            parameter = nn.Parameter(share, requires_grad=False)
            parameter.grad = share
        found.append(parameter)
    return found


def parameters_by_part(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The trainable parameters of each child of `model`; the members of a ModuleList each count as a part of their own.

    A parameter that two parts share belongs to the first.
    """
    parts: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList):
            parts |= {f"{name}.{index}": member for index, member in enumerate(child)}
        else:
            parts[name] = child
    seen: set[nn.Parameter] = set()
    found: dict[str, list[nn.Parameter]] = {}
    for name, part in parts.items():
        own = [p for p in part.parameters() if p.requires_grad and p not in seen]
        seen.update(own)
        if own:
            found[name] = own
    return found


def parameter_kinds(model: nn.Module) -> dict[nn.Parameter, str]:
    """What each parameter is: a kind of matrix, `norm` (a gain), `position`, `bias` (any other vector) or `other`."""
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
    """The parameters of a model by part and kind, and norms over them.

    Args:
        model: whose trainable parameters are grouped.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds, names = parameter_kinds(model), dict[tuple[str, str], int]()
        self.parameters: list[nn.Parameter] = []
        places: list[int] = []
        for part, members in parameters_by_part(model).items():
            for parameter in members:
                self.parameters.append(parameter)
                places.append(names.setdefault((part, kinds[parameter]), len(names)))
        self.names = list(names)
        self.places_p = torch.tensor(places)

    def squared_norms(self, tensors_p: Sequence[Tensor | None]) -> Tensor:
        """Sums of squares over each group, float64 of shape (g,), of one tensor a parameter; None counts as zero."""
        present = [index for index, tensor in enumerate(tensors_p) if tensor is not None]
        given = [tensor.detach() for tensor in tensors_p if tensor is not None]
        if not given:
            return torch.zeros(len(self.names), dtype=torch.float64)
        norms_p = torch.stack(_norms(given)).double()
        sums_g = norms_p.new_zeros(len(self.names))
        return sums_g.index_add_(0, self.places_p[present].to(norms_p.device), norms_p.square())

    def gradients(self) -> Tensor:
        """Sums of squared gradients, (g,)."""
        return self.squared_norms([p.grad for p in self.parameters])

    def weights(self) -> Tensor:
        """Sums of squared weights, (g,)."""
        return self.squared_norms(self.parameters)

    def copied(self) -> list[Tensor]:
        """The weights as they are now."""
        return [p.detach().clone() for p in self.parameters]

    def updates(self, before: Sequence[Tensor]) -> Tensor:
        """Sums of squared changes since `before`, (g,)."""
        return self.squared_norms([p.detach() - old for p, old in zip(self.parameters, before, strict=True)])

    def summed(self, squares_g: Tensor) -> dict[str, float]:
        """Norms from sums of squares: by part `blocks.0`, kind `query`, and both `blocks.0.query`.

        A part that is called as a kind is, `embedding` with its head for one, is told from it as `embedding.all`.
        """
        sums: dict[str, float] = {}
        for (part, kind), square in zip(self.names, squares_g.tolist(), strict=True):
            for name in (f"{part}.all" if part in KIND_NAMES else part, kind, f"{part}.{kind}"):
                sums[name] = sums.get(name, 0.0) + square
        return {name: square**0.5 for name, square in sums.items()}

    def by_layer(self, squares_g: Tensor) -> dict[str, list[float]]:
        """Norms by kind, one for each part that holds it, in the order of the model."""
        norms: dict[str, list[float]] = {}
        for (_, kind), square in zip(self.names, squares_g.tolist(), strict=True):
            norms.setdefault(kind, []).append(square**0.5)
        return norms


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """The 2-norm of each tensor, in float32 at least: all in one kernel where they are plain tensors."""
    exact = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    if any(hasattr(tensor, "full_tensor") for tensor in tensors):
        return [full_tensor(torch.linalg.vector_norm(tensor, dtype=exact)) for tensor in tensors]
    return list(torch._foreach_norm(tensors, 2, exact))


# noise ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientNoise:
    """Unbiased estimates from gradients of pieces of a batch; either may come out negative.

    Args:
        trace: the trace of the covariance of one token's gradient.
        signal: the squared norm of the true gradient.
    """

    trace: float
    signal: float


def estimate_noise(small: float, big: float, small_tokens: float, big_tokens: float) -> GradientNoise:
    """From the mean squared gradient norm of pieces of `small_tokens` tokens and that of all `big_tokens` together.

    >>> estimate_noise(small=5.0, big=2.0, small_tokens=8, big_tokens=32)
    GradientNoise(trace=32.0, signal=1.0)
    """
    signal = (big_tokens * big - small_tokens * small) / (big_tokens - small_tokens)
    trace = (small - big) / (1 / small_tokens - 1 / big_tokens)
    return GradientNoise(trace, signal)


def measure_noise(
    parameters: Sequence[nn.Parameter], losses: Sequence[Callable[[], Tensor]], tokens: Sequence[int]
) -> GradientNoise:
    """Estimates from the gradients of the mean losses of disjoint pieces, of about equal numbers of tokens.

    No `.grad` is touched, and hooks on gradients, such as those of DistributedDataParallel, do not run.
    """
    whole_p = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
    small, everything = 0.0, float(sum(tokens))
    for loss, count in zip(losses, tokens, strict=True):
        gradients_p = torch.autograd.grad(loss(), list(parameters), allow_unused=True)
        given = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients_p if g is not None]
        small += float(sum(g.square().sum().double() for g in given)) / len(losses)
        for total, gradient in zip(whole_p, gradients_p, strict=True):
            if gradient is not None:
                total.add_(gradient, alpha=count / everything)
    big = float(sum(total.square().sum().double() for total in whole_p))
    return estimate_noise(small, big, everything / len(losses), everything)
