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
from lm.config.tree import InputError, nearest, parse_value
from lm.execution.signal_handling import INTERRUPTED, cause, ended_by_signals
from lm.store.files import DISK_ERRORS, PATH_ERRORS, explain_disk_error, temporary_folder
from lm.store.leases import LostError
from lm.training.process import is_interrupt

EXIT_BAD_INPUT = 2
EXIT_INCOMPLETE = 1
DEBUG, TRUSTED = "--debug", "--trusted-only"
TRAINING = ("fit", "ablate", "sweep", "reproduce")
SEEDED = (("generate", "seed"), ("ls", "seed"))
"""Commands with an option `--seed` that is no setting of a configuration."""

MAKE_TARGETS = {"audit": "make audit", "bench": "make bench", "chaos": "make faults", "verify": "make verify"}
"""Former commands that are programs of the repository, with the make target of each."""


def build_parsers() -> tuple[Parser, dict[str, Parser]]:
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
        by_name[name].settable, by_name[name].resumes = command.settable, name in TRAINING
        for add_option in command.options:
            add_option(by_name[name])
    return top, by_name


parsers = functools.cache(build_parsers)
"""The same parsers, built once in a process."""

BARE = re.compile(r"(seed|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+)=.*", re.DOTALL)
"""A setting without dashes, as in optim.lr=3e-4."""


def _add_dashes(arguments: list[str]) -> list[str]:
    """Add dashes to settings without them, if the command takes settings."""
    command = arguments[0] if arguments else ""
    if command not in commands() or not commands()[command].settable or not any(map(BARE.fullmatch, arguments)):
        return arguments
    actions = parsers()[1][command]._option_string_actions
    takes_next = [
        before.startswith("-") and "=" not in before and (before not in actions or actions[before].nargs != 0)
        for before in arguments[:-1]
    ]
    return [
        f"--{argument}" if BARE.fullmatch(argument) and not is_value else argument
        for argument, is_value in zip(arguments, [False, *takes_next], strict=True)
    ]


def _split_settings(arguments: list[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Split a command line into other arguments and settings: `--optim.lr 3e-4`, `--optim.lr=3e-4`, `--seed 1`."""
    others: list[str] = []
    overrides: list[tuple[str, Any]] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not ("." in key or key in ("seed", "data_seed")):
            others.append(argument)
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise InputError(f"{argument}: needs a value, as in {argument}=VALUE")
            text = queue.pop(0)
        overrides.append((key, parse_value(text, key)))
    return others, overrides


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
    except InputError as error:
        if debug:
            _print_traceback(error)
        print(f"lm: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except LostError as error:
        print(f"lm: {error}", file=sys.stderr)
        return EXIT_INCOMPLETE
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
    others, settings = _split_settings(_add_dashes(arguments))
    name = next(iter(others), "")
    if name in MAKE_TARGETS:
        raise InputError(f"no command {name!r}: in a clone of the repository, run {MAKE_TARGETS[name]}")
    if name and not name.startswith("-") and name not in commands():
        raise InputError(f"no command {name!r}.{nearest(name, list(commands()))} Choose from {', '.join(commands())}")
    options = parsers()[0].parse_args(others, argparse.Namespace(arguments=tuple(arguments), debug=debug))
    if options.command is None:
        parsers()[0].print_help()
        return 0
    command = commands()[options.command]
    unused = [key for key, _ in settings if (options.command, key) not in SEEDED]
    if unused and not command.settable:
        raise InputError(f"lm {options.command} takes no setting {unused[0]!r}")
    if options.command in TRAINING:
        from lm.data.cache import keep_compiled_code

        keep_compiled_code()  # before torch is imported, which would choose a folder itself
        temporary_folder()  # processes need one
    return command.run(options, dict(settings))


def _broken_pipe_exit_code(error: BaseException, command: str) -> int:
    """Return the exit code after a closed pipe: 0, as in `lm report X | head`, unless training lost standard error.

    Raises `error` again if another pipe caused it.
    """
    stderr_closed = _is_closed_pipe(sys.stderr)
    if not (stderr_closed or isinstance(error, SystemExit) or _is_closed_pipe(sys.stdout)):
        raise error
    for stream in (sys.stdout, sys.stderr) if stderr_closed else (sys.stdout,):  # their buffers are written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 128 + signal.SIGPIPE if stderr_closed and command in TRAINING else 0


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
