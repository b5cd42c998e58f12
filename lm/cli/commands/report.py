"""`lm report`: table and figures once more."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, add_experiment
from lm.config.tree import require_place

HELP = "rebuild table and figures from the records"
EXAMPLES = ("lm report results/quickstart", "lm report quickstart.lmpack --out report")


def add_options(command: Parser) -> None:
    add_experiment(command)
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the report (default: the experiment's, or beside its pack)"
    )
    command.add_argument("--replace", action="store_true", help="write it even over a report that says more")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.report.pack import opened
    from lm.report.search import write_study
    from lm.report.write import write_report

    damaged = False
    with opened(options.folder, options.out) as place:
        require_place(place.report, "the report's folder", folder=True)
        if os.path.isfile(place.folder / "study.json"):
            write_study(place.folder, Console(), place.report, options.replace)
        else:
            results = write_report(place.folder, Console(), place.report, options.replace)
            damaged = bool(results.damaged or results.broken)
    if place.report != options.folder:
        print(f"report: {place.report / 'table.md'}", file=sys.stderr)
    return 1 if damaged else 0
