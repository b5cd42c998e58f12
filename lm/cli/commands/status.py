"""`lm status`: how far everything in a folder of results has come."""

import argparse
import json
import sys
from typing import Any

from lm.cli.options import Parser, add_results, called

HELP = "say what is done, in training, failed and missing in a folder of results"
EXAMPLES = ("lm status", "lm status quickstart --json")


def add_options(command: Parser) -> None:
    add_results(command)
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.analysis.runs import runs_of_folder
    from lm.report.status import show_status, status_json

    found = runs_of_folder(called(options.folder))
    if options.json:
        print(json.dumps(status_json(found), indent=2))
    else:
        show_status(found, Console())
    for line in found.unreadable:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if found.unreadable else 0
