"""The entry point of `lm`: parse the command line and its settings, run the command, print errors as one line."""

import argparse
import atexit
import contextlib
import functools
import gc
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

from lm import __version__
from lm.cli.commands import commands
from lm.cli.options import Parser
from lm.config.imported import current_folder_modules, trusted_only
from lm.config.tree import InputError, parse_value
from lm.config.usual_names import suggest
from lm.execution.signal_handling import INTERRUPTED, cause, ended_by_signals
from lm.store.files import DISK_ERRORS, PATH_ERRORS, explain_disk_error, temporary_folder
from lm.store.leases import LostError
from lm.training.process import is_interrupt, leave_slurm_job

EXIT_BAD_INPUT = 2
EXIT_INCOMPLETE = 1
DEBUG, TRUSTED = "--debug", "--trusted-only"
TRAINING = ("fit", "ablate", "sweep", "reproduce")


@functools.cache
def parsers() -> tuple[Parser, dict[str, Parser]]:
    """Build the parser of a command line, and return it with those of the commands by name."""
    about = "Ablations for transformer language models: paired, honest, resumable."
    top = Parser(prog="lm", description=about, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"lm {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of any error; anywhere in the command")
    top.add_argument(
        "--trusted-only", action="store_true", help="refuse every class that is not part of lm; anywhere in the command"
    )
    inner = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    by_name: dict[str, Parser] = {}
    for name, command in commands().items():
        by_name[name] = inner.add_parser(
            name,
            help=command.about,
            description=f"{command.about[:1].upper()}{command.about[1:]}.".replace("%", "%%"),
            epilog="examples:\n" + "\n".join(f"  {example}" for example in command.examples).replace("%", "%%"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            usage=command.usage,
            allow_abbrev=False,
        )
        by_name[name].settable = command.settable
        for add_option in command.options:
            add_option(by_name[name])
    return top, by_name


SET = re.compile(r"--set=([^=]+)=(.*)", re.DOTALL)
SECTIONS = "data|model|optim|trainer|evaluate|seed|data_seed"  # keys at the top of a configuration
DASHED = re.compile(rf"--({SECTIONS}|[^=]*\.[^=]*)(?:=(.*))?", re.DOTALL)
BARE = re.compile(rf"({SECTIONS}|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)=(.*)", re.DOTALL)
"""Settings, as in `--set optim.lr=3e-4`, `--optim.lr=3e-4` or `--optim.lr 3e-4`, and `optim.lr=3e-4`."""


def split_settings(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split a command line into other arguments and settings, if the command takes any. Raises InputError."""
    command = commands().get(next(iter(arguments), ""))
    if command is None or not command.settable:
        return list(arguments), {}
    others, settings, queue = [arguments[0]], dict[str, Any](), list(arguments[1:])
    options = parsers()[1][arguments[0]]._option_string_actions
    while queue:
        argument = queue.pop(0)
        if argument == "--set":
            argument = f"--set={queue.pop(0) if queue else ''}"
        match = SET.fullmatch(argument) or DASHED.fullmatch(argument)
        if match is None and (others[-1] not in options or options[others[-1]].nargs == 0):  # not an option's value
            match = BARE.fullmatch(argument)
        if match is None and argument.startswith("--set="):
            raise InputError(f"{argument}: expected KEY=VALUE, as in --set optim.lr=3e-4".replace("=", " ", 1))
        if match is None:
            others.append(argument)
            continue
        key, text = match[1].strip(), match[2]
        if text is None and (not queue or queue[0].startswith("--")):
            raise InputError(f"{argument}: needs a value, as in {argument}=VALUE")
        settings[key] = parse_value(queue.pop(0) if text is None else text, key)
    return others, settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; return its exit code."""
    if arguments is None:
        gc.set_threshold(50_000, 20, 20)  # seldom, as torch has many objects that stay
        atexit.register(gc.freeze)
    everything = list(sys.argv[1:] if arguments is None else arguments)
    others, debug = [argument for argument in everything if argument not in (DEBUG, TRUSTED)], DEBUG in everything
    name = next(iter(others), "")
    try:
        try:
            with ended_by_signals(), trusted_only(TRUSTED in everything), current_folder_modules():
                return _run(others, debug)
        finally:  # at the exit of the interpreter an error could not be handled
            if sys.stdout is not None:
                sys.stdout.flush()
    except (InputError, LostError) as error:
        if debug:
            _print_traceback(error)
        print(f"lm: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_INCOMPLETE
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error.__context__, BrokenPipeError):  # of rich
            return _broken_pipe_exit_code(error, name)
        if isinstance(error, SystemExit) and not is_interrupt(error):
            raise
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"lm: {cause()}; {_resume_hint(name)}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return _broken_pipe_exit_code(error, name)
        if error.errno not in DISK_ERRORS | PATH_ERRORS:
            raise
        if debug:
            _print_traceback(error)
        print(f"lm: {explain_disk_error(error, _resume_hint(name))}", file=sys.stderr)
        return EXIT_INCOMPLETE if error.errno in DISK_ERRORS else EXIT_BAD_INPUT


def _resume_hint(name: str) -> str:
    """Return what a stopped command does when it is run again."""
    return f"the same command {'resumes where this one stopped' if name in TRAINING else 'starts again'}"


def _print_traceback(error: BaseException) -> None:
    """Print the traceback of an error with those of its causes, suppressed ones included."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__suppress_context__ = False
        cause = cause.__cause__ or cause.__context__
    traceback.print_exception(error)


def _run(arguments: list[str], debug: bool) -> int:
    name = next(iter(arguments), "")
    if name and not name.startswith("-") and name not in commands():
        near = suggest(name, list(commands()), "commands")
        raise InputError(f"no command {name!r}.{near} Choose from {', '.join(commands())}")
    others, settings = split_settings(arguments)
    options = parsers()[0].parse_args(others, argparse.Namespace(arguments=tuple(arguments), debug=debug))
    if options.command is None:
        parsers()[0].print_help()
        return 0
    run = commands()[options.command].run
    if options.command != "fit":  # whose tasks train one cell together
        leave_slurm_job()
    if options.command not in TRAINING:
        return run(options, settings)
    from lm.data.cache import keep_compiled_code
    from lm.store.user_cache import running_version

    running_version()  # before torch is imported
    keep_compiled_code()  # before torch is imported, which would choose a folder itself
    temporary_folder()  # processes need one
    return run(options, settings)


def _broken_pipe_exit_code(error: BaseException, command: str) -> int:
    """Return the exit code after a closed pipe: 0, as in `lm report X | head`, unless training lost standard error.

    Raises `error` again if another pipe caused it. Before it exits, rich puts the null device in the place of
    standard output.
    """
    closed = [stream for stream in (sys.stdout, sys.stderr) if _is_closed_pipe(stream)]
    if not closed and isinstance(error, BrokenPipeError):
        raise error
    for stream in closed:  # what their buffers hold is written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 128 + signal.SIGPIPE if sys.stderr in closed and command in TRAINING else 0


def _is_closed_pipe(stream: TextIO | None) -> bool:
    """Return True if a stream is a pipe whose reader has closed it."""
    if stream is None:
        return False
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors are always reported
        return bool(poll.poll(0))
    except (OSError, ValueError):  # not a file of the operating system
        return False
