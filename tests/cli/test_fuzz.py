"""No input ends in a traceback, a hang or more than one line; nothing but what was asked for is written."""

import itertools
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fuzz
import pytest
from cases import share
from helpers import Patch
from records import record

import lm.ablation.project
import lm.execution.single_run
from lm.cli import main
from lm.store.store import Store

MODULES = {"exits.py": "raise SystemExit(0)\n", "fails.py": "raise KeyError('no')\n"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """A folder to run cases in, which train nothing."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "text.txt").write_text(fuzz.TEXT)
    os.mkfifo(place / "pipe")
    for name, content in MODULES.items():
        (place / name).write_text(content)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(lm.execution.single_run, "train", lambda *_, **__: None)
    monkeypatch.setattr(lm.ablation.project, "write_atomic", lambda *_: None)  # wherever it is told to write
    yield place
    os.unlink(place / "pipe")


def prepare(place: Path, kind: str, files: dict[str, bytes]) -> None:
    """Makes the files of a case, and finished cells for those that read some."""
    shutil.rmtree(place / "out", ignore_errors=True)
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    if kind in ("report", "trace", "status", "ls", "diff", "evaluate", "generate", "translate"):
        store = Store(place / "out")
        for cell, seed in ((f"{arm}-{seed}", seed) for arm in "ab" for seed in range(3)):
            store.finish(cell, record(cell, 2.0 - 0.1 * seed, seed))
            (store.directory(cell) / "config.yaml").write_text(f"seed: {seed}\n")


def tree(place: Path, *left_out: str) -> set[str]:
    """All paths under a folder but those in folders to leave out."""
    paths = (path.relative_to(place) for path in place.rglob("*"))
    return {str(path) for path in paths if path.parts[0] not in left_out}


@pytest.mark.extra
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", fuzz.COMMANDS)
def test_damaged_input_is_one_line(folder: Path, kind: str, record_property: Callable[[str, object], None]) -> None:
    wrong, numbers = [], range(max(1, share("commands") // len(fuzz.COMMANDS)))
    record_property("cases", len(numbers))
    for number in numbers:
        arguments, files = fuzz.command(kind, random.Random(f"{kind} {number}"))
        prepare(folder, kind, files)
        before, inside = tree(folder.parent, "place"), tree(folder, "out")
        problem = fuzz.outcome(arguments)
        outs = [value for flag, value in itertools.pairwise(arguments) if flag == "--out"]
        after = tree(folder.parent, "place") - before | tree(folder, "out") - inside - {"results"}
        if after and not ((kind in ("fit", "based") or outs) and outs[-1:] != ["out"]):  # it may write there
            problem += f"\nwritten: {sorted(after)[:5]}"
        if problem:
            wrong.append(f"case {number}: {arguments!r:.200}\n{problem}")
    assert not wrong, f"{len(wrong)} cases:\n" + "\n".join(wrong)


@pytest.mark.extra
def test_what_nothing_was_done_to_is_accepted(folder: Path) -> None:
    files = {name: fuzz.written(name, content) for name, content in fuzz.valid_files().items()}
    for kind, (arguments, _) in fuzz.COMMANDS.items():
        if kind not in ("evaluate", "generate", "translate", "export", "import"):  # those need a trained model
            prepare(folder, kind, files)
            assert main(arguments) == 0, kind
