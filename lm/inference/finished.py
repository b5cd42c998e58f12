"""A finished run: its record, its configuration, its text, its trained model."""

import functools
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import nn

from lm.analysis.results import read_manifest
from lm.analysis.runs import find_one, folders_of
from lm.config.components import blame, build, resolve
from lm.config.fingerprint import dotted_classes
from lm.config.imported import add_module_folder, require_trusted
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, load_yaml
from lm.data.tokens import TextStats, entry_folder, is_usable
from lm.inference.conversion import ModelOnly
from lm.model.transformer import load_weights
from lm.report.status import training_line
from lm.store.files import require_own
from lm.store.record import Record
from lm.store.store import Store
from lm.store.validation import validate_checkpoint

Kind = TypeVar("Kind", bound=nn.Module)


def find(run: str, out: Path) -> Path:
    """Return the folder of a cell by its path, experiment/arm/seed or beginning of its id. Raises InputError."""
    if os.path.isfile(Path(run) / "record.json"):
        return Path(run)
    match = find_one(run, out)
    folder = Store(out).directory(match.cell)
    if not os.path.isfile(folder / "record.json"):
        raise InputError(f"{run}: no finished run: {training_line(match) if match.holder else match.state}")
    return folder


def find_components(config: Tree, folder: Path) -> None:
    """Put the folders of a user's own classes on the path. Raises InputError where one is in no likely place."""
    names = dotted_classes(config)
    for name in names:
        require_trusted(name, str(folder))

    def not_importable() -> list[str]:
        tops = {name: name.partition(".")[0] for name in names}
        return [name for name, top in tops.items() if top not in sys.modules and not importlib.util.find_spec(top)]

    searched: list[str] = []
    for candidate in _component_folders(folder):
        if not not_importable():
            return
        if (absolute := os.path.abspath(candidate)) not in searched:
            searched.append(absolute)
            add_module_folder(candidate)
    for name in not_importable():
        code = folder / "code"
        more = f". Its code as it was trained with lies in {code}" if code.is_dir() else ""
        raise InputError(f"{folder}: this run's own {shown(name)} is not found; looked in {', '.join(searched)}{more}")


def _component_folders(folder: Path) -> Iterator[Path]:
    """Yield folders that may hold the components of the run in `folder`, the likeliest first."""
    out = folder.resolve().parent.parent
    yield Path()
    yield out.parent
    for experiment, _ in itertools.chain.from_iterable(folders_of(out).values()):
        try:
            manifest = read_manifest(experiment)
        except InputError:  # a search's, or one that says nothing
            continue
        if any(folder.name in arm["cells"].values() for arm in manifest["arms"].values()):
            files = [Path(word) for word in manifest["command"] or () if word.endswith((".yaml", ".yml"))]
            yield from (path.parent for file in files for path in (file, out.parent / file) if os.path.isfile(path))


@dataclass(frozen=True)
class FinishedRun:
    """A run that was trained to its end."""

    folder: Path  # OUT/cells/ID
    record: Record
    config: Tree  # as it was saved

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Open the run in `folder`, its components on the path. Raises InputError unless trained to its end."""
        resolved = folder.resolve()
        out = resolved.parent.parent
        if resolved.parent.name != "cells":
            raise InputError(f"{folder}: expected the folder of a finished run, OUT/cells/ID")
        require_own(out, [f"cells/{resolved.name}"])
        record = Store(out).record(resolved.name)
        if record["status"] != "ok":
            raise InputError(f"{folder}: this run {record['status']}, {record['error']}; it has no model to use")
        config = load_yaml(folder / "config.yaml")
        find_components(config, resolved)
        return cls(folder, record, config)

    @property
    def checkpoint(self) -> Path:
        """The file of its weights. Raises InputError where there is none, or one with other weights."""
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
        """Return its data, not prepared."""
        from lm.training.run import RunConfig  # with Lightning, which is rarely needed here

        with blame("data"):
            return build(resolve(self.config, RunConfig), RunConfig).data(self.config["seed"])

    def facts(self) -> TextStats:
        """Return the facts of its text, cached or prepared again. Raises InputError where it has changed."""
        text = self.record["data"]
        hashes = text["fingerprint"], text["tokenizer"]
        for kind in ("tokens", "pairs"):
            facts = TextStats(folder=str(entry_folder(kind, *hashes).resolve()), **text)
            if is_usable(facts):
                return facts
        data = self.data()
        data.prepare_data()
        facts = data.facts
        if (facts.fingerprint, facts.tokenizer) != hashes:
            hint = "the text, or the tokenizer trained on it, has changed"
            raise InputError(f"{self.folder}: its text is no longer in the cache, and cannot be prepared again: {hint}")
        return facts

    def model(self, kind: type[Kind], instead: str) -> Kind:
        """Return the trained model of class `kind` on the CPU. Raises InputError, with `instead` for another class."""
        make: Any = build(resolve({"model": self.config.get("model")}, ModelOnly), ModelOnly).model
        cls = make.func if isinstance(make, functools.partial) else make
        if not (isinstance(cls, type) and issubclass(cls, kind)):
            raise InputError(f"{self.folder}: {instead.format(cls.__name__)}")
        context = self.config["data"]["init_args"].get("context")
        if not isinstance(context, int):
            context = int(self.data().context)
        path = self.checkpoint
        with blame(str(path)):
            state = load_weights(path)
            model: Kind = make(self.record["data"]["vocabulary"], context)
            model.to(next(value.dtype for value in state.values() if value.is_floating_point()))
            model.load_state_dict(state)
        return model.eval()
