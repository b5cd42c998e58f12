"""`lm doctor`: what is installed, what this machine has, and what an experiment would choose."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import RESULTS, Parser

HELP = "report what is installed, which devices there are, and what would be chosen and why"
EXAMPLES = ("lm doctor", "lm doctor --imports --json")


def add_options(command: Parser) -> None:
    command.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder of results (results)")
    command.add_argument("--imports", action="store_true", help="import every package too, which takes seconds")
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.cli.doctor import examine, format_report

    report = examine(options.out, options.imports)
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    for line in report["wrong"]:
        print(f"lm: {line}", file=sys.stderr)
    return 0 if report["ok"] else 1
