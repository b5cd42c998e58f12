"""`lm fit`: one configuration, trained in this process."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, add_loggers, add_output, add_settable, check_output, loggers_of, settings_of
from lm.config.reading import load_config
from lm.config.tree import Tree, override

HELP = "train one configuration"
EXAMPLES = (
    "lm fit char_tiny trainer.max_steps=100",
    "lm fit mine.yaml --optim.lr 3e-4 --model.position Alibi --out results",
)
SETTABLE = True


def add_options(command: Parser) -> None:
    command.usage = "lm fit CONFIG [--out DIR] [--optim.lr 3e-4 ...]"
    command.add_argument("config", type=Path, help="a YAML file, or the name of a shipped one such as char_tiny")
    add_output(command)
    add_settable(command)
    add_loggers(command)


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    check_output(options)
    loggers = loggers_of(options)
    tree: Tree = override(load_config(options.config), settings_of(options, overrides))
    from rich.console import Console

    from lm.execution.machine import threads_each
    from lm.execution.progress import step_lines
    from lm.report.run import show_run
    from lm.report.ways import described
    from lm.runs.ways import decided
    from lm.store.store import Store
    from lm.training.cell import check
    from lm.training.train import Execution, into_log, train

    tree, decision = decided(tree, options.out, threads_each(1))
    if decision is not None:
        print(described(asdict(decision)), file=sys.stderr)
    cell, store = check(tree), Store(options.out)
    store.recover(cell.id)
    if store.finished(cell.id):
        print(f"already trained: {store.directory(cell.id)}", file=sys.stderr)
    else:
        called = f"{options.config.stem}/{cell.id[:12]}/{cell.config['seed']}"
        execution = Execution(checkpoint_seconds=options.checkpoint_seconds, loggers=loggers, called=called)
        with into_log() as begun:
            train(cell, store, step_lines(), execution, begun=begun)
    if not store.finished(cell.id):  # a second process of a multi-device run, whose first one reports
        return 0
    if options.debug and (trace := store.record(cell.id).get("traceback")):
        print(trace, end="", file=sys.stderr)
    return 0 if show_run(store, cell.id, Console()) == "ok" else 1
