"""The `lm` command: settings taken out of a command line, and errors answered with one line."""

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
from lm.config.imported import own_modules, trusted_only
from lm.config.tree import InputError, LessError, nearest, parse_value
from lm.execution.signal_handling import INTERRUPTED, cause, deferred_interrupts, ended_by_signals
from lm.store.disk import BROKEN, REFUSED, explain
from lm.store.leases import LostError
from lm.training.signals import by_signal

BAD_INPUT = 2
UNDONE = 1
DEBUG, TRUSTED = "--debug", "--trusted-only"
TRAINING = ("fit", "ablate", "sweep", "reproduce")
SEEDED = (("generate", "seed"), ("ls", "seed"))
"""Commands whose `--seed` is no setting of a configuration."""

MAKE_TARGETS = {"audit": "make audit", "bench": "make bench", "chaos": "make faults", "verify": "make verify"}
"""Former commands that are programs of the repository, with the make target that runs each."""


def parser() -> Parser:
    """The one parser, a sub-command each for what `lm` can do."""
    return parsers()[0]


@functools.cache
def parsers() -> tuple[Parser, dict[str, Parser]]:
    """The one parser, and those of its sub-commands by name; made once in a process."""
    top = Parser(
        prog="lm",
        description="Ablations for transformer language models: paired, honest, resumable.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"lm {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of any error; anywhere in the command")
    top.add_argument(
        "--trusted-only", action="store_true", help="refuse every class that is not part of lm; anywhere in the command"
    )
    inner = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    found: dict[str, Parser] = {}
    for name, command in commands().items():
        found[name] = inner.add_parser(
            name,
            help=command.help,
            description=f"{command.help[:1].upper()}{command.help[1:]}.".replace("%", "%%"),
            epilog="examples:\n" + "\n".join(f"  {one}" for one in command.examples).replace("%", "%%"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        found[name].settable, found[name].resumes = command.settable, name in TRAINING
        command.add_options(found[name])
    return top, found


BARE = re.compile(r"(seed|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+)=.*", re.DOTALL)
"""A setting without dashes, as in optim.lr=3e-4."""


def _dashed(arguments: list[str]) -> list[str]:
    """A command line with dashes before settings that were given without, where the command takes settings."""
    command = arguments[0] if arguments else ""
    if command not in commands() or not commands()[command].settable or not any(map(BARE.fullmatch, arguments)):
        return arguments
    known = parsers()[1][command]._option_string_actions
    takes_next = [
        before.startswith("-") and "=" not in before and (known[before].nargs != 0 if before in known else True)
        for before in arguments[:-1]
    ]
    return [
        f"--{one}" if BARE.fullmatch(one) and not taken else one
        for one, taken in zip(arguments, [False, *takes_next], strict=True)
    ]


def _split(arguments: list[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Takes the dotted overrides (`--optim.lr 3e-4`, `--optim.lr=3e-4`, `--seed 1`) out of a command line."""
    kept: list[str] = []
    overrides: list[tuple[str, Any]] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not ("." in key or key in ("seed", "data_seed")):
            kept.append(argument)
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise InputError(f"{argument}: needs a value, as in {argument}=VALUE")
            text = queue.pop(0)
        overrides.append((key, parse_value(text, key)))
    return kept, overrides


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    if arguments is None:
        _alone()
    everything = list(sys.argv[1:] if arguments is None else arguments)
    given, debug = [argument for argument in everything if argument not in (DEBUG, TRUSTED)], DEBUG in everything
    try:
        try:
            with ended_by_signals(), trusted_only(TRUSTED in everything), own_modules():
                return _run(given, debug)
        finally:  # not when the interpreter ends, where nobody could answer for what goes wrong
            if sys.stdout is not None:
                sys.stdout.flush()
    except InputError as error:
        if debug:
            _show(error)
        print(f"lm: {error}", file=sys.stderr)
        return BAD_INPUT
    except (LessError, LostError) as error:
        print(f"lm: {error}", file=sys.stderr)
        return UNDONE
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error.__context__, BrokenPipeError):  # of rich
            return _nobody_reads(error, next(iter(given), ""))
        if isinstance(error, SystemExit) and not by_signal(error):
            raise
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            print(f"lm: {cause()}; {_then(given)}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return _nobody_reads(error, next(iter(given), ""))
        if error.errno not in BROKEN | REFUSED:
            raise
        if debug:
            _show(error)
        print(f"lm: {explain(error, _then(given))}", file=sys.stderr)
        return UNDONE if error.errno in BROKEN else BAD_INPUT


def _alone() -> None:
    """The process is this command's: what torch brings along is looked through seldom, and not once more at the end."""
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)


def _then(given: Sequence[str]) -> str:
    """What a command that was stopped does when it is given again: only what trains keeps what it has done."""
    kept = next(iter(given), "") in TRAINING
    return "the same command takes up where this one stopped" if kept else "the same command begins anew"


def _show(error: BaseException) -> None:
    """Prints the traceback of an error with those of all that led to it, which the one line leaves out."""
    one: BaseException | None = error
    while one is not None:
        one.__suppress_context__ = False
        one = one.__cause__ or one.__context__
    traceback.print_exception(error)


def _run(arguments: list[str], debug: bool) -> int:
    given, rest = _split(_dashed(arguments))
    if given and given[0] in MAKE_TARGETS:
        raise InputError(f"no command {given[0]!r}: in a clone of the repository, run {MAKE_TARGETS[given[0]]}")
    if given and not given[0].startswith("-") and given[0] not in commands():
        raise InputError(
            f"no command {given[0]!r}.{nearest(given[0], list(commands()))} Choose from {', '.join(commands())}"
        )
    options = parser().parse_args(given, argparse.Namespace(arguments=tuple(arguments), debug=debug))
    if options.command is None:
        parser().print_help()
        return 0
    foreign = [key for key, _ in rest if (options.command, key) not in SEEDED]
    if foreign and not commands()[options.command].settable:
        raise InputError(f"lm {options.command} takes no setting {foreign[0]!r}")
    if options.command in TRAINING:
        from lm.data.cache import keep_compiled_code
        from lm.execution.fork_server import stale_tempdirs_removed

        keep_compiled_code()  # before torch is imported, which would say where itself
        with stale_tempdirs_removed(), deferred_interrupts():
            return commands()[options.command].run(options, dict(rest))
    return commands()[options.command].run(options, dict(rest))


def _nobody_reads(error: BaseException, command: str) -> int:
    """The exit code of a command whose output nobody reads to its end: no error, as in `lm report X | head`.

    Where training is what it stopped, because nobody heard of its progress, that is told by the code alone. Raises
    `error` again if it came of another pipe.
    """
    deaf = _unread(sys.stderr)
    if not (deaf or isinstance(error, SystemExit) or _unread(sys.stdout)):
        raise error
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr) if deaf else (sys.stdout,):  # what they still hold is written at exit
        os.dup2(nowhere, stream.fileno())
    return 128 + signal.SIGPIPE if deaf and command in TRAINING else 0


def _unread(stream: TextIO | None) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    if stream is None:
        return False
    try:
        watched = select.poll()
        watched.register(stream.fileno(), 0)  # an error is told without being asked for
        return bool(watched.poll(0))
    except (OSError, ValueError):  # no file of the system's
        return False
