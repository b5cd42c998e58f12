"""Lightning callbacks that `trainer.callbacks` names: checked, built, and which of them say what is computed.

One that is declared harmless looks on and is no part of a cell's identity. All others are, with their code.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch.callbacks as known
from lightning.pytorch import Callback
from lightning.pytorch.callbacks.progress.progress_bar import ProgressBar

from lm.config.components import build_class, resolve_class
from lm.config.imported import import_object
from lm.config.plain import shown
from lm.config.tree import InputError, Tree
from lm.training.recorder import Recorder

PATH = "trainer.callbacks"
KEYS = ("class_path", "init_args", "harmless")

STOPS = (
    "would end a run by what it sees. Arms would then have seen different numbers of tokens, and their differences "
    "would not be paired; expected trainer.max_steps alone, or a sweep with a pruner"
)
REASONS = dict.fromkeys(
    ("early_stop", "early_stopping", "early_stopping_patience", "early_stop_callback", "min_delta", "patience"),
    f"early stopping {STOPS}",
)
"""Settings of early stopping that people look for, and why there are none."""

REFUSED: dict[type[Callback], str] = {
    known.EarlyStopping: STOPS,
    known.Timer: STOPS,
    known.Checkpoint: "would keep checkpoints beside those from which a run is taken up; give --checkpoint-seconds",
    ProgressBar: "would show what is shown already, how far a run is",
    known.ModelSummary: "would show what `lm count` shows",
    known.GradientAccumulationScheduler: "would change what a step is; give trainer.accumulate_grad_batches",
    known.BatchSizeFinder: "would train before training begins; give data.batch_size, or use lm sweep",
    known.LearningRateFinder: "would train before training begins; use lm sweep",
    known.StochasticWeightAveraging: "would lengthen training, and change the weights behind what is measured of them",
    known.WeightAveraging: "would exchange the weights behind what is measured of them",
    known.LearningRateMonitor: "would tell a logger what history.csv holds; give --logger to the command",
    known.DeviceStatsMonitor: "needs a logger of the trainer, which has none; give --logger to the command",
    known.ThroughputMonitor: "needs a logger of the trainer, which has none; the record holds tokens per second",
    known.BasePredictionWriter: "has nothing to write: nothing is predicted",
}
"""Lightning's own that clash with how a run is carried out, and why."""


def resolved(given: Sequence[Any] | None) -> list[Tree] | None:
    """What `trainer.callbacks` asks for with every default filled in; None for nothing.

    Raises:
        InputError: for what is no callback, takes other arguments, or clashes with how a run is carried out.
    """
    nodes = [_resolved(node, f"{PATH}[{index}]") for index, node in enumerate(given or [])]
    for index, node in enumerate(nodes):
        if node["class_path"] in [other["class_path"] for other in nodes[:index]]:
            raise InputError(f"{PATH}[{index}]: {node['class_path']} is given twice")
    return nodes or None


def _resolved(node: Any, path: str) -> Tree:
    if isinstance(node, str):
        node = {"class_path": node}
    if not isinstance(node, Mapping) or not isinstance(node.get("class_path"), str):
        raise InputError(f"{path}: expected a dotted path or {{class_path, init_args, harmless}}, found {shown(node)}")
    if extra := [str(key) for key in node if key not in KEYS]:
        raise InputError(f"{path}.{extra[0]}: a callback has {', '.join(KEYS)} only; its own settings are init_args")
    harmless = node.get("harmless", False)
    if not isinstance(harmless, bool):
        raise InputError(f"{path}.harmless: expected true or false, found {shown(harmless)}")
    cls = _found(node["class_path"], path)
    arguments = resolve_class(cls, node.get("init_args"), path)
    name = f"{cls.__module__}.{cls.__qualname__}"
    return {"class_path": name, "init_args": arguments} | ({"harmless": True} if harmless else {})


def _found(name: str, path: str) -> type[Callback]:
    """The class that a dotted path names. Raises InputError where it cannot be used, with the reason."""
    if "." not in name and hasattr(known, name):
        name = f"{known.__name__}.{name}"
    if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise InputError(f"{path}: expected the dotted path of a callback, such as my_parts.Mine, found {shown(name)}")
    cls = import_object(name, path)
    if not isinstance(cls, type) or not issubclass(cls, Callback):
        raise InputError(f"{path}: {name!r} is no subclass of lightning.pytorch.Callback")
    if cls.__module__.split(".")[0] == __name__.split(".")[0]:
        raise InputError(f"{path}: {cls.__name__} is how every run is carried out; it cannot be given")
    reason = next((reason for base, reason in REFUSED.items() if issubclass(cls, base)), None)
    if reason is None and _stops(cls):
        reason = f"sets trainer.should_stop, and {STOPS}"
    if reason is not None:
        raise InputError(f"{path}: {cls.__name__} {reason}")
    return cls


def _stops(cls: type) -> bool:
    """Whether the code of a class ends a run, as far as can be read; what cannot is found when it happens."""
    for owner in cls.__mro__:
        if owner in (Callback, object):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == "should_stop"
            if stored or (isinstance(node, ast.Constant) and node.value == "should_stop"):
                return True
    return False


def built(nodes: Sequence[Tree] | None) -> list[Callback]:
    """The callbacks that resolved nodes describe, and what sees to it that none of them ends the run.

    Raises:
        InputError: where a constructor refuses its arguments.
    """
    found = [
        build_class(import_object(node["class_path"], PATH), node["init_args"], f"{PATH}[{index}]")
        for index, node in enumerate(nodes or [])
    ]
    return [*found, Guard()] if found else []


def identified(nodes: Sequence[Tree] | None) -> list[Tree]:
    """Those of resolved nodes that say what a cell computes."""
    return [node for node in nodes or [] if not node.get("harmless")]


class Guard(Callback):
    """Fails a run that a callback before it would end early."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._look(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer)

    def _look(self, trainer: Any) -> None:
        recorder = next(one for one in trainer.callbacks if isinstance(one, Recorder))
        if trainer.should_stop and recorder.diverged is None and not recorder.pruned:
            raise ValueError(f"{PATH}: a callback set trainer.should_stop, and {STOPS}")
