"""`lm ls`: the runs in a folder of results."""

import argparse
import json
import sys
from typing import Any

from lm.cli.options import RESULTS, Parser, add_results
from lm.config.plain import shown
from lm.config.tree import InputError

HELP = "list the runs in a folder of results, all or those that are asked for"
EXAMPLES = ("lm ls --experiment quickstart --status failed", "lm ls results --arm pre_norm --seed 0 --json")


def add_options(command: Parser) -> None:
    add_results(command, "; or experiment/arm or experiment/arm/seed in results")
    command.add_argument("--experiment", metavar="NAME", help="only the runs of this experiment or search")
    command.add_argument("--arm", metavar="NAME", help="only those of this arm, or trial")
    command.add_argument("--seed", metavar="S", help="only those with this seed")
    command.add_argument("--status", metavar="STATUS", help="only those that are ok, failed, training, missing, ...")
    command.add_argument("--id", default="", metavar="PREFIX", help="only those whose id begins like this")
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.analysis.run_lookup import find_by_name, select_runs
    from lm.analysis.runs import STATES, runs_of_folder
    from lm.config.tree import nearest
    from lm.report.status import run_json, show_runs

    seed = overrides.get("seed")
    if seed is not None and type(seed) is not int:
        raise InputError(f"--seed: expected one whole number, found {shown(seed)}")
    if options.status is not None and options.status not in STATES:
        near = nearest(options.status, STATES)
        raise InputError(f"--status: no status {options.status!r}.{near} Choose from {', '.join(STATES)}")
    named = not options.folder.exists() and RESULTS.is_dir()
    found = runs_of_folder(RESULTS if named else options.folder)
    runs = find_by_name(str(options.folder), found.runs) if named else found.runs
    runs = select_runs(runs, options.experiment, options.arm, seed, options.status, options.id)
    if options.json:
        print(json.dumps([run_json(run) for run in runs], indent=2))
    else:
        show_runs(runs, Console())
    for line in found.unreadable:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if found.unreadable else 0
