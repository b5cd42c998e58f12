"""`lm fit`, `lm ablate`, `lm sweep` and `lm reproduce`: commands that train."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import (
    CONFIG_HELP,
    Command,
    Parser,
    add_executor,
    add_loggers,
    add_output,
    add_settable,
    add_workers,
    check_output,
    execution_of,
    parse_loggers,
    read_settings,
)
from lm.config.reading import load_config, shipped_files
from lm.config.tree import InputError, override, parse_value


def _refuse_seeds(settings: dict[str, Any], remedy: str) -> None:
    if seeds := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(seeds)}: {remedy}")


def add_fit_options(parser: Parser) -> None:
    """Add the arguments of `lm fit`."""
    parser.usage = "lm fit CONFIG [--out DIR] [--optim.lr 3e-4 ...]"
    parser.add_argument("config", type=Path, help=CONFIG_HELP)
    add_output(parser)
    add_settable(parser)
    add_loggers(parser)


def fit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Train one configuration and print its results."""
    check_output(options)
    loggers = parse_loggers(options)
    tree = override(load_config(options.config), read_settings(options, overrides))
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


def add_ablate_options(parser: Parser) -> None:
    """Add the arguments of `lm ablate`."""
    parser.add_argument("spec", type=Path, help="a YAML file, or the name of a shipped one such as quickstart")
    add_output(parser)
    add_settable(parser)
    parser.add_argument(
        "--seeds", help="seeds that replace the file's: a number (6 for 0 to 5), a list (0,1,2 or 6,) or a range (0-5)"
    )
    add_workers(parser)
    add_executor(parser)
    add_loggers(parser)
    parser.add_argument("--plan", action="store_true", help="show what would be trained and about how long it takes")
    parser.add_argument("--retry-failed", action="store_true", help="train failed cells again")
    parser.add_argument(
        "--underpowered", action="store_true", help="go on with too few seeds for any difference to be significant"
    )
    parser.add_argument("--tier", default="", metavar="T", help="run the experiment at another of its sizes, such as G")


def ablate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Train the missing cells of an experiment and write its report."""
    from lm.ablation.experiment import load_experiment
    from lm.execution.factory import usable

    check_output(options)
    loggers = parse_loggers(options)
    executor = usable(options.executor, loggers)
    settings = read_settings(options, overrides)
    _refuse_seeds(settings, "an experiment has several; use --seeds 0,1,2")
    seeds = None if options.seeds is None else parse_value(options.seeds, "--seeds")
    if seeds is None:  # no --seeds, or a text that YAML reads as null
        seeds = options.seeds
    experiment = load_experiment(options.spec, settings, seeds, options.tier)
    from lm.ablation.ablate import RunOptions
    from lm.ablation.ablate import ablate as run_experiment

    run_options = RunOptions(
        options.out,
        options.workers,
        options.retry_failed,
        options.underpowered,
        options.arguments,
        execution_of(options, loggers),
        executor,
    )
    if experiment.ladder is not None:
        from lm.ablation.ladder.run_ladder import run_ladder

        return run_ladder(experiment, run_options, options.plan)
    return run_experiment(experiment, run_options, options.plan)


def add_sweep_options(parser: Parser) -> None:
    """Add the arguments of `lm sweep`."""
    parser.add_argument("spec", type=Path, help="a YAML file, or the name of a shipped one such as learning_rate")
    add_output(parser)
    add_settable(parser)
    parser.add_argument("--trials", type=int, metavar="N", help="number of trials (default: the file's)")
    add_workers(parser)
    add_executor(parser)
    add_loggers(parser)
    parser.add_argument("--plan", action="store_true", help="show what would be searched and about how long it takes")


def sweep(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run a search, or go on with one."""
    from lm.execution.factory import usable

    check_output(options)
    loggers = parse_loggers(options)
    executor = usable(options.executor, loggers)
    settings = read_settings(options, overrides)
    _refuse_seeds(settings, "a sweep's trials may have several; give them with seeds in its file")
    from lm.search.spec import load_sweep

    spec = load_sweep(options.spec, settings, options.trials)
    from lm.search.sweep import sweep as run_sweep

    return run_sweep(spec, options.out, options.workers, execution_of(options, loggers), options.plan, executor)


def add_reproduce_options(parser: Parser) -> None:
    """Add the arguments of `lm reproduce`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, such as glu (default: all)")
    parser.add_argument(
        "--tier", choices=("C", "G", "L"), default="C", help="C: claims on a CPU, G: on a GPU, L: ladders (default: C)"
    )
    parser.add_argument(
        "--experiments",
        type=Path,
        default=Path("experiments"),
        help="folder of experiment files (default: experiments, or the shipped ones)",
    )
    add_output(parser)
    add_settable(parser)
    parser.add_argument(
        "--first-seeds", type=int, metavar="N", help="only the first N seeds of each experiment (default: all)"
    )
    add_workers(parser)
    parser.add_argument("--plan", action="store_true", help="show what would be trained and about how long it takes")


def reproduce(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the experiments with claims and print which claims hold."""
    check_output(options)
    from lm.ablation.ablate import RunOptions
    from lm.ablation.reproduce import ReproductionScope, find_experiments
    from lm.ablation.reproduce import reproduce as run_experiments

    settings = read_settings(options, overrides)
    _refuse_seeds(settings, "an experiment has several; use --first-seeds")
    if options.tier == "L" and options.first_seeds:
        raise InputError("--tier L: a rung has seeds of its own; expected no --first-seeds")
    folder = options.experiments
    examples = list(shipped_files("experiment").values())
    if folder == Path("experiments") and not folder.is_dir() and examples:
        folder = examples[0].parent
    files = find_experiments(folder, options.names, "ladder" if options.tier == "L" else "claims")
    run_options = RunOptions(
        options.out,
        options.workers,
        underpowered=True,
        command=options.arguments,
        execution=execution_of(options),
    )
    if options.tier == "L":
        from lm.ablation.reproduce import reproduce_ladders

        return reproduce_ladders(files, settings, run_options, options.plan)
    portion = ReproductionScope(options.tier, settings, options.first_seeds)
    return run_experiments(files, portion, run_options, options.plan, bool(options.names))


COMMANDS = {
    "fit": Command(
        "train one configuration",
        (
            "lm fit char_tiny trainer.max_steps=100",
            "lm fit mine.yaml --optim.lr 3e-4 --model.position Alibi --out results",
        ),
        add_fit_options,
        fit,
        settable=True,
    ),
    "ablate": Command(
        "train every arm of an experiment with every seed, and report",
        ("lm ablate quickstart --plan", "lm ablate experiments/glu.yaml --seeds 0-5 --workers 2 optim.lr=3e-3"),
        add_ablate_options,
        ablate,
        settable=True,
    ),
    "sweep": Command(
        "search for the best values of settings, and report",
        ("lm sweep learning_rate --plan", "lm sweep sweeps/learning_rate.yaml --trials 8 --workers 2"),
        add_sweep_options,
        sweep,
        settable=True,
    ),
    "reproduce": Command(
        "run the experiments that have claims, or all ladders, and print one table of all",
        ("lm reproduce glu --workers 2", "lm reproduce --first-seeds 6 --plan"),
        add_reproduce_options,
        reproduce,
        settable=True,
    ),
}
