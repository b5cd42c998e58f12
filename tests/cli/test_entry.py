"""What the command line answers beside a command's own code: interrupts, exits, audits, and nothing to do."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from helpers import Capture, Patch
from interrupting import listening, press_unheard
from messages import CheckMessage

from lm.cli.commands import commands
from lm.cli.entry import main
from lm.config.tree import InputError


@pytest.fixture
def raising(monkeypatch: Patch) -> Callable[[Callable[[], NoReturn]], None]:
    """Has every command end in what a function raises."""

    def set_up(raises: Callable[[], NoReturn]) -> None:
        monkeypatch.setattr("lm.cli.entry._run", lambda *_: raises())

    return set_up


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def interrupted_by_lightning() -> NoReturn:
    try:
        interrupt()
    except KeyboardInterrupt:
        raise SystemExit(1)  # noqa: B904 - as Lightning does


@pytest.mark.parametrize("raises", [interrupt, interrupted_by_lightning])
def test_an_interrupt_prints_one_line_and_exits_130(
    raising: Any, capsys: Capture, raises: Any, check_message: CheckMessage
) -> None:
    raising(raises)
    for command in ("report", "ablate"):
        assert main([command, "quickstart"]) == 130
        check_message(capsys.readouterr().err)


@pytest.mark.parametrize(("command", "tasks"), [("fit", "4"), ("ablate", None), ("sweep", None), ("count", None)])
def test_only_a_run_is_shared_by_the_tasks_of_slurm(command: str, tasks: str | None, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert main([command, "none.yaml"]) == 2
    assert os.environ.get("SLURM_NTASKS") == tasks


def end_by_sigterm() -> NoReturn:
    signal.raise_signal(signal.SIGTERM)
    raise AssertionError("went on")


def test_a_signal_prints_its_name_and_exits_130(raising: Any, capsys: Capture, check_message: CheckMessage) -> None:
    raising(end_by_sigterm)
    with listening():
        assert main(["fit", "char_tiny"]) == 130
    check_message(capsys.readouterr().err)


EARLY = """
import signal, sys
module, name = sys.argv[1:]
sys.argv[1:] = ["fit", "char_tiny"]
class Watched:
    def find_spec(self, imported, *_):
        if imported == module:
            signal.raise_signal(signal.Signals[name])
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from lm.cli import main
sys.meta_path.insert(0, Watched())
sys.exit(main())
"""
"""Run a command in which a signal comes as a module is imported."""


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [("lm.cli.entry", "SIGINT"), ("torch", "SIGTERM")])
def test_a_signal_that_comes_early_is_a_line(
    module: str, name: str, tmp_path: Path, check_message: CheckMessage
) -> None:
    command = [sys.executable, "-c", EARLY, module, name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    check_message(done.stderr)


LATE = """
import atexit, signal, sys
number, moment = signal.Signals[sys.argv[1]], sys.argv[2]
sys.argv[1:] = ["completon"]
class Watched:
    def find_spec(self, imported, *_):
        if imported == "lm.cli.entry":
            atexit.register(signal.raise_signal, number)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
if moment == "last":
    atexit.register(signal.raise_signal, number)
else:
    sys.meta_path.insert(0, Watched())
from lm.cli import main
sys.exit(main())
"""
"""Run a command that there is not, in which a signal comes as Python ends."""


@pytest.mark.parametrize(("name", "moment"), [("SIGTERM", "first"), ("SIGINT", "last")])
def test_a_signal_that_comes_as_the_process_ends_changes_nothing(name: str, moment: str, capsys: Capture) -> None:
    done = subprocess.run([sys.executable, "-c", LATE, name, moment], capture_output=True, text=True, check=False)
    assert done.returncode == main(["completon"]) == 2
    assert done.stderr == capsys.readouterr().err


def test_an_exit_of_the_code_itself_is_left_alone(raising: Any) -> None:
    def leave() -> NoReturn:
        raise SystemExit(7)

    raising(leave)
    with pytest.raises(SystemExit) as caught:
        main(["list"])
    assert caught.value.code == 7


@pytest.mark.parametrize("debug", [False, True])
def test_debug_shows_the_traceback_of_bad_input(raising: Any, capsys: Capture, debug: bool) -> None:
    def refuse() -> NoReturn:
        try:
            int("x")
        except ValueError as error:
            raise InputError(f"no number: {error}") from None
        raise AssertionError("x is a number")

    raising(refuse)
    assert main(["list", *(["--debug"] if debug else [])]) == 2
    said = capsys.readouterr().err
    assert said.endswith("lm: no number: invalid literal for int() with base 10: 'x'\n")
    assert ("Traceback" in said, "ValueError" in said) == (debug, debug)


def test_training_reports_an_interrupt_that_code_swallowed(
    monkeypatch: Patch, tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    def run(options: Any, overrides: Any) -> int:
        press_unheard()
        return 0

    monkeypatch.setattr(commands()["ablate"], "run", run)
    with listening():
        assert main(["ablate", "quickstart", "--out", str(tmp_path)]) == 130
    check_message(capsys.readouterr().err)
