"""Lightning callbacks named by `trainer.callbacks`: checked, built, and those that are part of a cell's identity.

A callback that is declared harmless is no part of the identity. All others are, with their code.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch.callbacks as lightning_callbacks
import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks.progress.progress_bar import ProgressBar

from lm.config.components import build, resolve
from lm.config.imported import import_object
from lm.config.plain import shown
from lm.config.tree import InputError, Tree
from lm.data.order import derive_seed

PATH = "trainer.callbacks"
KEYS = ("class_path", "init_args", "harmless")

STOPS = (
    "would end a run by what it sees. Arms would then have seen different numbers of tokens, and their differences "
    "would not be paired; expected trainer.max_steps alone, or a sweep with a pruner"
)
# settings of early stopping that people look for, and the reason why there are none
REASONS = dict.fromkeys(
    ("early_stop", "early_stopping", "early_stopping_patience", "early_stop_callback", "min_delta", "patience"),
    f"early stopping {STOPS}",
)

# callbacks of Lightning that a run cannot have, and the reason
REFUSED: dict[type[Callback], str] = {
    lightning_callbacks.EarlyStopping: STOPS,
    lightning_callbacks.Timer: STOPS,
    lightning_callbacks.Checkpoint: "would keep checkpoints beside those of the run; give --checkpoint-seconds",
    ProgressBar: "would show what is shown already, how far a run is",
    lightning_callbacks.ModelSummary: "would show what `lm count` shows",
    lightning_callbacks.GradientAccumulationScheduler: "would change a step; give trainer.accumulate_grad_batches",
    lightning_callbacks.BatchSizeFinder: "would train before training begins; give data.batch_size, or use lm sweep",
    lightning_callbacks.LearningRateFinder: "would train before training begins; use lm sweep",
    lightning_callbacks.StochasticWeightAveraging: "would lengthen training, and change the weights that are measured",
    lightning_callbacks.WeightAveraging: "would exchange the weights that are measured",
    lightning_callbacks.LearningRateMonitor: "would log what history.csv holds; give --logger to the command",
    lightning_callbacks.DeviceStatsMonitor: "needs a logger, and the trainer has none; give --logger to the command",
    lightning_callbacks.ThroughputMonitor: "needs a logger, and the trainer has none; the record has tokens a second",
    lightning_callbacks.BasePredictionWriter: "has nothing to write: nothing is predicted",
}


def resolve_callbacks(entries: Sequence[Any] | None) -> list[Tree] | None:
    """Fill in all defaults of `trainer.callbacks`; None without. Raises InputError for one that cannot be used."""
    nodes = [_resolved(node, f"{PATH}[{index}]") for index, node in enumerate(entries or [])]
    paths = [node["class_path"] for node in nodes]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise InputError(f"{PATH}[{index}]: {path} is given twice")
    return nodes or None


def _resolved(node: Any, path: str) -> Tree:
    """Resolve one callback. Raises InputError at the place `path` of the configuration."""
    if isinstance(node, str):
        node = {"class_path": node}
    if not isinstance(node, Mapping) or not isinstance(node.get("class_path"), str):
        raise InputError(f"{path}: expected a dotted path or {{class_path, init_args, harmless}}, found {shown(node)}")
    if extra := [str(key) for key in node if key not in KEYS]:
        raise InputError(f"{path}.{extra[0]}: a callback has {', '.join(KEYS)} only; its own settings are init_args")
    harmless = node.get("harmless", False)
    if not isinstance(harmless, bool):
        raise InputError(f"{path}.harmless: expected true or false, found {shown(harmless)}")
    name = node["class_path"]
    if "." not in name and hasattr(lightning_callbacks, name):
        name = f"{lightning_callbacks.__name__}.{name}"
    if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise InputError(f"{path}: expected the dotted path of a callback, such as my_parts.Mine, found {shown(name)}")
    cls = import_object(name, path)
    if not isinstance(cls, type) or not issubclass(cls, Callback):
        raise InputError(f"{path}: {name!r} is no subclass of lightning.pytorch.Callback")
    if cls.__module__.split(".")[0] == __name__.split(".")[0]:
        raise InputError(f"{path}: {cls.__name__} is how every run is carried out; it cannot be given")
    reason = next((reason for base, reason in REFUSED.items() if issubclass(cls, base)), None)
    if reason is not None:
        raise InputError(f"{path}: {cls.__name__} {reason}")
    arguments = resolve(node.get("init_args"), cls, path)
    resolved = {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": arguments}
    return resolved | ({"harmless": True} if harmless else {})


def build_callbacks(nodes: Sequence[Tree] | None, seed: int = 0) -> list[Callback]:
    """Build the callbacks of resolved nodes, after one that seeds what they draw from. Raises InputError."""
    built = [
        build(node["init_args"], import_object(node["class_path"], PATH), f"{PATH}[{index}]")
        for index, node in enumerate(nodes or [])
    ]
    return [_Seeds(seed), *built] if built else []


class _Seeds(Callback):
    """Seeds torch, numpy and Python's `random` before other callbacks draw, so that a resumed run draws the same."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _draw_anew(self, name: str, batch: int = 0) -> None:
        seed = derive_seed(name, self.seed, batch)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Seed what is drawn before the first batch."""
        self._draw_anew("callbacks")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Seed what is drawn until the next batch; the model seeds its dropout after that."""
        self._draw_anew("callbacks of a batch", batch_idx)
