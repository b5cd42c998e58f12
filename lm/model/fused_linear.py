"""Several linear layers of one input as one matrix product. Legend: ... any sizes, i inputs, o outputs."""

import torch
from torch import Tensor, nn

MIN_ROWS_TO_FUSE = 32  # rows of the input below which joining the weights takes longer than it saves


def fused_linear(x: Tensor, *layers: nn.Linear) -> Tensor:
    """Apply several linear layers to x (..., i) in one product; returns (..., sum of o), side by side.

    They are called one by one where they would not gain, or where something else watches or replaces one.
    """
    if (
        not should_fuse(x)
        or x.numel() < MIN_ROWS_TO_FUSE * x.shape[-1]
        or not all(map(is_plain_linear, layers))
        or len({layer.bias is None for layer in layers}) > 1
    ):
        return torch.cat([layer(x) for layer in layers], dim=-1)
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return nn.functional.linear(x, torch.cat([layer.weight for layer in layers]), bias)


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
