"""`lm fit`: one configuration, trained in this process."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import (
    Parser,
    add_loggers,
    add_output,
    add_settable,
    check_output,
    execution_of,
    loggers_of,
    settings_of,
)
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

    from lm.execution.single_run import train_single
    from lm.report.run import show_run
    from lm.store.store import Store

    folder = train_single(tree, options.out, execution_of(options, loggers), called=options.config.stem)
    store, cell = Store(options.out), folder.name
    if not store.finished(cell):  # a second process of a multi-device run, whose first one reports
        return 0
    if options.debug and (trace := store.record(cell).get("traceback")):
        print(trace, end="", file=sys.stderr)
    return 0 if show_run(store, cell, Console()) == "ok" else 1
