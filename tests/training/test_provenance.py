"""Under what circumstances a cell was made, where there is no checkout, no git, or no accelerator."""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Patch

from lm.store.sources import hash_sources, read_sources
from lm.training.process import is_interrupt
from lm.training.provenance import (
    COMPUTING,
    ENVIRONMENT,
    OWN,
    device_name,
    git,
    git_state,
    peak_memory,
    provenance,
    source_hash,
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    named = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*named, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_a_checkout_is_its_commit_and_whether_it_holds_changes(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert commit is not None
    assert len(commit) == 40
    assert git_state(checkout) == {"commit": commit, "dirty": False}
    (checkout / "new.txt").write_text("nobody's yet\n")
    assert git_state(checkout)["dirty"] is False
    (checkout / "a.txt").write_text("two\n")
    assert git_state(checkout) == {"commit": commit, "dirty": True}


def test_outside_a_checkout_and_without_git_nothing_is_known(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) == {"commit": None, "dirty": None}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git(OWN, "status") is None


def test_git_that_never_answers_is_not_waited_for(tmp_path: Path, monkeypatch: Patch) -> None:
    def hang(*_: Any, timeout: float, **__: Any) -> None:
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert git_state(tmp_path) == {"commit": None, "dirty": None}


def test_the_source_hash_covers_the_packages_that_compute(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return hash_sources(read_sources(tmp_path, ("model", "data")))

    first = write("model/a.py", "x = 1\n")
    assert write("report/a.py", "x = 2\n") == first, "what only reports is no part of it"
    assert write("model/notes.txt", "more\n") == first
    hashes = [first, write("model/b/c.py", ""), write("data/a.py", "x = 1\n"), write("model/a.py", "x = 3\n")]
    assert len(set(hashes)) == 4
    assert write("model/a.py", "x = 1\n") == hashes[2], "nothing but what the files hold"


@pytest.mark.slow
def test_source_covers_every_room_that_a_process_which_trains_imports() -> None:
    """All but those that keep records, hold processes, or judge what was recorded."""
    code = (
        "import sys, lm.execution.forkserver_preload; "
        "print(*{m.split('.')[1] for m in sys.modules if m.startswith('lm.')}); "
        "print('transformers' in sys.modules)"
    )
    actual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=OWN.parent)
    packages, has_transformers = actual.stdout.splitlines()
    assert set(packages.split()) == {*COMPUTING, "analysis", "execution", "import_hooks", "stats", "store"}
    assert has_transformers == "False", "which torchmetrics imports for BERTScore, and which takes seconds"
    assert provenance()["source"] == source_hash() == hash_sources(read_sources(OWN, COMPUTING))


def test_the_device_is_the_accelerator_where_there_is_one(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**20)
    assert (device_name(), peak_memory()) == ("a card", 3.0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert peak_memory() > 10, "of this process, which has not used it"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_name().startswith(platform.processor() or platform.machine())


def test_processors_that_round_otherwise_have_other_names(monkeypatch: Patch) -> None:
    machine = platform.processor() or platform.machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    text = "processor\t: 0\nvendor_id\t: Maker\nvendor_id\t: Maker\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert device_name() == f"{machine}, Maker, AVX2"

    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert device_name() == f"{machine}, AVX2"


def test_provenance_has_no_times() -> None:
    actual = provenance()
    assert actual["packages"]["torch"] == torch.__version__
    assert actual["threads"] == torch.get_num_threads()
    assert not {"started", "finished", "resumed", "precision"} & set(actual)


def test_an_exit_by_an_interrupt_is_recognised() -> None:
    class SIGTERMException(SystemExit):
        pass

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SystemExit(1)  # noqa: B904 - as Lightning does

    with pytest.raises(SystemExit) as caught:
        interrupted()
    assert is_interrupt(caught.value)
    assert is_interrupt(SIGTERMException())
    assert not is_interrupt(SystemExit(0))


def test_only_listed_environment_variables_are_recorded(monkeypatch: Patch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3" * 1000)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    actual = provenance()["environment"]
    assert actual["OMP_NUM_THREADS"] == "3" * 100
    assert set(actual) <= set(ENVIRONMENT)
    assert "MKL_NUM_THREADS" not in actual
    assert "secret" not in str(provenance())
