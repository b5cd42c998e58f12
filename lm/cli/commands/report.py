"""`lm report`: table and figures once more."""

import argparse
import os
from typing import Any

from lm.cli.options import Parser, add_folder, check_folder

HELP = "rebuild table and figures from the records"


def add_options(command: Parser) -> None:
    add_folder(command)


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    check_folder(options.folder)
    from rich.console import Console

    if os.path.isfile(options.folder / "study.json"):
        from lm.report.search import write_study

        write_study(options.folder, Console())
        return 0
    from lm.report.write import write_report

    results = write_report(options.folder, Console())
    return 1 if results.damaged or results.broken else 0
