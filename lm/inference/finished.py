"""What a finished run left, at hand: its record, its configuration, its trained model."""

import functools
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import nn

from lm.analysis.results import read_manifest
from lm.analysis.run_lookup import find_one
from lm.analysis.runs import folders_of
from lm.config.components import blame, build, resolve
from lm.config.fingerprint import dotted_classes
from lm.config.imported import add_module_folder, require_trusted
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, load_yaml
from lm.model.transformer import Model
from lm.model.weights import weights
from lm.report.status import training_line
from lm.store.files import require_own
from lm.store.record import Record
from lm.store.store import Store
from lm.store.validation import validate_checkpoint

Kind = TypeVar("Kind", bound=nn.Module)


def find(run: str, out: Path) -> Path:
    """The folder of a finished cell, given as such, as experiment/arm/seed, or as the beginning of its id under `out`.

    Raises:
        InputError: where there is none, or more than one.
    """
    if os.path.isfile(Path(run) / "record.json"):
        return Path(run)
    found = find_one(run, out)
    folder = Store(out).directory(found.cell)
    if not os.path.isfile(folder / "record.json"):
        raise InputError(f"{run}: no finished run: {training_line(found) if found.holder else found.state}")
    return folder


def find_components(config: Tree, folder: Path) -> None:
    """Has a user's own classes that the run in `folder` names found: in the current folder, in the one that holds the
    results, or beside the files of the experiments that asked for the run, as far as these are recorded.

    Raises:
        InputError: where one is in none of them.
    """
    for name in dotted_classes(config):
        require_trusted(name, str(folder))
    looked: list[str] = []
    for place in _places(folder):
        if all(map(_is_found, dotted_classes(config))):
            return
        if (absolute := os.path.abspath(place)) not in looked:
            looked.append(absolute)
            add_module_folder(place)
    for name in dotted_classes(config):
        if not _is_found(name):
            kept = folder / "code"
            raise InputError(
                f"{folder}: this run's own {shown(name)} is not found; looked in {', '.join(looked)}"
                + (f". Its code as it was trained with lies in {kept}" if kept.is_dir() else "")
            )


def _is_found(name: str) -> bool:
    """Whether there is a module, or a package, of a dotted path's first name."""
    top = name.partition(".")[0]
    return top in sys.modules or importlib.util.find_spec(top) is not None


def _places(folder: Path) -> Iterator[Path]:
    """Folders that may hold the components of the run in `folder`, the likeliest first."""
    out = folder.resolve().parent.parent
    yield Path()
    yield out.parent
    for experiment, _ in itertools.chain.from_iterable(folders_of(out).values()):
        try:
            manifest = read_manifest(experiment)
        except InputError:  # a search's, or one that says nothing
            continue
        if any(folder.name in arm["cells"].values() for arm in manifest["arms"].values()):
            given = [Path(one) for one in manifest["command"] or () if one.endswith((".yaml", ".yml"))]
            yield from (place.parent for path in given for place in (path, out.parent / path) if os.path.isfile(place))


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
        """The run in `folder`, whose own components are found from now on.

        Raises:
            InputError: unless it was trained to its end, and where a component is not found.
        """
        place = folder.resolve()
        if place.parent.name != "cells":
            raise InputError(f"{folder}: expected the folder of a finished run, OUT/cells/ID")
        require_own(place.parent.parent, [f"cells/{place.name}"])
        record = Store(place.parent.parent).record(place.name)
        if record["status"] != "ok":
            raise InputError(f"{folder}: this run {record['status']}, {record['error']}; it has no model to use")
        config = load_yaml(folder / "config.yaml")
        find_components(config, place)
        return cls(folder, record, config)

    @property
    def checkpoint(self) -> Path:
        """The weights that it left. Raises InputError where it left none, or others lie there by now."""
        path = self.folder / "last.ckpt"
        if not path.is_file():
            raise InputError(f"{path}: no such file; this run's model was not kept")
        try:
            wrong = validate_checkpoint(self.record, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        if wrong:
            raise InputError(f"{path}: {wrong}; delete the cell, and it is trained again")
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
