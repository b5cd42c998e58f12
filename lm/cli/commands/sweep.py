"""`lm sweep`: a search."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import (
    Parser,
    add_executor,
    add_loggers,
    add_output,
    add_settable,
    add_workers,
    check_output,
    execution_of,
    executor_of,
    loggers_of,
    settings_of,
)
from lm.config.tree import InputError

HELP = "search for the best values of settings, and report"
EXAMPLES = ("lm sweep learning_rate --plan", "lm sweep sweeps/learning_rate.yaml --trials 8 --workers 2")
SETTABLE = True


def add_options(command: Parser) -> None:
    command.add_argument("spec", type=Path, help="a YAML file, or the name of a shipped one such as learning_rate")
    add_output(command)
    add_settable(command)
    command.add_argument("--trials", type=int, metavar="N", help="instead of the file's")
    add_workers(command)
    add_executor(command)
    add_loggers(command)
    command.add_argument("--plan", action="store_true", help="show what would be searched, and how long it may take")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    check_output(options)
    loggers = loggers_of(options)
    executor = executor_of(options, loggers)
    settings = settings_of(options, overrides)
    if given := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(given)}: a sweep's trials may have several; give them with seeds in its file")
    from lm.search.spec import load_sweep

    spec = load_sweep(options.spec, settings, options.trials)
    from lm.search.search import sweep

    return sweep(spec, options.out, options.workers, execution_of(options, loggers), options.plan, executor)
