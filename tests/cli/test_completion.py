"""`lm completion`: what shells complete after `lm`."""

import os
import pty
import select
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from helpers import Capture, refused

from lm.cli import main
from lm.cli.commands import commands
from lm.cli.commands.about import names_by_argument
from lm.cli.entry import parsers

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, capsys: Capture) -> str:
    """What the command prints for a shell."""
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_knows_commands_and_what_is_shipped(shell: str, capsys: Capture) -> None:
    text = script(shell, capsys)
    for word in ("quickstart", "char_tiny", "learning_rate", "doctor", "retry-failed"):
        assert word in text
    refused(capsys, ["completion", "cmd"], "fish")


def test_arguments_with_names_are_positional_and_the_names_unique() -> None:
    for (command, argument), names in names_by_argument(list(commands())).items():
        (action,) = [action for action in parsers()[1][command]._actions if action.dest == argument]
        assert not action.option_strings
        assert len(set(names)) == len(names) > 0


# in the shells themselves --------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, capsys: Capture) -> Path:
    """A folder with files to choose from, and the scripts in another."""
    here = tmp_path / "here"
    for name in ("quick.yaml", "quiet.txt", "folder/inner.yaml"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("")
    for shell in SHELLS:
        (tmp_path / shell).write_text(script(shell, capsys))
    return here


CASES = {
    "lm abl": ({"ablate"}, {"audit", "ls"}),
    "lm ablate qui": ({"quickstart", "quick.yaml"}, {"quiet.txt", "learning_rate"}),
    "lm ablate fol": ({"folder"}, set()),
    "lm ablate folder/in": ({"folder/inner.yaml"}, {"quick.yaml"}),
    "lm ablate quickstart --retry": ({"--retry-failed"}, {"--plan"}),
    "lm fit char": ({"char_tiny"}, {"quickstart"}),
    "lm sweep learn": ({"learning_rate"}, set()),
    "lm status fol": ({"folder"}, {"quick.yaml"}),
    "lm help com": ({"completion"}, {"count"}),
    "lm schema exp": ({"experiment"}, set()),
    "lm generate results --cache no": ({"none"}, {"full"}),
}


def judge(typed: str, offered: set[str]) -> None:
    wanted, unwanted = CASES[typed]
    offered = {word.rstrip("/") for word in offered}
    assert wanted <= offered, typed
    assert not unwanted & offered, typed


@pytest.mark.slow
def test_bash_completes(place: Path) -> None:
    for typed in CASES:
        words = typed.split(" ")
        code = (
            f"source ../bash; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
            f"COMP_LINE={shlex.quote(typed)}; COMP_POINT={len(typed)}; _shtab_lm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(["bash", "-c", code], cwd=place, capture_output=True, text=True, check=True)
        judge(typed, set(done.stdout.splitlines()))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(place: Path) -> None:
    home = {**os.environ, "HOME": str(place.parent), "XDG_CONFIG_HOME": str(place.parent)}
    for typed in CASES:
        command = ["fish", "-c", f"source ../fish; complete -C {shlex.quote(typed)}"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, env=home)
        judge(typed, {line.split("\t")[0] for line in done.stdout.splitlines()})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize("typed", CASES)
def test_zsh_completes(place: Path, typed: str) -> None:
    (place.parent / "functions").mkdir()
    (place.parent / "zsh").rename(place.parent / "functions" / "_lm")
    (place.parent / ".zshrc").write_text("fpath+=../functions; autoload -Uz compinit; compinit -D -u; print re''ady\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execvpe("zsh", ["zsh", "-i"], {**os.environ, "ZDOTDIR": str(place.parent), "TERM": "dumb", "COLUMNS": "200"})
    try:
        until(terminal, "ready")
        os.write(terminal, f"{typed}\t\t\t".encode())
        wanted, unwanted = CASES[typed]
        shown = until(terminal, *wanted)
        assert all(word in shown for word in wanted)
        assert not any(word in shown for word in unwanted)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def until(terminal: int, *words: str) -> str:
    """What a terminal shows until all the words are there, or for half a minute."""
    shown, end = "", time.monotonic() + 30
    while not all(word in shown for word in words) and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
