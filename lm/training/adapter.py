"""What is private in Lightning, torch and torchmetrics, or likely to move: an upgrade of theirs touches this file.

Legend: b rows, t positions.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities import GradClipAlgorithmType, rank_zero_only
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Batch = TypeVar("Batch")


# precision and place -------------------------------------------------------------------------------------------------


def placed(trainer: Any, batch: Batch) -> Batch:
    """A batch on the trainer's device and in its precision."""
    found: Batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
    return found


def evaluating(trainer: Any) -> contextlib.AbstractContextManager[Any]:
    """The context of a validation step: autocast, where the precision asks for it."""
    found: contextlib.AbstractContextManager[Any] = trainer.precision_plugin.val_step_context()
    return found


def stepping(trainer: Any) -> contextlib.AbstractContextManager[Any]:
    """The context of a training step."""
    found: contextlib.AbstractContextManager[Any] = trainer.precision_plugin.train_step_context()
    return found


def convert(trainer: Any, module: nn.Module) -> None:
    """Puts the weights of a module into the trainer's precision."""
    trainer.precision_plugin.convert_module(module)


def device_of(trainer: Any) -> torch.device:
    """The device of this process."""
    found: torch.device = trainer.strategy.root_device
    return found


def is_whole(trainer: Any) -> bool:
    """Whether each process holds all weights, which can be differentiated apart from their strategy."""
    return isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy)) and gives_gradients(trainer)


def gives_gradients(trainer: Any) -> bool:
    """Whether gradients and optimiser state can be had from outside of the strategy, which DeepSpeed's cannot."""
    return not isinstance(trainer.strategy, DeepSpeedStrategy)


class InPlace(TorchCheckpointIO):
    """Writes a checkpoint's file where it is asked for, into a folder that is there.

    A folder that has gone meanwhile was taken away, as the cell is another's now. Lightning's own way leads through the
    folder for temporary files, where a kill leaves the file for good, and which may be smaller than the weights.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        whole = io.BytesIO()  # a full disk is then an OSError, not one of torch's writer
        torch.save(checkpoint, whole)
        Path(path).write_bytes(whole.getbuffer())


def save_in_place(trainer: Any) -> None:
    """Has checkpoints written by `InPlace`, where the strategy does not write them itself, in parts."""
    if is_whole(trainer):
        trainer.strategy.checkpoint_io = InPlace()


# processes -----------------------------------------------------------------------------------------------------------


def data_group(trainer: Any) -> Any:
    """The processes that share out each batch with this one; None where they are all."""
    return None if among(trainer) == 1 else trainer.strategy.device_mesh["data_parallel"].get_group()


def among(trainer: Any) -> int:
    """How many processes share out the layers of a model: 1 but under tensor parallelism."""
    strategy = trainer.strategy
    return strategy.device_mesh["tensor_parallel"].size() if isinstance(strategy, ModelParallelStrategy) else 1


def over_processes(trainer: Any, values: Tensor, how: Literal["mean", "sum", "max"]) -> Tensor:
    """Numbers of all processes that share out batches made one; `mean` changes its argument in place."""
    found: Tensor = trainer.strategy.reduce(values, group=data_group(trainer), reduce_op=how)
    return found


def of_all_heads(trainer: Any, values: Tensor) -> Tensor:
    """What each of the processes that share out the layers of a model has of its heads, (..., h), side by side."""
    group = trainer.strategy.device_mesh["tensor_parallel"].get_group()
    everywhere: Tensor = trainer.strategy.all_gather(values.to(device_of(trainer)), group=group)
    return torch.cat(list(everywhere), dim=-1)


def as_the_first_says(trainer: Any, answer: bool) -> bool:
    """The first process's answer, in all processes."""
    return bool(trainer.strategy.broadcast(answer))


def is_further_process() -> bool:
    """Whether this is the second or a later process of a multi-device cell, of which the first keeps the store."""
    return bool(getattr(rank_zero_only, "rank", 0))


def rank() -> int:
    """The number of this process among those of a cell, from 0."""
    return int(getattr(rank_zero_only, "rank", 0) or 0)


@contextlib.contextmanager
def observing(watch: Callable[[Any], None]) -> Iterator[None]:
    """Within it `watch` is given the processes that Lightning starts; its own observer kills this one with them."""
    launcher: Any = subprocess_script
    before, launcher._launch_process_observer = launcher._launch_process_observer, watch
    try:
        yield
    finally:
        launcher._launch_process_observer = before


# parts ---------------------------------------------------------------------------------------------------------------


def clips_by_value(algorithm: Any) -> bool:
    """Whether gradients are clipped entry by entry, which Lightning says by an enum."""
    return algorithm == GradClipAlgorithmType.VALUE


def runs_compiled(module: nn.Module) -> bool:
    """Whether a call of the module runs what `module.compile` made."""
    return module._compiled_call_impl is not None


def uncompile(module: nn.Module) -> None:
    """Undoes `module.compile`."""
    module._compiled_call_impl = None


def looks_across_rows(module: nn.Module) -> bool:
    """Whether a module computes something else when the rows of a batch are shared out."""
    return isinstance(module, _BatchNorm)


def keep_to_itself(metric: Any) -> None:
    """Has a metric of torchmetrics compute without asking other processes."""
    metric._to_sync = False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps Lightning from telling what the record already says."""
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
