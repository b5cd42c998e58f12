"""`lm list`: all there is to choose from."""

import argparse
import json
from typing import Any

from lm.cli.options import Parser

HELP = "print every component there is to choose from"
EXAMPLES = ("lm list", "lm list --json")


def add_options(command: Parser) -> None:
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.config.components import catalogue, catalogue_lines
    from lm.training.run import Run

    found = catalogue(Run)
    print(json.dumps(found, indent=2) if options.json else "\n".join(catalogue_lines(found)))
    return 0
