"""Several linear layers of one input as one matrix product. Legend: ... any sizes, i inputs, o outputs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MIN_ROWS_TO_FUSE = 32  # rows of the input below which joining the weights takes longer than it saves
TENSOR_CORES = ("cuda",)
TENSOR_CORE_MULTIPLE = 8  # of sizes in half precision, for other ones of which CUDA takes slower products


def fused_linear(x: Tensor, *layers: nn.Linear, padding: int = 0) -> Tensor:
    """Apply several linear layers to x (..., i) in one product; returns (..., sum of o), side by side.

    They are called one by one where they would not gain, or where something else watches or replaces one. Otherwise
    each may give `padding` zeros more.
    """
    if not can_fuse(x, layers):
        return torch.cat([layer(x) for layer in layers], dim=-1)
    bias = None if layers[0].bias is None else torch.cat([pad(layer.bias, padding) for layer in layers])
    return nn.functional.linear(x, torch.cat([pad(layer.weight, padding) for layer in layers]), bias)


def pad(x: Tensor, rows: int) -> Tensor:
    """Append rows of zeros, if any."""
    return torch.cat([x, x.new_zeros(rows, *x.shape[1:])]) if rows else x


def padded_linear(x: Tensor, layer: nn.Linear, padding: int) -> Tensor:
    """Apply a linear layer to x (..., i + padding), whose last inputs are zeros."""
    return nn.functional.linear(x, pad(layer.weight.t(), padding).t(), layer.bias) if padding else layer(x)


def zeros_to_add(x: Tensor, layers: Sequence[nn.Linear], after: nn.Linear) -> int:
    """Return by how many zeros the outputs of layers fused over x are to grow for fast products with them and after."""
    if x.device.type not in TENSOR_CORES or not is_plain_linear(after) or not can_fuse(x, layers):
        return 0
    return -layers[0].out_features % TENSOR_CORE_MULTIPLE


def can_fuse(x: Tensor, layers: Sequence[nn.Linear]) -> bool:
    """Return True if one product for all layers takes less time and gives the same."""
    return (
        should_fuse(x)
        and x.numel() >= MIN_ROWS_TO_FUSE * x.shape[-1]
        and all(map(is_plain_linear, layers))
        and len({layer.bias is None for layer in layers}) == 1
    )


def should_fuse(x: Tensor) -> bool:
    """Return True under autocast and in compiled code; plain float32 keeps its order of summation, bit for bit."""
    return torch.compiler.is_compiling() or autocasting(x.device.type)  # torch 2.11 cannot compile the second question


def autocasting(device: str) -> bool:
    """Return True if products on a kind of device run under autocast; some kinds, such as meta, have none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def is_plain_linear(module: nn.Linear) -> bool:
    """Return True if calling the module does nothing but its product."""
    return (
        type(module).forward is nn.Linear.forward
        and type(module.weight) in (nn.Parameter, Tensor)
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        and not module._backward_pre_hooks
        and "parametrizations" not in module._modules
    )
