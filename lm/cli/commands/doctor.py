"""`lm doctor`: what is installed, what this machine has, and what an experiment would choose."""

import argparse
import json
import sys
from typing import Any

from lm.cli.options import JSON, Command, flag, out_option


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print what is installed and what is wrong with it."""
    from lm.cli.doctor import examine, format_report

    report = examine(options.out, options.imports)
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    for line in report["wrong"]:
        print(f"lm: {line}", file=sys.stderr)
    return 0 if report["ok"] else 1


COMMANDS = {
    "doctor": Command(
        "report what is installed, which devices there are, and what an experiment would choose and why",
        ("lm doctor", "lm doctor --imports --json"),
        run,
        out_option(),
        flag("--imports", "import every package too, which takes seconds"),
        JSON,
    ),
}
