"""Weights that training starts from: those of a finished run, by `trainer.init_from`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lm.analysis.runs import find_one
from lm.config.components import blame
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, prefix_errors
from lm.data.tokens import TextStats
from lm.model.transformer import load_weights
from lm.store.store import Store
from lm.store.validation import validate_checkpoint

PATH = "trainer.init_from"
RESULTS = Path("results")  # where a run given by name or id is looked up
KEYS = {"folder", "weights"}


def resolve_source(value: Any, facts: TextStats, model: nn.Module) -> Tree:
    """Return `{folder, weights}` of a finished run, given as a folder, a name or an id under `results`, or resolved.

    `weights` is a hash of the weights, which identifies them. Raises InputError unless they are weights of `model`.
    """
    if isinstance(value, str):
        is_folder = (Path(value) / "record.json").is_file()
        with prefix_errors(PATH):
            folder = Path(value).resolve() if is_folder else Store(RESULTS).directory(find_one(value, RESULTS).cell)
    elif isinstance(value, Mapping) and value.keys() == KEYS:
        folder = Path(value["folder"])
    else:
        raise InputError(f"{PATH}: expected the folder, name or id of a finished run, found {shown(value)}")
    record = Store(folder.parent.parent).record(folder.name)
    if record["status"] != "ok":
        raise InputError(f"{PATH}: {folder}: this run {record['status']}; expected a finished one")
    if record["data"]["tokenizer"] != facts.tokenizer:
        raise InputError(f"{PATH}: {folder}: was trained with another tokenizer; its token ids mean other text")
    path = folder / "last.ckpt"
    if not path.is_file():
        raise InputError(f"{PATH}: {path}: no such file; this run's model was not kept")
    if problem := validate_checkpoint(record, path):
        raise InputError(f"{PATH}: {path}: {problem}")
    weights = _read(folder)
    if problem := compare_weights(model, weights):
        raise InputError(f"{PATH}: {folder} holds weights of another model: {problem}")
    source = {"folder": str(folder), "weights": hash_weights(weights)}
    if isinstance(value, Mapping) and source["weights"] != value["weights"]:
        raise InputError(f"{PATH}: {folder}: holds other weights than this run was planned with; plan it anew")
    return source


def _read(folder: Path) -> dict[str, Tensor]:
    with blame(f"{PATH}: {folder}"):
        return load_weights(folder / "last.ckpt")


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of names, types, shapes and values, the same for equal weights in any checkpoint."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def compare_weights(model: nn.Module, stored: Mapping[str, Tensor]) -> str:
    """Return the first name or shape by which weights are not those of a model; an empty text if there is none."""
    own = model.state_dict()
    for name in dict.fromkeys((*own, *stored)):
        if name not in stored or name not in own:
            return f"it has no {name}" if name not in stored else f"this model has no {name}"
        if stored[name].shape != own[name].shape:
            shapes = [" x ".join(map(str, weights[name].shape)) for weights in (stored, own)]
            return f"its {name} has shape {shapes[0]}, expected {shapes[1]}"
    return ""


def load_source(model: nn.Module, source: Any) -> None:
    """Give a model the weights of a source. Raises InputError if they are not those that the run was planned with."""
    weights = _read(Path(source["folder"]))
    if hash_weights(weights) != source["weights"]:
        raise InputError(f"{PATH}: {source['folder']}: its weights have changed since this run was planned")
    model.load_state_dict(weights)
