"""What is private in Lightning, torch and torchmetrics, or likely to move: an upgrade of theirs touches this file."""

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Batch = TypeVar("Batch")


def to_device(trainer: Any, batch: Batch) -> Batch:
    """Move a batch to the trainer's device and into its precision."""
    moved: Batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
    return moved


def has_full_parameters(trainer: Any) -> bool:
    """Return True if each process holds all weights, so that gradients can be taken outside the strategy."""
    return isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy))


class InPlace(TorchCheckpointIO):
    """Writes a checkpoint directly into its folder, which must exist.

    A missing folder is a cell taken over. Lightning writes through the folder for temporary files, perhaps a small one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint into its file directly."""
        content = io.BytesIO()  # a full disk is then an OSError, not one of torch's writer
        torch.save(checkpoint, content)
        with open(path, "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())


def data_group(trainer: Any) -> Any:
    """Return the group of processes that divide each batch; None for all processes."""
    return None if tensor_parallel_size(trainer) == 1 else trainer.strategy.device_mesh["data_parallel"].get_group()


def tensor_parallel_size(trainer: Any) -> int:
    """Return the number of processes that divide the layers of a model; 1 without tensor parallelism."""
    strategy = trainer.strategy
    return strategy.device_mesh["tensor_parallel"].size() if isinstance(strategy, ModelParallelStrategy) else 1


def reduce_over_processes(trainer: Any, values: Tensor, how: Literal["mean", "sum", "max"]) -> Tensor:
    """Reduce values over all processes that divide batches; `mean` changes its argument in place."""
    reduced: Tensor = trainer.strategy.reduce(values, group=data_group(trainer), reduce_op=how)
    return reduced


def broadcast_from_rank0(trainer: Any, answer: bool) -> bool:
    """Return the first process's answer in all processes."""
    return bool(trainer.strategy.broadcast(answer))


def rank() -> int:
    """Return the number of this process among those of a cell, from 0; the first keeps the store."""
    return int(getattr(rank_zero_only, "rank", 0) or 0)


@contextlib.contextmanager
def on_processes_launched(callback: Callable[[Any], None]) -> Iterator[None]:
    """Pass the processes that Lightning launches to a callback; its own observer kills this one with them."""
    launcher: Any = subprocess_script
    before, launcher._launch_process_observer = launcher._launch_process_observer, callback
    try:
        yield
    finally:
        launcher._launch_process_observer = before


def runs_compiled(module: nn.Module) -> bool:
    """Return True if a call of the module runs the code that `module.compile` made."""
    return module._compiled_call_impl is not None


def uncompile(module: nn.Module) -> None:
    """Undo `module.compile`."""
    module._compiled_call_impl = None


def uses_batch_statistics(module: nn.Module) -> bool:
    """Return True if the output for a row depends on the other rows of its batch."""
    return isinstance(module, _BatchNorm)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence messages and warnings of Lightning whose content is in the record."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
