"""`lm ablate`: every arm of an experiment with every seed."""

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
from lm.config.tree import InputError, parse_value

HELP = "train every arm of an experiment with every seed, and report"
EXAMPLES = ("lm ablate quickstart --plan", "lm ablate experiments/glu.yaml --seeds 0-5 --workers 2 optim.lr=3e-3")
SETTABLE = True


def add_options(command: Parser) -> None:
    command.add_argument("spec", type=Path, help="a YAML file, or the name of a shipped one such as quickstart")
    add_output(command)
    add_settable(command)
    command.add_argument(
        "--seeds", help="instead of the file's: a number (6 for 0 to 5), a list (0,1,2 or 6,) or a range (0-5)"
    )
    add_workers(command)
    add_executor(command)
    add_loggers(command)
    command.add_argument("--plan", action="store_true", help="show what would be trained, and how long it may take")
    command.add_argument("--retry-failed", action="store_true", help="train failed cells again")
    command.add_argument(
        "--underpowered", action="store_true", help="go on with seeds too few for any difference to be significant"
    )
    command.add_argument("--tier", default="", metavar="T", help="the experiment at another of its sizes, such as G")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.ablation.experiment import load_experiment

    check_output(options)
    loggers = loggers_of(options)
    executor = executor_of(options, loggers)
    settings = settings_of(options, overrides)
    if given := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(given)}: an experiment has several; use --seeds 0,1,2")
    seeds = None if options.seeds is None else parse_value(options.seeds, "--seeds")
    if seeds is None:  # nothing, or what YAML takes for null
        seeds = options.seeds
    experiment = load_experiment(options.spec, settings, seeds, options.tier)
    from lm.ablation.ablate import Manner, ablate

    manner = Manner(
        options.out,
        options.workers,
        options.retry_failed,
        options.underpowered,
        options.arguments,
        execution_of(options, loggers),
        executor,
    )
    if experiment.ladder is not None:
        from lm.ablation.climb import climb

        return climb(experiment, manner, options.plan)
    return ablate(experiment, manner, options.plan)
