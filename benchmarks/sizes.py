"""The sizes of model that training is timed at, as configurations, with text that every machine has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm.config.tree import Tree, override
from lm.training.cell import check
from lm.training.identified import Cell

BASE: Tree = {
    "data": {
        "class_path": "TextData",
        "init_args": {
            "corpus": {"class_path": "StdlibText", "init_args": {"size": 200_000, "longest": 2000}},
            "tokenizer": "Characters",
            "context": 64,
            "batch_size": 16,
            "split": [0.9, 0.05, 0.05],
        },
    },
    "model": {
        "class_path": "Decoder",
        "init_args": {
            "width": 64,
            "heads": 4,
            "layers": 4,
            "dropout": 0.0,
            "embedding": {"tied": True, "scaled": True},
            "position": "Rope",
            "block": "PreNorm",
            "norm": "LayerNorm",
            "attention": {"class_path": "MultiHead", "init_args": {"scale": "1/sqrt(d_k)"}},
            "mlp": "GELU",
            "initializer": "FanIn",
        },
    },
    "optim": {
        "lr": 1e-3,
        "optimizer": {
            "class_path": "AdamW",
            "init_args": {"betas": [0.9, 0.99], "weight_decay": 0.1, "fused": True},
        },
        "schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 1, "final": 0.1}},
        "objective": "CrossEntropy",
    },
    "trainer": {
        "accelerator": "cpu",
        "max_steps": 100,
        "precision": "32-true",
        "gradient_clip_val": 1.0,
        "log_every_n_steps": 10,
        "val_check_interval": 1000,
        "limit_val_batches": 1,
    },
    "seed": 0,
}
"""The base of the quickstart (`experiments/bases/char_tiny.yaml`) on less text, validated at its end alone."""

AS_NANOGPT: Tree = {
    "model.embedding": {"tied": True, "scaled": False},
    "model.position": "Learned",
    "model.norm": {"class_path": "LayerNorm", "init_args": {"bias": False}},
    "model.attention": {"class_path": "MultiHead", "init_args": {"bias": False}},
    "model.mlp": {"class_path": "GELU", "init_args": {"bias": False}},
    "model.initializer": "Normal",
}
"""Parts as nanoGPT's recipes have them."""


@dataclass(frozen=True)
class Size:
    """A model and its batches, and how much of it is timed.

    Args:
        name: for the table.
        layers, width, heads, context, batch: of the model, and rows a step.
        steps, rounds: of training a round, and rounds that count.
        threads: None for as many as were asked for.
        parts: changes of BASE besides.
    """

    name: str
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    steps: int
    rounds: int
    threads: int | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.context

    def cell(self, changes: Mapping[str, Any] | None = None) -> Cell:
        """A run of `steps` steps at this size."""
        sizes = {
            "model.layers": self.layers,
            "model.width": self.width,
            "model.heads": self.heads,
            "data.context": self.context,
            "data.batch_size": self.batch,
            "trainer.max_steps": self.steps,
            "trainer.val_check_interval": 10 * self.steps,
        }
        return check(override(BASE, {**sizes, **self.parts, **(changes or {})}))


SIZES = (
    Size("quickstart", 4, 64, 4, 64, 16, steps=40, rounds=5, threads=1),
    Size("nanoGPT, characters on a CPU", 4, 128, 4, 64, 12, steps=40, rounds=5, parts=AS_NANOGPT),
    Size("baby GPT", 6, 384, 6, 256, 16, steps=3, rounds=3, parts=AS_NANOGPT),
)
SMALLEST = Size("smallest", 1, 32, 4, 32, 4, steps=10, rounds=3, threads=1)
"""What `--quick` takes instead."""


def sizes(quick: bool) -> tuple[Size, ...]:
    """Those to measure."""
    return (SMALLEST,) if quick else SIZES


def named(name: str) -> Size:
    """The size of this name."""
    return next(size for size in (*SIZES, SMALLEST) if size.name == name)
