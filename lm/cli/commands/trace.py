"""`lm trace`: what lies behind a number."""

import argparse
from typing import Any

from lm.cli.options import Parser, add_folder, check_folder

HELP = "print the cells behind a number of a table, and the commands that make them"


def add_options(command: Parser) -> None:
    add_folder(command)
    command.add_argument("arm", help="one of its arms")
    command.add_argument("metric", help="a quantity such as nll, or a path into the records such as initial/entropy")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    check_folder(options.folder)
    from rich.console import Console

    from lm.report.trace import trace

    trace(options.folder, options.arm, options.metric, Console())
    return 0
