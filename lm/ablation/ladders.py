"""`lm reproduce --tier L`: every ladder, and one table of what their arms are worth."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lm.ablation.ablate import Manner
from lm.ablation.climb import climb
from lm.ablation.experiment import Experiment, load_experiment
from lm.ablation.ladder import plan_ladder, together
from lm.ablation.plan import Plan
from lm.ablation.reproduce import precision_remark, to_come
from lm.analysis.ladder import load_ladder
from lm.config.tree import InputError
from lm.execution.estimate import duration
from lm.report.ladder_page import csv_worth, overview_section
from lm.report.render import markdown_section, print_section
from lm.store.files import write_atomic
from lm.store.store import Store

TITLE = "What the arms of the ladders are worth"


def reproduce_ladders(files: Sequence[Path], settings: Mapping[str, Any], manner: Manner, plan_only: bool) -> int:
    """Carries out each ladder and writes one table over all. Returns 1 where something was left undone.

    Args:
        files: of the ladders.
        settings: changes to the configuration of each.
        manner: how they are carried out.
        plan_only: whether to show what would be trained, and no more.

    Raises:
        InputError: for a ladder that cannot be carried out, before anything is trained.
    """
    planned = [(experiment, _plan(experiment, manner)) for experiment in _experiments(files, settings)]
    if plan_only:
        _show([plan for _, plan in planned], manner)
        return 0
    undone, folders = 0, list[Path]()
    for index, (experiment, _) in enumerate(planned, 1):
        print(f"({index}/{len(planned)}) {experiment.name}", file=sys.stderr)
        undone |= climb(experiment, manner, console=Console(quiet=True))
        folders.append(manner.out / experiment.name)
    ladders, console = [load_ladder(folder) for folder in folders], Console()
    folder = manner.out / "reproduce.L"
    head = [f"# {TITLE}", "", "Made by `lm reproduce --tier L`.", ""]
    write_atomic(folder / "table.md", "\n".join([*head, *markdown_section(overview_section(ladders))]).rstrip() + "\n")
    write_atomic(folder / "table.csv", csv_worth(ladders))
    console.print()
    print_section(overview_section(ladders, TITLE), console)
    print(f"table: {folder / 'table.md'}", file=sys.stderr)
    return undone


def _experiments(files: Sequence[Path], settings: Mapping[str, Any]) -> list[Experiment]:
    found = []
    for path in files:
        try:
            found.append(load_experiment(path, settings))
        except InputError as error:
            raise InputError(f"{path.stem}: cannot be run: {error}") from None
    return found


def _plan(experiment: Experiment, manner: Manner) -> Plan:
    """The cells of all rungs. Raises InputError naming the ladder."""
    try:
        return together(experiment, plan_ladder(experiment, manner.out, manner.workers))
    except InputError as error:
        raise InputError(f"{experiment.name}: cannot be run: {error}") from None


def _show(plans: Sequence[Plan], manner: Manner) -> None:
    """Prints of each ladder how many cells are to train that none before it asks for, and how long that takes."""
    store, asked, total = Store(manner.out), set[str](), 0.0
    for plan in plans:
        train, wall = to_come(plan, store, manner.workers, asked)
        total += wall
        assert plan.experiment.ladder is not None
        print(f"{plan.experiment.name}: {len(plan.experiment.ladder.rungs)} rungs, {train}, {duration(wall)}")
    if remark := precision_remark(plans, store, manner.workers):
        print(remark)
    print(f"about {duration(total)} in all, judged by finished cells of each arm or by a few steps")
