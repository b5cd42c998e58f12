"""Runs the programs of the repository that no wheel holds."""

import argparse
import sys
from collections.abc import Callable, Sequence

from lm.cli.options import Parser
from lm.config.tree import InputError
from lm.execution.signal_handling import INTERRUPTED, cause, ended_by_signals

BAD_INPUT = 2


def make_parser(target: str, about: str, examples: Sequence[str]) -> Parser:
    """Make the parser of a program that a make target runs.

    Args:
        target: name of the make target.
        about: what the program does, in a line.
        examples: command lines that its help shows.
    """
    return Parser(
        prog=f"make {target}",
        description=f"{about[:1].upper()}{about[1:]}.",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def run_program(
    parser: Parser, run: Callable[[argparse.Namespace], int], arguments: Sequence[str] | None = None
) -> int:
    """Parse a command line, call `run` with its options and return the exit code; bad input is one line and code 2.

    Args:
        parser: of the program.
        run: what the program does; returns its exit code.
        arguments: the command line; that of the process where it is None.
    """
    try:
        with ended_by_signals():
            return run(parser.parse_args(arguments))
    except InputError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"{parser.prog}: {cause()}", file=sys.stderr)
        return INTERRUPTED
