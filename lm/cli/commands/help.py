"""`lm help`: what a command takes."""

import argparse
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import InputError, nearest

HELP = "say what a command takes, with examples"
EXAMPLES = ("lm help", "lm help ablate")


def add_options(command: Parser) -> None:
    command.add_argument("about", nargs="?", metavar="COMMAND", help="which (default: all, a line each)")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.cli.entry import parsers

    top, inner = parsers()
    if options.about is not None and options.about not in inner:
        near = nearest(options.about, list(inner))
        raise InputError(f"no command {options.about!r}.{near} Choose from {', '.join(inner)}")
    (top if options.about is None else inner[options.about]).print_help()
    return 0
