"""`lm audit`: the method put to the test."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import InputError

HELP = "check the statistics themselves on simulated experiments"
EXAMPLES = ("lm audit", "lm audit --cells results/quickstart --json")


def add_options(command: Parser) -> None:
    command.add_argument("--full", action="store_true", help="many more experiments, a quarter of an hour")
    command.add_argument(
        "--cells", type=Path, metavar="DIR", help="an experiment's arms against themselves instead, 12 seeds or more"
    )
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.analysis.audit import audit, audit_cells
    from lm.report.audit import all_right, show_audit, to_json

    if options.cells is None:
        findings = audit(options.full)
    else:
        from lm.analysis.results import load
        from lm.report.pack import open_results

        with open_results(options.cells) as place:
            findings = list(audit_cells(load(place.folder)))
        if not findings:
            raise InputError(f"--cells {options.cells}: no arm has 12 finished seeds, with which a claim is possible")
    if options.json:
        print(to_json(findings))
    else:
        show_audit(findings, Console())
    return 0 if all_right(findings) else 1
