"""The weights of a model in a checkpoint."""

from pathlib import Path

import torch
from torch import Tensor


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """The model's tensors by name, of a checkpoint in one file; nothing but tensors is loaded."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
