"""The `lm` command: settings taken out of a command line, and errors answered with one line."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from lm.arguments import parser
from lm.commands import COMMANDS, INTERRUPTED, SETTABLE
from lm.config import InputError, nearest, parse_value
from lm.signals import by_signal
from lm.storage import BROKEN, REFUSED, explain

BAD_INPUT = 2
UNDONE = 1


def _split(arguments: list[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Takes the dotted overrides (`--optim.lr 3e-4`, `--optim.lr=3e-4`, `--seed 1`) out of a command line."""
    kept: list[str] = []
    overrides: list[tuple[str, Any]] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not ("." in key or key == "seed"):
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
    try:
        given, rest = _split(list(sys.argv[1:] if arguments is None else arguments))
        if given and not given[0].startswith("-") and given[0] not in COMMANDS:
            raise InputError(
                f"no command {given[0]!r}.{nearest(given[0], list(COMMANDS))} Choose from {', '.join(COMMANDS)}"
            )
        options = parser().parse_args(given)
        if options.command is None:
            parser().print_help()
            return 0
        foreign = [key for key, _ in rest if (options.command, key) != ("generate", "seed")]
        if foreign and options.command not in SETTABLE:
            raise InputError(f"lm {options.command} takes no setting {foreign[0]!r}")
        return COMMANDS[options.command](options, dict(rest))
    except InputError as error:
        print(f"lm: {error}", file=sys.stderr)
        return BAD_INPUT
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not by_signal(error):
            raise
        print("lm: interrupted; the same command takes up where this one stopped", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return _nobody_reads()
        if error.errno not in BROKEN | REFUSED:
            raise
        print(f"lm: {explain(error)}", file=sys.stderr)
        return UNDONE if error.errno in BROKEN else BAD_INPUT


def _nobody_reads() -> int:
    """The exit code of a command whose output nobody reads to its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
