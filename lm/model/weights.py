"""The weights of a model in a checkpoint."""

from pathlib import Path

import torch
from torch import Tensor

from lm.store.files import is_intact


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """The model's tensors by name, of a checkpoint in one file; nothing but tensors is loaded.

    Raises:
        ValueError: where the file is not what was written. Torch itself reads changed bytes as other weights.
    """
    if not is_intact(checkpoint):
        raise ValueError(
            "is damaged: its bytes are not those that were written; delete the cell, and it is trained again"
        )
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
