"""The root of a configuration, its parts when built, and the roles of the settings of Lightning's trainer."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import lightning.pytorch
import torch

from lm.config.components import blame, build
from lm.config.tree import Tree
from lm.data.batch import EVALUATION_TOKENS, Data
from lm.data.tokens import TextStats
from lm.model.attention import set_attention_impl
from lm.model.attention_impl import AttentionImpl
from lm.model.transformer import AnyModel, Model, build_and_initialize, checkpoint_activations
from lm.training.adapter import InPlace, has_full_parameters
from lm.training.averaging import average_decay
from lm.training.callbacks import REASONS
from lm.training.optim import Optim
from lm.training.recorder import Recorder
from lm.training.strategies import FSDP2, TENSOR_PARALLEL


class Trainer(lightning.pytorch.Trainer):
    """Lightning's Trainer. Every setting not fixed here passes through.

    Training is one pass over `max_steps` batches, so epochs mean nothing; `val_check_interval` counts batches.

    Args:
        recorder: supplied by the run.
        max_steps: optimiser steps.
        devices: devices of one cell.
        log_every_n_steps: optimiser steps between rows of the learning curve.
        strategy: how devices share a cell, such as ddp, fsdp2 or tensor_parallel.
        attention: implementation of attention (`lm.model.attention_impl.AttentionImpl`); equal up to rounding.
        compile: whether training steps run compiled code.
        checkpoint_activations: whether layers compute activations again in the backward pass, which takes less memory.
        callbacks: Lightning's or a user's own, for training alone; see `lm.training.callbacks`.
        ema: `{decay: D}` or `{half_life: STEPS}` of an average of the weights, which is evaluated as `nll_ema`.
        init_from: a finished run whose weights training starts from, with another seed, text or recipe.

    Raises:
        ValueError: for a setting of UNSOUND, for a GPU that this machine lacks, and if an installed package adds a
            callback to every trainer.
    """

    # keys that people look for, and the reason why there are none
    ADDED = ("ema", "init_from", "checkpoint_activations")
    REASONS = REASONS | {"logger": "loggers are given to the command, as in lm fit CONFIG --logger tensorboard"}

    def __init__(
        self,
        recorder: Recorder,
        max_steps: int,
        devices: list[int] | str | int = 1,
        log_every_n_steps: int = 50,
        strategy: str = "auto",
        attention: AttentionImpl = "sdpa",
        compile: bool = False,
        checkpoint_activations: bool = False,
        callbacks: list[dict[str, Any] | str] | None = None,
        ema: dict[str, float] | None = None,
        init_from: str | dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.attention, self.compile, self.average_decay = attention, compile, average_decay(ema)
        self.init_from, self.checkpoint_activations = init_from, checkpoint_activations
        for name, reason in UNSOUND.items():
            if settings.get(name) not in (None, False):
                raise ValueError(f"{name}={settings[name]} {reason}")
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        accelerator = settings.get("accelerator")
        if accelerator in ("gpu", "cuda", "mps") and not {"gpu": cuda or mps, "cuda": cuda, "mps": mps}[accelerator]:
            expected = "expected accelerator: auto, which takes a GPU where there is one, or cpu"
            raise ValueError(f"accelerator={accelerator}: torch can use no such device of this machine; {expected}")
        if strategy in (FSDP2, TENSOR_PARALLEL):
            settings["inference_mode"] = False  # tensors gathered in it could not be trained with afterwards
        super().__init__(
            strategy=strategy, callbacks=[recorder], max_steps=max_steps, devices=devices,
            log_every_n_steps=log_every_n_steps, max_epochs=1, min_epochs=None, min_steps=None,
            check_val_every_n_epoch=None, num_sanity_val_steps=0, limit_train_batches=None, overfit_batches=0.0,
            fast_dev_run=False, barebones=False, logger=False, plugins=None, profiler=None, model_registry=None,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            enable_autolog_hparams=False, use_distributed_sampler=False, reload_dataloaders_every_n_epochs=0,
            default_root_dir=recorder.work,  # under SLURM Lightning takes up any checkpoint that lies there
            **settings,
        )  # fmt: skip
        if settings.get("deterministic") is None and self.strategy.root_device.type == "cuda":
            compute_deterministically()
        self.strategy.checkpoint_io = InPlace()
        for name, value in (("ema", ema), ("checkpoint_activations", checkpoint_activations)):
            if value and not has_full_parameters(self):
                expected = "expected one device or ddp"
                raise ValueError(f"{name}: no process holds all weights under strategy={strategy}; {expected}")
        present: list[Any] = self.callbacks  # type: ignore[attr-defined]
        foreign = [f"{type(other).__module__}.{type(other).__name__}" for other in present if other is not recorder]
        if foreign:
            raise ValueError(f"{', '.join(foreign)}: an installed package adds this to every run; uninstall it")

    def prepared(self, model: AnyModel) -> AnyModel:
        """Return the model itself, which computes from here on as the settings say."""
        if self.checkpoint_activations:
            checkpoint_activations(model)
        return set_attention_impl(model, self.attention)


def compute_deterministically() -> None:
    """Let CUDA give the same numbers at each run, on which resuming and identical arms rely.

    An operation that cannot do so raises RuntimeError. A processor needs no such setting.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)  # with `warn_only` torch's attention would not heed it
    # Filling memory costs time, and nothing here reads what it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


# settings of Lightning that must be left out, and why: one identity is one computation, on any machine
UNSOUND = {
    "max_time": "would end a cell by the speed of the machine; give max_steps",
    "limit_test_batches": "has no effect: the test split is evaluated whole",
    "limit_predict_batches": "has no effect: nothing is predicted",
    "benchmark": "would choose kernels by how fast this machine is at the moment",
}


class Evaluation:
    """Evaluations of a model; part of a cell's identity only where `tokens` are fewer than a split has.

    Args:
        lengths: contexts, in tokens, at which the validation split is evaluated.
        tokens: of validation and of test, at most, drawn as whole documents; by default 2,097,152. With `lengths`, and
            without `length_tokens`, it is their number instead.
        length_tokens: of the validation split at the lengths, at most; by default 65,536.
        tasks: of lm-evaluation-harness, each a YAML file or a name; part of a cell's identity.
        limit: items of each task, at most, the first ones; by default all.
    """

    ADDED = ("length_tokens", "tasks", "limit")

    def __init__(
        self,
        lengths: list[int] | None = None,
        tokens: int | None = None,
        length_tokens: int | None = None,
        tasks: list[dict[str, Any] | str] | None = None,
        limit: int | None = None,
    ) -> None:
        self.lengths = lengths or []
        if min(self.lengths, default=1) < 1:
            raise ValueError(f"lengths={lengths} must be contexts of at least 1 token")
        if tokens is not None and tokens < 1:
            raise ValueError(f"tokens={tokens} must be at least 1")
        if limit is not None and limit < 1:
            raise ValueError(f"limit={limit} must be at least 1")
        self.tasks, self.limit = tasks or [], limit
        of_lengths = bool(self.lengths) and length_tokens is None
        self.length_tokens = (tokens if of_lengths else length_tokens) or 65_536
        self.tokens = EVALUATION_TOKENS if of_lengths or tokens is None else tokens
        if self.length_tokens < max(self.lengths, default=1):
            name = "tokens" if of_lengths else "length_tokens"
            raise ValueError(f"{name}={self.length_tokens} must be at least the longest of lengths={lengths}")


def evaluation_of(config: Mapping[str, Any]) -> Evaluation:
    """Return the evaluations of a resolved configuration."""
    return Evaluation(**(config.get("evaluate") or {}))


@dataclass(frozen=True)
class RunConfig:
    """The root of a configuration.

    Args:
        seed: of initial parameters and dropout, and of the order of batches without `data_seed`.
        data_seed: of the order of batches.
    """

    data: Callable[[int], Data]
    model: Callable[[int, int], Model]
    optim: Optim
    trainer: Callable[[Recorder], Trainer]
    seed: int
    evaluate: Evaluation | None = None
    data_seed: int | None = None
    REASONS: ClassVar = REASONS | {"callbacks": "callbacks belong to the trainer: trainer.callbacks"}

    def __post_init__(self) -> None:
        for name, seed in (("seed", self.seed), ("data_seed", self.order_seed)):
            if not 0 <= seed < 2**64:
                raise ValueError(f"{name}={seed} must be " + ("0 or more" if seed < 0 else "below 2**64"))

    @property
    def order_seed(self) -> int:
        """Seed of the order of batches."""
        return self.seed if self.data_seed is None else self.data_seed


@dataclass(frozen=True)
class BuiltCell:
    """The parts of a cell, built, with its prepared text."""

    run: RunConfig
    data: Data
    facts: TextStats

    def model(self) -> Model:
        """Return the model, initialised by the cell's seed."""
        return build_and_initialize(self.run.model, self.facts.vocabulary, self.data.context, self.run.seed)


def build_cell(config: Tree, facts: TextStats) -> BuiltCell:
    """Build the parts of a cell."""
    run: RunConfig = build(config, RunConfig)
    return BuiltCell(run, build_data(run, facts), facts)


def build_data(run: RunConfig, facts: TextStats | None = None) -> Data:
    """Return the data of a run, with `facts` of its prepared text ready to be read."""
    with blame("data"):
        data = run.data(run.order_seed)
    if run.evaluate is not None:
        data.evaluation_tokens = run.evaluate.tokens
    if facts is not None:
        data.facts = facts
        data.setup("fit")
    return data


SINGLE_PROCESS = {"devices": 1, "num_nodes": 1, "strategy": "auto"}  # the trainer's settings for one process and device
# settings of the trainer that do not change a cell's numbers
EXECUTION = frozenset(
    (
        "accelerator", "devices", "num_nodes", "strategy", "log_every_n_steps", "detect_anomaly", "inference_mode",
        "checkpoint_activations",
    )
)  # fmt: skip

# ranges of numeric settings of the trainer
SETTINGS = {
    "max_steps": (1, 10**12),
    "accumulate_grad_batches": (1, 10_000),
    "gradient_clip_val": (0, 10**12),
    "log_every_n_steps": (1, 10**12),
    "devices": (-1, 1024),
    "num_nodes": (1, 1024),
    "limit_val_batches": (0, 10**12),
}
MAY_BE_NONE = ("gradient_clip_val", "limit_val_batches")  # numeric settings that may be null
