"""Answers in the cache folder: computed once for a version of the code, never taken from a damaged file."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from messages import Refused

from lm.store import user_cache

Patch = pytest.MonkeyPatch


@pytest.fixture
def package(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A package of one file, whose answers are kept in a folder of the test; nothing slow is imported."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(user_cache, "SLOW", ())
    monkeypatch.setattr(user_cache, "_versions", [])
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("x = 1\n")
    return tmp_path / "package"


def numbers() -> Iterator[int]:
    """Count the calls."""
    yield from range(100)


def test_an_answer_is_computed_once_for_a_question(package: Path) -> None:
    calls = numbers()
    asked = [user_cache.remember("kind", question, lambda: next(calls)) for question in (["a"], ["a"], ["b"], ["a"])]
    assert asked == [0, 0, 1, 0]


def test_other_code_and_other_versions_compute_anew(package: Path, monkeypatch: Patch) -> None:
    calls = numbers()

    def ask() -> int:
        return user_cache.remember("kind", None, lambda: next(calls))

    assert [ask(), ask()] == [0, 0]
    (package / "part.py").write_text("x = 2\n")
    assert [ask(), ask()] == [1, 1]
    (package / "new.py").write_text("")
    assert [ask(), ask()] == [2, 2]
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"of another {name}")
    assert [ask(), ask()] == [3, 3]
    monkeypatch.setattr("sys.version", "4.0")
    assert [ask(), ask()] == [4, 4]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "\0", '{"version": 1, "answer": 99}'])
def test_a_damaged_answer_is_computed_anew(package: Path, content: str) -> None:
    calls = numbers()
    assert user_cache.remember("kind", None, lambda: next(calls)) == 0
    (path,) = user_cache.cache_folder().rglob("*.json")
    path.write_text(content)
    assert [user_cache.remember("kind", None, lambda: next(calls)) for _ in range(2)] == [1, 1]


def test_an_edited_answer_is_computed_anew(package: Path) -> None:
    user_cache.remember("kind", None, lambda: "first")
    (path,) = user_cache.cache_folder().rglob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "answer": "edited"}))
    assert user_cache.remember("kind", None, lambda: "second") == "second"


def test_code_that_is_edited_while_it_computes_is_not_remembered(package: Path) -> None:
    def edit() -> str:
        (package / "part.py").write_text("x = 3\n")
        return "of the old code"

    user_cache.remember("kind", None, edit)
    assert user_cache.remember("kind", None, lambda: "of the new") == "of the new"


def test_a_process_that_imported_the_code_before_computes(package: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(user_cache, "SLOW", ("json",))
    calls = numbers()
    assert [user_cache.remember("kind", None, lambda: next(calls)) for _ in range(2)] == [0, 1]
    assert user_cache.running_version() is None
    assert not user_cache.cache_folder().exists()


def test_a_process_that_asked_before_it_imported_the_code_remembers(package: Path, monkeypatch: Patch) -> None:
    calls = numbers()

    def ask(question: str) -> int:
        return user_cache.remember("kind", question, lambda: next(calls))

    assert user_cache.running_version() == user_cache.code_version()
    assert ask("before") == 0
    monkeypatch.setattr(user_cache, "SLOW", ("json",))
    assert [ask("after"), ask("after"), ask("before")] == [1, 1, 0]
    (package / "part.py").write_text("x = 4\n")
    assert [ask("after"), ask("after"), ask("before")] == [2, 3, 4], "the code that it imported is older"
    (package / "part.py").write_text("x = 1\n")
    assert ask("after") == 1


def test_a_cache_that_cannot_be_used_is_left_alone(package: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "file" / "cache"))
    assert user_cache.remember("kind", None, lambda: 5) == 5


def test_files_of_editors_are_no_code(package: Path) -> None:
    version = user_cache.code_version()
    (package / ".part.py.swp").write_text("")
    (package / ".#part.py").symlink_to("user@host.4711")
    (package / "gone.py").symlink_to("nowhere")
    assert user_cache.code_version() == version


def test_a_question_that_is_no_text_is_not_remembered(package: Path) -> None:
    calls = numbers()
    assert [user_cache.remember("kind", "/results/\udcff", lambda: next(calls)) for _ in range(2)] == [0, 1]


def test_a_user_without_a_home_folder_names_the_cache(package: Path, monkeypatch: Patch, refused: Refused) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_cache.cache_folder().name == "cache"
    monkeypatch.delenv("LM_CACHE")
    with refused():
        user_cache.cache_folder()


@pytest.mark.extra
def test_components_are_listed_without_torch_the_second_time(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    code = (
        "import sys; from lm.cli import main; main(['list', *sys.argv[1:]]); "
        "print({'torch', 'lightning'} & {*sys.modules})"
    )

    def lists(*arguments: str) -> tuple[str, bool]:
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        *lines, modules = done.stdout.splitlines()
        return "\n".join(lines), modules != "set()"

    first, imported = lists()
    assert imported
    assert lists() == (first, False)
    names = [entry["name"] for entry in json.loads(lists("--json")[0])["model.position"]]
    assert "Rope" in names
    assert all(f"  {name}(" in first for name in names)
