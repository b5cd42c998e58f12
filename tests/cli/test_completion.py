"""`lm completion`: what shells complete after `lm`."""

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import Capture, Patch

from lm.cli import main
from lm.cli.commands import commands
from lm.cli.commands.completion import names_by_argument, script
from lm.cli.entry import parsers

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_knows_commands_and_what_is_shipped(shell: str, capsys: Capture) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("quickstart", "char_tiny", "learning_rate", "doctor", "retry-failed", "_lm_ablate_spec_or_file"):
        assert word in text


def test_arguments_with_names_are_positional_and_the_names_unique() -> None:
    for (command, argument), names in names_by_argument(list(commands())).items():
        (action,) = [action for action in parsers()[1][command]._actions if action.dest == argument]
        assert not action.option_strings
        assert names
        assert len(set(names)) == len(names)


def test_a_shell_that_is_not_known_is_one_line(capsys: Capture) -> None:
    assert main(["completion", "cmd"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "fish" in said.err


def test_without_shtab_there_is_one_line(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == (
        "lm: lm completion: needs the package shtab; install it with: pip install shtab\n"
    )


# in the shells themselves --------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with files to choose from, and the scripts in another."""
    here = tmp_path / "here"
    for name in ("quick.yaml", "quiet.txt", "folder/inner.yaml"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("")
    for shell in SHELLS:
        (tmp_path / shell).write_text(script(shell))
    return here


CASES = {
    "lm abl": ({"ablate"}, {"audit", "ls"}),
    "lm ablate qui": ({"quickstart", "quick.yaml"}, {"quiet.txt", "learning_rate"}),
    "lm ablate fol": ({"folder"}, set()),
    "lm ablate quickstart --retry": ({"--retry-failed"}, {"--plan"}),
    "lm fit char": ({"char_tiny"}, {"quickstart"}),
    "lm sweep learn": ({"learning_rate"}, set()),
    "lm status fol": ({"folder"}, {"quick.yaml"}),
    "lm help com": ({"completion"}, {"count"}),
    "lm schema exp": ({"experiment"}, set()),
    "lm generate results --cache no": ({"none"}, {"full"}),
}
cases = pytest.mark.parametrize("typed", list(CASES))


def judge(typed: str, offered: set[str]) -> None:
    wanted, unwanted = CASES[typed]
    offered = {one.rstrip("/") for one in offered}
    assert wanted <= offered
    assert not unwanted & offered


@pytest.mark.slow
@cases
def test_bash_completes(place: Path, typed: str) -> None:
    words = typed.split(" ")
    code = (
        f"source ../bash; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
        f"COMP_LINE={shlex.quote(typed)}; COMP_POINT={len(typed)}; _shtab_lm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", code], cwd=place, capture_output=True, text=True, check=True)
    judge(typed, set(done.stdout.splitlines()))


@pytest.mark.slow
@cases
def test_fish_completes(place: Path, typed: str) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("needs fish")
    code = f"source ../fish; complete -C {shlex.quote(typed)}"
    home = {**os.environ, "HOME": str(place.parent), "XDG_CONFIG_HOME": str(place.parent)}
    done = subprocess.run([fish, "-c", code], cwd=place, capture_output=True, text=True, check=True, env=home)
    judge(typed, {line.split("\t")[0] for line in done.stdout.splitlines()})


@pytest.mark.slow
@cases
def test_zsh_completes(place: Path, typed: str) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh")
    (place.parent / "functions").mkdir()
    (place.parent / "zsh").rename(place.parent / "functions" / "_lm")
    (place.parent / ".zshrc").write_text("fpath+=../functions; autoload -Uz compinit; compinit -D -u; print re''ady\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execve(zsh, [zsh, "-i"], {**os.environ, "ZDOTDIR": str(place.parent), "TERM": "dumb", "COLUMNS": "200"})
    try:
        until(terminal, "ready")
        os.write(terminal, f"{typed}\t\t\t".encode())
        wanted, unwanted = CASES[typed]
        said = until(terminal, *wanted)
        assert all(one in said for one in wanted)
        assert not any(one in said for one in unwanted)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def until(terminal: int, *words: str) -> str:
    """What a terminal shows until all the words are there, or for half a minute."""
    said, end = "", time.monotonic() + 30
    while not all(word in said for word in words) and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            said += os.read(terminal, 4096).decode(errors="replace")
    return said
