"""Results that belong to another user, and folders for temporary files that cannot be used: one line, and no trace."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helpers import Capture, Patch
from ladders import make_ladder
from messages import RefusedCommand
from powerless import close, drop_rights, reason

from faults.place import EXPERIMENT, SWEEP, files
from lm.cli import main

MakeExperiment = Callable[..., Path]
CELLS = {"base": [2.0, 2.1], "better": [1.8, 1.9]}

READ, CLOSED = 0o755, 0o700
"""Modes of a folder of another user: all may read, nobody may do anything."""


@pytest.fixture(scope="module")
def bound() -> None:
    """Leave tests out where permissions bind no process."""
    if why := reason():
        pytest.skip(why)


@pytest.fixture
def closed(experiment: MakeExperiment) -> Iterator[Callable[[int], Path]]:
    """Make a folder of results that belongs to another user, with the mode that is asked for."""
    out = experiment(CELLS).parent

    def make(mode: int) -> Path:
        close(out, mode)
        return out

    yield make
    if os.geteuid() != 0:
        os.chmod(out, READ)


def answer(*arguments: object) -> tuple[int, list[str]]:
    """Run `lm` as a user who owns none of the results; return its exit code and the lines of what it said."""
    command = [sys.executable, "-P", "-m", "lm", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, preexec_fn=drop_rights, timeout=300, check=False
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def content(folder: Path) -> dict[str, bytes]:
    """Return what lies below a folder, by its path."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.usefixtures("bound")
@pytest.mark.extra
@pytest.mark.parametrize(
    ("arguments", "mode", "words"),
    [
        (["ls", "{out}"], CLOSED, "{out}: cannot be read"),
        (["status", "{out}"], CLOSED, "{out}: cannot be read"),
        (["diff", "demo/base", "demo/better", "--out", "{out}"], CLOSED, "{out}: cannot be read"),
        (["report", "{out}/demo"], CLOSED, "{out}/demo: Permission denied"),
        (["ablate", EXPERIMENT, "--out", "{out}"], CLOSED, "--out {out}: {out} cannot be written to"),
        (["ablate", EXPERIMENT, "--out", "{out}"], READ, "--out {out}: {out} cannot be written to"),
        (["ablate", EXPERIMENT, "--out", "{out}/deep"], READ, "--out {out}/deep: {out} cannot be written to"),
        (["sweep", SWEEP, "--out", "{out}"], READ, "--out {out}: {out} cannot be written to"),
        (["fit", "base", "--out", "{out}"], READ, "--out {out}: {out} cannot be written to"),
    ],
    ids=str,
)
def test_another_users_results_are_refused_and_kept(
    closed: Callable[[int], Path], tmp_path: Path, arguments: list[str], mode: int, words: str
) -> None:
    for name, tree in files().items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    out = closed(mode)
    before = content(out) if os.geteuid() == 0 else {}
    named = [str(tmp_path / f"{one}.yaml") if one in files() else one.format(out=out) for one in arguments]
    code, (line,) = answer(*named)
    assert code == 2
    assert line.removesuffix(" (Permission denied)") == f"lm: {words.format(out=out)}"
    assert (content(out) if os.geteuid() == 0 else {}) == before


@pytest.mark.slow
@pytest.mark.usefixtures("bound")
def test_results_of_another_user_that_may_be_read_are_shown(closed: Callable[[int], Path]) -> None:
    code, lines = answer("ls", closed(READ))
    assert (code, lines[-1]) == (0, "4 runs")


# temporary files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: Patch) -> None:
    """Leave no folder in which temporary files could be written."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none", "/proc"])


@pytest.mark.parametrize("command", ["ablate", "sweep", "fit"])
@pytest.mark.usefixtures("nowhere")
def test_training_without_a_folder_for_temporary_files_is_refused(
    tmp_path: Path, command: str, refused_command: RefusedCommand
) -> None:
    refused_command([command, tmp_path / "small.yaml", "--out", tmp_path / "out"])
    assert not (tmp_path / "out").exists()


def test_a_pack_without_a_folder_for_temporary_files_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, refused_command: RefusedCommand
) -> None:
    pack = tmp_path / "climb.lmpack"
    assert main(["pack", str(make_ladder(tmp_path / "out", seeds=(2, 2))), "--out", str(pack)]) == 0
    request.getfixturevalue("nowhere")
    refused_command(["report", pack])


@pytest.mark.parametrize("command", ["report", "unpack"])
def test_a_pack_without_room_to_unpack_is_one_line(tmp_path: Path, capsys: Capture, command: str) -> None:
    pack, out = tmp_path / "climb.lmpack", tmp_path / "new"
    assert main(["pack", str(make_ladder(tmp_path / "out", seeds=(2, 2))), "--out", str(pack)]) == 0
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        code = main([command, str(pack), "--out", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert os.strerror(errno.EFBIG) in line
    assert line.startswith(f"lm: {tempfile.gettempdir() if command == 'report' else out}/")
    assert not [path for path in out.rglob("*") if path.is_file()]
