"""Norms of gradients, before clipping."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def local(tensor: Tensor) -> Tensor:
    """The whole of a value that a sharding strategy may hold as a DTensor; a plain tensor is returned as it is."""
    whole = getattr(tensor, "full_tensor", None)
    return tensor if whole is None else whole()


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The 2-norm of all gradients together, a scalar tensor; zero where there are none."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return local(get_total_norm(gradients, foreach=None)) if gradients else torch.zeros(())


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
