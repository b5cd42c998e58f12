"""`lm trace`: what lies behind a number."""

import argparse
from typing import Any

from lm.cli.options import Parser, add_experiment

HELP = "print the cells behind a number of a table, and the commands that make them"


def add_options(command: Parser) -> None:
    add_experiment(command)
    command.add_argument("arm", help="one of its arms")
    command.add_argument("metric", help="a quantity such as nll, or a path into the records such as initial/entropy")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.report.pack import opened
    from lm.report.trace import trace

    with opened(options.folder) as place:
        trace(place.folder, options.arm, options.metric, Console(), place.pack)
    return 0
