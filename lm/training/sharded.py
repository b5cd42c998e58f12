"""A model shared out among processes: FSDP2 under Lightning, by the name `fsdp2`, and tensor parallelism."""

import contextlib
import os
import pickle
import zipfile
from collections.abc import Iterator
from enum import Enum, EnumType
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.load import _load_distributed_checkpoint
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from lm.config.tree import InputError
from lm.model.block import Block
from lm.store.files import is_intact, replace_checkpoint
from lm.training.adapter import gives_gradients
from lm.training.tensor_parallel import NAME as TENSOR_PARALLEL
from lm.training.tensor_parallel import parallelize

NAME = "fsdp2"

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


class ModelParallel(ModelParallelStrategy):
    """Processes share out the model: as FSDP2 every weight, gradient and optimiser state, in tensor parallelism layers.

    A checkpoint on the way is a folder, in which each process writes its own share.

    Args:
        data_parallel_size: processes, or groups of them, that share out the rows of a batch; `auto` is all that there
            are for the other.
        tensor_parallel_size: processes that share out the layers; `auto` is all of a machine.
    """

    def __init__(self, data_parallel_size: int | str = "auto", tensor_parallel_size: int | str = "auto") -> None:
        super().__init__(data_parallel_size, tensor_parallel_size)  # type: ignore[arg-type]

    def sizes(self) -> tuple[int, int]:
        """How many share out the rows, and how many the layers.

        Raises:
            InputError: where these are not as many as there are processes.
        """
        world, rows, layers = self.num_nodes * self.num_processes, self._data_parallel_size, self._tensor_parallel_size
        tensor = self.num_processes if layers == "auto" else int(layers)
        data = max(1, world // tensor) if rows == "auto" else int(rows)
        if data * tensor != world:
            raise InputError(
                f"trainer.strategy: {data} times {tensor} processes share out rows and layers, and there are {world}; "
                "expected trainer.devices times trainer.num_nodes to be their product"
            )
        return data, tensor

    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.sizes()
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


def register(name: str, what: str, **sizes: int | str) -> str:
    """Makes Lightning's trainer know `ModelParallel` with these sizes by a name; returns the name.

    An object in the place of a name would be refused float64.
    """
    StrategyRegistry.register(name, ModelParallel, description=what, override=True, **sizes)
    return name


register(NAME, "Fully sharded data parallel training, on any device", tensor_parallel_size=1)
register(TENSOR_PARALLEL, "Layers shared out among the devices of a machine, on any kind of them")


class Processes(NamedTuple):
    """How many processes of a run share out the rows of each batch, how many the layers of the model, and whether they
    share out the model at all."""

    rows: int
    layers: int
    model_is_shared: bool


def processes(trainer: Any) -> Processes:
    """The processes of a trainer, whether they run or not. Raises InputError where sizes do not fit."""
    if isinstance(trainer.strategy, ModelParallel):
        return Processes(*trainer.strategy.sizes(), True)
    return Processes(trainer.world_size, 1, False)


def shard(trainer: Any, model: nn.Module) -> None:
    """Shares out a model where the strategy asks for it, layer by layer and block by block; its first values stay what
    they are."""
    if not isinstance(trainer.strategy, ModelParallel):
        return
    data, tensor = trainer.strategy.sizes()
    if tensor > 1:
        parallelize(model, trainer.strategy.device_mesh["tensor_parallel"])
    if not shards(data, tensor):
        return
    mesh = trainer.strategy.device_mesh["data_parallel"]
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
            register_fsdp_forward_method(module, "with_memory")
    fully_shard(model, mesh=mesh)


def shards(data: int, tensor: int) -> bool:
    """Whether with these sizes every parameter is shared out, and not those of the layers alone."""
    return data > 1 or tensor == 1


def unsharded(trainer: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it a checkpoint is one file, whatever the strategy."""
    return trainer.strategy.whole() if isinstance(trainer.strategy, ModelParallel) else contextlib.nullcontext()


# what lies on disk ---------------------------------------------------------------------------------------------------


def whole(path: Path) -> bool:
    """Whether a checkpoint, a file or a folder, is what was written."""
    return _whole_folder(path) if path.is_dir() else is_intact(path)


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
        if (module, name) == ("builtins", "getattr"):
            return _member
        number = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not number and (module, name) not in DESCRIBES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint")
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> Enum:
    """What Python before 3.11.4 writes a member of an enumeration as, by `getattr`; of anything else it is refused."""
    if not isinstance(kind, EnumType) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"{name!r} of {kind!r} is no part of a checkpoint")
    found: Enum = kind[name]
    return found


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

    A cell may have begun with its weights shared out and go on without: the folder becomes one file. DeepSpeed, whose
    own checkpoints are not read, begins anew.
    """
    if not gives_gradients(trainer):
        return None
    if path.is_dir() and not isinstance(trainer.strategy, ModelParallel):
        one = path.with_name(ONE)
        consolidate(path, one)
        replace_checkpoint(one, path)
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
