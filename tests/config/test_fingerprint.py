"""Code is part of what a cell computes: what counts as a change, and what becomes of cells when there is one."""

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import references
import torch
import yaml
from helpers import RUN, known
from messages import CheckMessage, Refused

from lm.config import fingerprint as fingerprints
from lm.config.fingerprint import code_of, fingerprint, project_folder, source_files
from lm.config.tree import InputError, override
from lm.store.store import Store
from lm.training.cell import check, with_seed
from lm.training.process import Execution
from lm.training.train import train

PART = '''"""Parts of my own."""

import torch

from own.deep import helper
from own.deep.inner import power

# a comment


class Square(helper.Base):
    """relu(x)^2."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """Squares."""
        return power(x.relu(), 2.0)
'''
HELPER = '''from lm.model.mlp import MLP


class Base(MLP):
    """A layer between two maps."""

    def __init__(self, shape, expansion: float = 2.0) -> None:
        super().__init__(shape, expansion)
'''
INNER = """from . import unused_by_nobody
from .. import constants


def power(x, exponent):
    return x.pow(exponent) * constants.SCALE
"""
FILES = {
    "own/__init__.py": "",
    "own/parts.py": PART,
    "own/deep/__init__.py": "",
    "own/deep/helper.py": HELPER,
    "own/deep/inner.py": INNER,
    "own/deep/unused_by_nobody.py": "TABLE = [1, 2]\n",
    "own/constants.py": "SCALE = 1.0\n",
    "own/apart.py": "NOTHING = 0\n",
}


def forget() -> None:
    """As a new process would begin."""
    for name in [name for name in sys.modules if name.split(".")[0] == "own"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    fingerprints._first_versions.clear()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of a user's own, outside any installed package."""
    folder = tmp_path / "project"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    yield folder
    forget()


def cls() -> Any:
    return importlib.import_module("own.parts").Square


def change(own: Path, name: str, old: str, new: str) -> str:
    """The class's fingerprint in a new process after a change."""
    path = own / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forget()
    return fingerprint(cls())


def test_exactly_the_dependencies_of_a_class_are_found(own: Path) -> None:
    expected = {name for name in FILES if name != "own/apart.py"}
    assert {path.relative_to(own).as_posix() for path in source_files(cls()).values()} == expected
    assert project_folder(cls()) == own


def test_words_and_layout_do_not_count(own: Path) -> None:
    before = fingerprint(cls())
    assert change(own, "own/parts.py", "# a comment", "# another, longer comment\n") == before
    assert change(own, "own/parts.py", "relu(x)^2.", "The square of what is above zero.") == before
    assert change(own, "own/apart.py", "0", "1") == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("own/parts.py", "2.0", "3.0"),
        ("own/parts.py", "2.0", "2"),
        ("own/parts.py", "x.relu()", "x.relu() * 0.0"),
        ("own/deep/helper.py", "= 2.0", "= 3.0"),
        ("own/deep/inner.py", "x.pow", "x.float_power"),
        ("own/deep/unused_by_nobody.py", "2", "3"),
        ("own/constants.py", "1.0", "1.5"),
        ("own/__init__.py", "", "import os"),
    ],
)
def test_a_change_anywhere_in_the_code_behind_it_counts(own: Path, name: str, old: str, new: str) -> None:
    before = fingerprint(cls())
    assert change(own, name, old, new) != before


def test_the_same_code_elsewhere_is_the_same(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(cls())
    shutil.move(own, tmp_path / "moved")
    monkeypatch.syspath_prepend(str(tmp_path / "moved"))
    forget()
    assert fingerprint(cls()) == before


def test_an_installed_package_is_known_by_its_version() -> None:
    assert fingerprint(torch.optim.NAdam) == f"torch {torch.__version__.partition('+')[0]}"
    assert source_files(torch.optim.NAdam) == {}
    assert project_folder(torch.optim.NAdam) is None


def test_the_fingerprint_does_not_depend_on_the_version_of_python(own: Path) -> None:
    """Pinned: whoever runs this on another version of Python gets the same."""
    assert fingerprint(cls()) == "b87bb2cf03f04707ddeb35ea8a4022cda754591e238fe6ac5cbe30894bd555a3"


def test_a_file_that_changed_under_a_loaded_module_is_refused(own: Path, refused: Refused) -> None:
    fingerprint(cls())
    (own / "own/constants.py").write_text("SCALE = 10.0\n")
    with refused():
        fingerprint(cls())


def tree(steps: int = 4) -> Any:
    return override(RUN, {"model.mlp": "own.parts.Square", "trainer.max_steps": steps, "trainer.val_check_interval": 4})


def test_a_cell_is_another_when_its_code_is(own: Path) -> None:
    first = check(tree())
    assert code_of(first.config).keys() == {"own.parts.Square"}
    assert check(tree()).id == first.id
    assert with_seed(first, 0).id == first.id
    change(own, "own/constants.py", "1.0", "0.0")
    assert check(tree()).id != first.id


@pytest.mark.slow
def test_cells_of_the_package_alone_keep_their_ids() -> None:
    """A reference cell, made before code was part of an identity."""
    cell, config = next((cell, text) for cell, text in references.named("config.yaml").items() if "MarkovText" in text)
    assert check(yaml.safe_load(config)).id == cell


@pytest.mark.slow
def test_a_cell_keeps_the_code_that_it_was_trained_with(own: Path, tmp_path: Path) -> None:
    store, cell = Store(tmp_path / "out"), check(tree())
    train(cell, store, lambda *_: None, Execution())
    record = store.record(cell.id)
    assert record["status"] == "ok", record["error"]
    kept = {path.name: path.read_text() for path in (store.directory(cell.id) / "code").glob("*.py")}
    assert kept == {
        "module." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") + ".py": content
        for name, content in FILES.items()
        if name != "own/apart.py"
    }
    assert known(record["provenance"]["code"])["own.parts.Square"]["known_by"] == fingerprint(cls())


@pytest.mark.slow
def test_changed_code_is_not_trained_under_its_id(own: Path, tmp_path: Path, check_message: CheckMessage) -> None:
    store, cell = Store(tmp_path / "out"), check(tree())
    change(own, "own/constants.py", "1.0", "0.0")
    with pytest.raises(InputError) as refusal:
        train(cell, store, lambda *_: None, Execution())
    check_message(str(refusal.value))
    assert not store.finished(cell.id), "nothing failed that has this id"
    change(own, "own/constants.py", "0.0", "1.0")
    train(cell, store, lambda *_: None, Execution())
    assert store.record(cell.id)["status"] == "ok"


@pytest.mark.slow
def test_the_checkout_of_a_project_is_recorded_with_its_changes(own: Path, tmp_path: Path) -> None:
    git = f"git -C {own} -c user.name=a -c user.email=a@b -c commit.gpgsign=false"
    assert os.system(f"{git} init -q && {git} add . && {git} commit -qm first") == 0
    change(own, "own/constants.py", "1.0", "2.0")
    store, cell = Store(tmp_path / "out"), check(tree())
    train(cell, store, lambda *_: None, Execution())
    origin = known(known(store.record(cell.id)["provenance"]["code"])["own.parts.Square"]["git"])
    assert origin["dirty"] is True
    assert len(known(origin["commit"])) == 40
    diff = (store.directory(cell.id) / "code/changes.diff").read_text()
    assert "-SCALE = 1.0\n+SCALE = 2.0" in diff
