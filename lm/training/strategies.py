"""What `trainer.strategy` may say, and what of it is refused before anything is written."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, StrategyRegistry
from torch import nn

from lm.config.plain import shown
from lm.config.tree import InputError, is_component, nearest
from lm.training.adapter import InPlace, looks_across_rows
from lm.training.sharded import NAME, Processes, register, shards
from lm.training.tensor_parallel import NAME as TENSOR_PARALLEL
from lm.training.tensor_parallel import check_optimizer, plan

FORKING = ("fork", "spawn", "notebook")
"""In the names of strategies that start their processes as copies of one that runs already."""

PRECISIONS = ("32-true", "64-true", "bf16-true", "bf16-mixed")
"""Those in which gradients need no scaling by a number that is sought on the way."""

FLATTENS = "flattens weights, which decay, are measured and are clipped by their shape"

DEEPSPEED = ("deepspeed", "deepspeed_stage_1", "deepspeed_stage_2")
"""Those of DeepSpeed's names under which every process has all weights between steps, which a run reads."""

STAGES = {"deepspeed_stage_1": 1}
"""Of the names; 2 for others."""

CLASSES = {
    "ModelParallelStrategy": ("data_parallel_size", "tensor_parallel_size"),
    "DeepSpeedStrategy": ("stage", "overlap_comm", "allgather_bucket_size", "reduce_bucket_size"),
}
"""Classes of Lightning's strategies that may be named, and what they take: nothing that says what is computed."""

PACKAGE = "lightning.pytorch.strategies"


@dataclass(frozen=True)
class Asked:
    """A strategy as a configuration asks for it.

    Args:
        name: by which Lightning knows it, or the class that is to be made.
        options: what that is made with.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)


def asked(strategy: Any) -> Asked:
    """What a name, or a class with its arguments, asks for.

    Raises:
        InputError: for a class or an argument that is not offered.
    """
    if not is_component(strategy):
        return Asked(str(strategy))
    if extra := [str(key) for key in strategy if key not in ("class_path", "init_args")]:
        raise InputError(f"trainer.strategy.{extra[0]}: a strategy has class_path and init_args only")
    path, given = strategy["class_path"], strategy.get("init_args")
    given = {} if given is None else given
    name = str(path).removeprefix(f"{PACKAGE}.")
    if name not in CLASSES:
        raise InputError(
            f"trainer.strategy: no class of strategies called {shown(path)} is offered.{nearest(name, list(CLASSES))} "
            f"Choose from {', '.join(CLASSES)}, or a name such as ddp"
        )
    if not isinstance(given, Mapping):
        raise InputError(f"trainer.strategy.init_args: expected a mapping of settings of {name}, found {shown(given)}")
    for key, value in given.items():
        _check_option(name, str(key), value)
    return Asked(name, dict(given))


def _check_option(name: str, key: str, value: Any) -> None:
    if key not in CLASSES[name]:
        raise InputError(
            f"trainer.strategy.init_args.{key}: {name} takes {', '.join(CLASSES[name])} here."
            f"{nearest(key, CLASSES[name])}"
        )
    if key.endswith("parallel_size"):
        fits, words = value == "auto" or (type(value) is int and 1 <= value <= 1024), "1 to 1024 processes, or auto"
    elif key == "stage":
        fits, words = type(value) is int and value in (0, 1, 2), "0, 1 or 2, as a run reads all weights between steps"
    elif key == "overlap_comm":
        fits, words = isinstance(value, bool), "true or false"
    else:
        fits, words = type(value) is int and 1 <= value <= 10**12, "a number of elements from 1"
    if not fits:
        raise InputError(f"trainer.strategy.init_args.{key}: expected {words}, found {shown(value)}")


def shared_out(strategy: Any) -> Asked | None:
    """What is asked for where processes are to share out the model itself, else None."""
    found = asked(strategy)
    return found if found.name in (NAME, TENSOR_PARALLEL, "ModelParallelStrategy") else None


def known(strategy: Any) -> str:
    """The name, in small letters, by which Lightning's trainer knows a strategy of a configuration."""
    found = asked(strategy)
    if found.name == "ModelParallelStrategy":
        return register(f"model parallel {found.options}", "Rows and layers shared out", **found.options)
    if found.name in (*DEEPSPEED, "DeepSpeedStrategy"):
        options = {"stage": STAGES.get(found.name, 2), **found.options}
        name = f"deepspeed {options}"
        StrategyRegistry.register(
            name, DeepSpeed, description="Lightning's, with a file at the end", override=True, **options
        )
        return name
    return found.name


class DeepSpeed(DeepSpeedStrategy):
    """Lightning's, but that it leaves a checkpoint in one file without optimiser state, which no run can take up.

    DeepSpeed's own checkpoints are pickles, which are not read here.
    """

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self.is_global_zero:
            InPlace().save_checkpoint(checkpoint, filepath)
        self.barrier()


# what is refused -----------------------------------------------------------------------------------------------------


def check_sharded(settings: Any) -> None:
    """Refuses strategies under which a run computes something else, and settings that one of them does not carry out.

    Raises:
        InputError: with what to take instead.
    """
    found, precision = asked(settings["strategy"]), settings["precision"] or "32-true"
    if found.name.lower().startswith("deepspeed"):
        _check_deepspeed(found, settings)
    if shared_out(settings["strategy"]) is None:
        if found.name.startswith("fsdp"):
            raise InputError(f"trainer.strategy: {found.name!r} {FLATTENS}; expected another, such as ddp or {NAME}")
        return
    if precision not in PRECISIONS:
        raise InputError(
            f"trainer.precision: {precision!r} is nothing that strategy {found.name} carries out; "
            f"expected one of {', '.join(PRECISIONS)}"
        )
    if settings["sync_batchnorm"]:
        raise InputError(f"trainer.sync_batchnorm: strategy {found.name} does not carry it out; expected strategy ddp")


def _check_deepspeed(found: Asked, settings: Any) -> None:
    """Refuses what DeepSpeed cannot carry out here, and all by which it would compute what no other strategy does."""
    if found.name not in (*DEEPSPEED, "DeepSpeedStrategy"):
        raise InputError(
            f"trainer.strategy: {found.name!r} keeps weights or optimiser to itself, which a run reads; expected "
            f"one of {', '.join(DEEPSPEED)}, or another, such as ddp or {NAME}"
        )
    instead = f"expected another strategy, such as ddp or {NAME}"
    if importlib.util.find_spec("deepspeed") is None:
        raise InputError(
            f"trainer.strategy: {found.name} needs the package deepspeed: pip install deepspeed; or {instead}"
        )
    if not torch.cuda.is_available() or settings["accelerator"] not in ("auto", "cuda", "gpu"):
        raise InputError(f"trainer.strategy: {found.name} needs a CUDA device, and accelerator cuda; {instead}")
    if name := next((name for name in (DeepSpeedStrategy.DEEPSPEED_ENV_VAR,) if name in os.environ), None):
        raise InputError(f"{name}: DeepSpeed's own settings would change what a cell computes; unset it")
    for name, fits, words in (
        ("precision", settings["precision"] in (None, "32-true"), "32-true; in others DeepSpeed rounds in its own way"),
        ("gradient_clip_algorithm", settings["gradient_clip_algorithm"] in (None, "norm"), "norm, all that it does"),
        ("accumulate_grad_batches", settings["accumulate_grad_batches"] == 1, "1"),
        ("sync_batchnorm", not settings["sync_batchnorm"], "false"),
    ):
        if not fits:
            raise InputError(f"trainer.{name}: under strategy {found.name} expected {words}; found {settings[name]!r}")


def check_strategy(settings: Any) -> None:
    """Refuses strategies that fork, as a cell has a process of its own with threads and its forks would hang, and cells
    of several machines, of which nobody starts the others."""
    strategy = asked(settings["strategy"]).name
    if any(word in strategy for word in FORKING):
        raise InputError(
            f"trainer.strategy: {strategy!r} forks its processes, which works in `lm fit` alone; use 'ddp' here"
        )
    if settings["num_nodes"] > 1:
        raise InputError(
            f"trainer.num_nodes: {settings['num_nodes']} machines train one cell in `lm fit` alone, which torchrun or "
            "srun starts on each; expected 1"
        )


def check_model(model: nn.Module, optimizer: Any, among: Processes) -> None:
    """Refuses a model, or how it is trained, that several processes cannot share, or would compute otherwise than one.

    Args:
        optimizer: the class, or a partial of it.

    Raises:
        InputError: with the first part that is in the way.
    """
    if among.layers > 1:
        plan(model, among.layers)
        check_optimizer(optimizer)
    if among.model_is_shared and shards(among.rows, among.layers):
        _check_shapes(model)
    if among.rows > 1 and any(map(looks_across_rows, model.modules())):
        raise InputError(
            f"trainer.devices: batch norm would see the rows of each of {among.rows} processes alone, and compute "
            "something else than in one; expected one device, or sync_batchnorm"
        )


def _check_shapes(model: nn.Module) -> None:
    """Refuses parameters that cannot be shared out. Raises InputError."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise InputError(
                f"trainer.strategy: {NAME} shares out parameters by their rows, and {name} is a single number; "
                "expected strategy ddp, or a model without it"
            )
