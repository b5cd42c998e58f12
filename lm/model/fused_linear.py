"""Several linear maps of one input as one matrix product. Legend: ... any sizes, i inputs, o outputs."""

import torch
from torch import Tensor, nn

MIN_ROWS_TO_FUSE = 32


def fused_linear(x: Tensor, *maps: nn.Linear) -> Tensor:
    """What `maps` make of x (..., i), side by side, (..., sum of o), by one product where nothing stands in the way.

    The parameters stay those of the maps, with their names, initial values and gradients; sums may be taken in another
    order, so that results are equal up to rounding. Maps that something else watches or replaces, by a hook, a subclass
    with a `forward` of its own or a parametrisation, are called one by one; so are all where there are few rows, since
    joining the maps takes as long as reading them.
    """
    if (
        not should_fuse(x)
        or x.numel() < MIN_ROWS_TO_FUSE * x.shape[-1]
        or not all(map(is_plain_linear, maps))
        or len({one.bias is None for one in maps}) > 1
    ):
        return torch.cat([one(x) for one in maps], dim=-1)
    bias = None if maps[0].bias is None else torch.cat([one.bias for one in maps])
    return nn.functional.linear(x, torch.cat([one.weight for one in maps]), bias)


def should_fuse(x: Tensor) -> bool:
    """Whether maps of x are joined: where it pays, under autocast and in compiled code.

    Plain float32 keeps to the sums that were always taken, bit for bit: at a high rate, four hundred steps make of a
    last digit a difference that a table shows.
    """
    return autocasting(x.device.type) or torch.compiler.is_compiling()


def autocasting(device: str) -> bool:
    """Whether products on a kind of device are taken under autocast; some kinds, such as meta, know none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def is_plain_linear(module: nn.Linear) -> bool:
    """Whether calling the module is nothing but its product."""
    return (
        type(module).forward is nn.Linear.forward
        and type(module.weight) in (nn.Parameter, Tensor)
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        and not module._backward_pre_hooks
        and "parametrizations" not in module._modules
    )
