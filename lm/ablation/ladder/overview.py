"""`lm reproduce --tier L`: every ladder, and one table of what their arms are worth."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lm.ablation.ablate import RunOptions
from lm.ablation.experiment import load_experiment
from lm.ablation.ladder.plan import merge_plans, plan_ladder
from lm.ablation.ladder.run_ladder import run_ladder
from lm.ablation.reproduce import describe_missing, precision_remark
from lm.ablation.sections import prefix_errors
from lm.analysis.ladder import load_ladder
from lm.report.ladder_page import csv_worth, overview_section
from lm.report.render import markdown_section, print_section
from lm.report.status import duration
from lm.store.files import write_atomic
from lm.store.store import Store

TITLE = "What the arms of the ladders are worth"


def reproduce_ladders(
    files: Sequence[Path], settings: Mapping[str, Any], options: RunOptions, plan_only: bool = False
) -> int:
    """Run each ladder and write one table over all.

    Args:
        files: of the ladders.
        settings: changes to the configuration of each.
        options: of the command.
        plan_only: True to show what would be trained, and no more.

    Returns:
        0, or 1 where something was left undone.

    Raises:
        InputError: for a ladder that cannot be run, before anything is trained.
    """
    experiments, plans = [], []
    for path in files:
        with prefix_errors(f"{path.stem}: cannot be run"):
            experiments.append(load_experiment(path, settings))
    for experiment in experiments:
        with prefix_errors(f"{experiment.name}: cannot be run"):
            plans.append(merge_plans(experiment, plan_ladder(experiment, options.out, options.workers)))
    if plan_only:
        store, counted, total = Store(options.out), set[str](), 0.0
        for plan in plans:
            cells, wall = describe_missing(plan, store, options.workers, counted)
            total += wall
            assert plan.experiment.ladder is not None
            print(f"{plan.experiment.name}: {len(plan.experiment.ladder.rungs)} rungs, {cells}, {duration(wall)}")
        if remark := precision_remark(plans, store, options.workers):
            print(remark)
        print(f"about {duration(total)} in all, estimated from finished cells or a few steps")
        return 0
    exit_code, folders = 0, list[Path]()
    for index, plan in enumerate(plans, 1):
        print(f"({index}/{len(plans)}) {plan.experiment.name}", file=sys.stderr)
        exit_code |= run_ladder(plan.experiment, options, console=Console(quiet=True))
        folders.append(options.out / plan.experiment.name)
    ladders, console = [load_ladder(folder) for folder in folders], Console()
    folder = options.out / "reproduce.L"
    head = [f"# {TITLE}", "", "Made by `lm reproduce --tier L`.", ""]
    write_atomic(folder / "table.md", "\n".join([*head, *markdown_section(overview_section(ladders))]).rstrip() + "\n")
    write_atomic(folder / "table.csv", csv_worth(ladders))
    console.print()
    print_section(overview_section(ladders, TITLE), console)
    print(f"table: {folder / 'table.md'}", file=sys.stderr)
    return exit_code
