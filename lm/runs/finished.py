"""What a finished run left, at hand: its record, its configuration, its trained model."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import nn

from lm.analysis.called import located
from lm.config.components import blame, build, resolve
from lm.config.tree import InputError, Tree, load_yaml
from lm.model.transformer import Model
from lm.model.weights import weights
from lm.report.status import training_line
from lm.store.record import Record
from lm.store.store import Store

Kind = TypeVar("Kind", bound=nn.Module)


def find(run: str, out: Path) -> Path:
    """The folder of a finished cell, given as such, as experiment/arm/seed, or as the beginning of its id under `out`.

    Raises:
        InputError: where there is none, or more than one.
    """
    if os.path.isfile(Path(run) / "record.json"):
        return Path(run)
    found = located(run, out)
    folder = Store(out).directory(found.cell)
    if not os.path.isfile(folder / "record.json"):
        raise InputError(f"{run}: no finished run: {training_line(found) if found.holder else found.state}")
    return folder


@dataclass
class _ModelOnly:
    """The part of a configuration that is needed to use what was trained; the whole takes Lightning, and seconds."""

    model: Callable[[int, int], Model]


@dataclass(frozen=True)
class FinishedRun:
    """A run that was trained to its end.

    Args:
        folder: OUT/cells/ID.
        record: of the run.
        config: as it was saved.
    """

    folder: Path
    record: Record
    config: Tree

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The run in `folder`. Raises InputError unless it was trained to its end."""
        place = folder.resolve()
        if place.parent.name != "cells":
            raise InputError(f"{folder}: expected the folder of a finished run, OUT/cells/ID")
        record = Store(place.parent.parent).record(place.name)
        if record["status"] != "ok":
            raise InputError(f"{folder}: this run {record['status']}, {record['error']}; it has no model to use")
        return cls(folder, record, load_yaml(folder / "config.yaml"))

    @property
    def checkpoint(self) -> Path:
        """The weights that it left. Raises InputError where it left none."""
        path = self.folder / "last.ckpt"
        if not path.is_file():
            raise InputError(f"{path}: no such file; this run's model was not kept")
        return path

    def data(self) -> Any:
        """Its data, not prepared."""
        from lm.training.run import Run  # with Lightning, which is rarely needed here

        with blame("data"):
            return build(resolve(self.config, Run), Run).data(self.config["seed"])

    def model(self, kind: type[Kind], instead: str) -> Kind:
        """The trained model, in its checkpoint's precision, on the CPU.

        Args:
            kind: what it has to be.
            instead: what is said where it is another, `{}` for its class.

        Raises:
            InputError: where it is another kind, or the checkpoint cannot be used.
        """
        make: Any = build(resolve({"model": self.config.get("model")}, _ModelOnly), _ModelOnly).model
        found = make.func if isinstance(make, functools.partial) else make
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise InputError(f"{self.folder}: {instead.format(found.__name__)}")
        path = self.checkpoint
        with blame(str(path)):
            state = weights(path)
            model: Kind = make(self.record["data"]["vocabulary"], self._context())
            model.to(next(value.dtype for value in state.values() if value.is_floating_point()))
            model.load_state_dict(state)
        return model.eval()

    def _context(self) -> int:
        given = self.config["data"]["init_args"].get("context")
        return given if isinstance(given, int) else int(self.data().context)
