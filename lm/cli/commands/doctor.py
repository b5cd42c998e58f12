"""`lm doctor`: what is installed, what there is to compute with, and what would be chosen."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser

HELP = "say what is installed, which devices there are, and what would be chosen and why"
EXAMPLES = ("lm doctor", "lm doctor --imports --json")


def add_options(command: Parser) -> None:
    command.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder of results (default: results)"
    )
    command.add_argument("--imports", action="store_true", help="import every package too, which takes seconds")
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.cli.doctor import examined
    from lm.cli.findings import lines

    found = examined(options.out, options.imports)
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)))
    for line in found["wrong"]:
        print(f"lm: {line}", file=sys.stderr)
    return 0 if found["ok"] else 1
