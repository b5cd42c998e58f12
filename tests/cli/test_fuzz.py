"""No input ends in a traceback, a hang or more than one line; nothing but what was asked for is written."""

import itertools
import os
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

FIRST, CASES = int(os.environ.get("FUZZ_FIRST", "0")), share("commands")
"""How many there are is said in tests/cases.py; FUZZ_FIRST begins with another."""

PORTIONS = 10
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


def prepare(place: Path, case: fuzz.Case) -> None:
    """Makes the files of a case, and finished cells for those that read some."""
    shutil.rmtree(place / "out", ignore_errors=True)
    for name, content in case.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    if case.kind in ("report", "trace", "status", "ls", "diff", "evaluate", "generate", "translate"):
        store = Store(place / "out")
        for arm in "ab":
            for seed in range(3):
                store.finish(f"{arm}-{seed}", record(f"{arm}-{seed}", 2.0 - 0.1 * seed, seed))
                (store.directory(f"{arm}-{seed}") / "config.yaml").write_text(f"seed: {seed}\n")


def tree(place: Path, *left_out: str) -> set[str]:
    """All paths under a folder but those in folders to leave out."""
    found = (path.relative_to(place) for path in place.rglob("*"))
    return {str(path) for path in found if path.parts[0] not in left_out}


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_damaged_input_is_one_line(folder: Path, portion: int, record_property: Callable[[str, object], None]) -> None:
    wrong, numbers = [], range(FIRST + portion, FIRST + CASES, PORTIONS)
    record_property("cases", len(numbers))
    for number in numbers:
        case = fuzz.make(number)
        prepare(folder, case)
        before, inside = tree(folder.parent, "place"), tree(folder, "out")
        found = fuzz.outcome(case)
        outs = [given for flag, given in itertools.pairwise(case.arguments) if flag == "--out"]
        told = (case.kind in ("fit", "based") or outs) and outs[-1:] != ["out"]  # it may write to where it is told
        after = tree(folder.parent, "place") - before | tree(folder, "out") - inside - {"results"}
        if after and not told:
            found += f"\nwritten: {sorted(after)[:5]}"
        if found:
            wrong.append(f"case {number} ({case.kind}): {'; '.join(case.done)}\n{found}")
    assert not wrong, f"{len(wrong)} cases:\n" + "\n".join(wrong)


def test_a_case_is_made_from_its_number_alone() -> None:
    assert fuzz.make(5) == fuzz.make(5)
    assert len({fuzz.make(number).kind for number in range(200)}) == len(fuzz.COMMANDS)


@pytest.mark.slow
def test_what_nothing_was_done_to_is_accepted(folder: Path) -> None:
    files = {name: fuzz.written(name, content) for name, content in fuzz.valid_files().items()}
    for kind, (arguments, _) in fuzz.COMMANDS.items():
        if kind in ("evaluate", "generate", "translate"):  # those need a run that was really trained
            continue
        prepare(folder, fuzz.Case(0, kind, files, arguments, []))
        assert main(arguments) == 0, kind
