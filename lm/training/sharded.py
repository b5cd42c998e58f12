"""Weights, gradients and optimiser states shared out among processes: FSDP2 under Lightning, by the name `fsdp2`."""

import contextlib
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.load import _load_distributed_checkpoint
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from lm.config.tree import InputError
from lm.model.block import Block
from lm.store.disk import intact, put

NAME = "fsdp2"

FORKING = ("fork", "spawn", "notebook")
"""In the names of strategies that start their processes as copies of one that runs already."""

PRECISIONS = ("32-true", "64-true", "bf16-true", "bf16-mixed")
"""Those in which gradients need no scaling by a number that is sought on the way."""

REFUSED = {
    "deepspeed": "has settings of its own elsewhere and keeps gradients to itself, which a run measures",
    "fsdp": "flattens weights, which decay, are measured and are clipped by their shape",
}
"""Strategies of Lightning's, by how their names begin, and why."""

MARK = ".metadata"
"""What torch writes last into the folder of a sharded checkpoint, once all of it is there."""

DESCRIBES = frozenset(
    (
        *(("torch.distributed.checkpoint.metadata", name) for name in (
            "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
            "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
        )),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("pathlib", "PosixPath"),
    )
)  # fmt: skip
"""What the description of a sharded checkpoint is made of, besides torch's kinds of numbers."""

ONE = "one.ckpt"
"""A sharded checkpoint on its way to become one file."""


class FSDP2(ModelParallelStrategy):
    """Every process holds a share of each weight, of its gradient and of its optimiser state, over all devices.

    A checkpoint on the way is a folder, in which each process writes its own share.
    """

    strategy_name = NAME

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        with nothing_but_tensors(Path(checkpoint_path)):
            return super().load_checkpoint(checkpoint_path, weights_only)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Within it a checkpoint is one file, as one process writes it: the first gathers all shares."""
        self._save_distributed_checkpoint = False
        try:
            yield
        finally:
            self._save_distributed_checkpoint = True


StrategyRegistry.register(NAME, FSDP2, description="Fully sharded data parallel training, on any device")


def shard(trainer: Any, model: nn.Module) -> None:
    """Shares out a model block by block where the strategy asks for it; its first values stay what they are."""
    if not isinstance(trainer.strategy, FSDP2):
        return
    mesh = trainer.strategy.device_mesh["data_parallel"]
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
            register_fsdp_forward_method(module, "with_memory")
    fully_shard(model, mesh=mesh)


def unsharded(trainer: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it a checkpoint is one file, whatever the strategy."""
    return trainer.strategy.whole() if isinstance(trainer.strategy, FSDP2) else contextlib.nullcontext()


def check_sharded(settings: Any) -> None:
    """Refuses strategies under which a run computes something else, and settings that FSDP2 does not carry out.

    Raises:
        InputError: with what to take instead.
    """
    strategy, precision = str(settings["strategy"]), settings["precision"] or "32-true"
    for name, reason in REFUSED.items():
        if strategy.startswith(name) and strategy != NAME:
            raise InputError(f"trainer.strategy: {strategy!r} {reason}; expected another, such as ddp or {NAME}")
    if strategy != NAME:
        return
    if precision not in PRECISIONS:
        raise InputError(
            f"trainer.precision: {precision!r} is nothing that strategy {NAME} carries out; "
            f"expected one of {', '.join(PRECISIONS)}"
        )
    if settings["sync_batchnorm"]:
        raise InputError(f"trainer.sync_batchnorm: strategy {NAME} does not carry it out; expected strategy ddp")


def check_strategy(settings: Any) -> None:
    """Refuses strategies that fork, as a cell has a process of its own with threads and its forks would hang, and cells
    of several machines, of which nobody starts the others."""
    strategy = str(settings["strategy"])
    if any(word in strategy for word in FORKING):
        raise InputError(
            f"trainer.strategy: {strategy!r} forks its processes, which works in `lm fit` alone; use 'ddp' here"
        )
    if settings["num_nodes"] > 1:
        raise InputError(
            f"trainer.num_nodes: {settings['num_nodes']} machines train one cell in `lm fit` alone, which torchrun or "
            "srun starts on each; expected 1"
        )


def check_shapes(model: nn.Module) -> None:
    """Refuses parameters that cannot be shared out. Raises InputError."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise InputError(
                f"trainer.strategy: {NAME} shares out parameters by their rows, and {name} is a single number; "
                "expected strategy ddp, or a model without it"
            )


# what lies on disk ---------------------------------------------------------------------------------------------------


def whole(path: Path) -> bool:
    """Whether a checkpoint, a file or a folder, is what was written."""
    return _whole_folder(path) if path.is_dir() else intact(path)


def _whole_folder(path: Path) -> bool:
    """Whether a sharded checkpoint was written to its end, and says no more than where tensors lie."""
    try:
        with zipfile.ZipFile(path / "meta.pt") as parts:
            sound = parts.testzip() is None
        found = described(path)
    except Exception:  # whatever the bytes of a damaged file bring about
        return False
    ends: dict[str, int] = {}
    for place in (found.storage_data or {}).values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    sizes = {name: (path / name).stat().st_size if (path / name).is_file() else -1 for name in ends}
    return sound and all(sizes[name] >= end for name, end in ends.items())


class _Described(pickle.Unpickler):
    """Reads what torch writes of a checkpoint's tensors, and refuses whatever else a file could make of it."""

    def find_class(self, module: str, name: str) -> Any:
        number = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not number and (module, name) not in DESCRIBES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint")
        return super().find_class(module, name)


def described(path: Path) -> Metadata:
    """What a sharded checkpoint says of its tensors.

    Raises:
        pickle.UnpicklingError: where it says anything else.
    """
    with open(path / MARK, "rb") as file:
        found = _Described(file).load()
    if not isinstance(found, Metadata):
        raise pickle.UnpicklingError(f"expected the description of a checkpoint, found {type(found).__name__}")
    return found


@contextlib.contextmanager
def nothing_but_tensors(path: Path) -> Iterator[None]:
    """Within it torch loads a checkpoint, of which nothing but tensors and plain values is taken."""
    if path.is_dir():
        described(path)
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch reads a shard's plain values as whole pickles otherwise
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def for_strategy(trainer: Any, path: Path) -> Path | None:
    """The checkpoint at `path` as the trainer's strategy can take it up; None where there is none.

    A cell may have begun with its weights shared out and go on without: the folder becomes one file.
    """
    if path.is_dir() and not isinstance(trainer.strategy, FSDP2):
        one = path.with_name(ONE)
        consolidate(path, one)
        put(one, path)
    return path if path.exists() else None


def consolidate(folder: Path, file: Path) -> None:
    """Writes a sharded checkpoint as one file, such as one process leaves, which nothing but tensors is read from."""
    with nothing_but_tensors(folder):
        found = _load_distributed_checkpoint(folder)
    states = [found.pop(name) for name in sorted(name for name in found if name.startswith("optimizer_"))]
    torch.save({**found, "optimizer_states": [_numbered(state) for state in states]}, file)


def _numbered(state: dict[str, Any]) -> dict[str, Any]:
    """An optimiser's state with its parameters by number, in the order of its groups, which have them by name."""
    names = [name for group in state["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "state": {numbers[name]: found for name, found in state["state"].items()},
        "param_groups": [
            {**group, "params": [numbers[name] for name in group["params"]]} for group in state["param_groups"]
        ],
    }
