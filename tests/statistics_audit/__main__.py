"""`make audit`: checks the statistics on simulated experiments."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from program import make_parser, run_program
from rich.console import Console

from lm.analysis.results import load
from lm.config.tree import InputError
from lm.report.pack import open_results
from statistics_audit.audit import audit, audit_cells
from statistics_audit.show import all_right, show_audit, to_json

HELP = "check the statistics themselves on simulated experiments"
EXAMPLES = ("make audit", 'make audit AUDIT="--cells results/quickstart --json"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return 1 where the method breaks a promise."""
    parser = make_parser("audit", HELP, EXAMPLES)
    parser.add_argument("--full", action="store_true", help="many more experiments: half an hour on two cores")
    parser.add_argument(
        "--cells", type=Path, metavar="DIR", help="an experiment's arms against themselves instead, 12 seeds or more"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    return run_program(parser, _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.cells is None:
        findings = audit(options.full)
    else:
        with open_results(options.cells) as place:
            findings = list(audit_cells(load(place.folder)))
        if not findings:
            raise InputError(f"--cells {options.cells}: no arm has 12 finished seeds, with which a claim is possible")
    if options.json:
        print(to_json(findings))
    else:
        show_audit(findings, Console())
    return 0 if all_right(findings) else 1


if __name__ == "__main__":
    sys.exit(main())
