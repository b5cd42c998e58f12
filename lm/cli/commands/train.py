"""`lm fit`, `lm ablate`, `lm sweep` and `lm reproduce`: commands that train."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import (
    CONFIG,
    EXECUTOR,
    LOGGERS,
    TRAIN,
    TRAIN_CELLS,
    Command,
    execution_of,
    flag,
    option,
    read_settings,
)
from lm.config.reading import load_config, shipped_files
from lm.config.tree import InputError, override, parse_value


def _refuse_seeds(settings: dict[str, Any], remedy: str) -> None:
    if seeds := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(seeds)}: {remedy}")


def fit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Train one configuration and print its results."""
    execution = execution_of(options)
    tree = override(load_config(options.config), read_settings(options, overrides))
    from rich.console import Console

    from lm.execution.single_run import train_single
    from lm.report.run import show_run
    from lm.store.store import Store

    folder = train_single(tree, options.out, execution, called=options.config.stem)
    store, cell = Store(options.out), folder.name
    if not store.finished(cell):  # a second process of a multi-device run, whose first one reports
        return 0
    if options.debug and (trace := store.record(cell).get("traceback")):
        print(trace, end="", file=sys.stderr)
    return 0 if show_run(store, cell, Console()) == "ok" else 1


def ablate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Train the missing cells of an experiment and write its report."""
    from lm.ablation.experiment import load_experiment
    from lm.execution.factory import usable

    execution = execution_of(options)
    executor = usable(options.executor, execution.loggers)
    settings = read_settings(options, overrides)
    _refuse_seeds(settings, "an experiment has several; use --seeds 0,1,2")
    seeds = None if options.seeds is None else parse_value(options.seeds, "--seeds")
    seeds = options.seeds if seeds is None else seeds  # no --seeds, or a text that YAML reads as null
    experiment = load_experiment(options.spec, settings, seeds, options.tier)
    from lm.ablation.ablate import RunOptions
    from lm.ablation.ablate import ablate as run_experiment

    flags = (options.retry_failed, options.underpowered)
    run_options = RunOptions(options.out, options.workers, *flags, options.arguments, execution, executor)
    if experiment.ladder is not None:
        from lm.store.answers import running_version

        running_version()  # before torch is imported
        from lm.ablation.ladder.run_ladder import run_ladder

        return run_ladder(experiment, run_options, options.plan)
    return run_experiment(experiment, run_options, options.plan)


def sweep(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run a search, or go on with one."""
    from lm.store.answers import running_version

    running_version()  # before torch is imported
    from lm.execution.factory import usable

    execution = execution_of(options)
    executor = usable(options.executor, execution.loggers)
    settings = read_settings(options, overrides)
    _refuse_seeds(settings, "a sweep's trials may have several; give them with seeds in its file")
    from lm.search.spec import load_sweep

    spec = load_sweep(options.spec, settings, options.trials)
    from lm.search.sweep import sweep as run_sweep

    return run_sweep(spec, options.out, options.workers, execution, options.plan, executor)


def reproduce(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the experiments with claims and print which claims hold."""
    execution = execution_of(options)
    from lm.store.answers import running_version

    running_version()  # before torch is imported
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
        options.out, options.workers, underpowered=True, command=options.arguments, execution=execution
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
        fit,
        CONFIG,
        *TRAIN,
        LOGGERS,
        settable=True,
        usage="lm fit CONFIG [--out DIR] [--optim.lr 3e-4 ...]",
    ),
    "ablate": Command(
        "train every arm of an experiment with every seed, and report",
        ("lm ablate quickstart --plan", "lm ablate experiments/glu.yaml --seeds 0-5 --workers 2 optim.lr=3e-3"),
        ablate,
        option("spec", "a YAML file, or the name of a shipped one such as quickstart", type=Path),
        *TRAIN,
        option(
            "--seeds", "seeds that replace the file's: a number (6 for 0 to 5), a list (0,1,2 or 6,) or a range (0-5)"
        ),
        *TRAIN_CELLS,
        EXECUTOR,
        LOGGERS,
        flag("--plan", "show what would be trained and about how long it takes"),
        flag("--retry-failed", "train failed cells again"),
        flag("--underpowered", "go on with too few seeds for any difference to be significant"),
        option("--tier", "run the experiment at another of its sizes, such as G", default="", metavar="T"),
        settable=True,
    ),
    "sweep": Command(
        "search for the best values of settings, and report",
        ("lm sweep learning_rate --plan", "lm sweep sweeps/learning_rate.yaml --trials 8 --workers 2"),
        sweep,
        option("spec", "a YAML file, or the name of a shipped one such as learning_rate", type=Path),
        *TRAIN,
        option("--trials", "number of trials (default: the file's)", type=int, metavar="N"),
        *TRAIN_CELLS,
        EXECUTOR,
        LOGGERS,
        flag("--plan", "show what would be searched and about how long it takes"),
        settable=True,
    ),
    "reproduce": Command(
        "run the experiments that have claims, or all ladders, and print one table of all",
        ("lm reproduce glu --workers 2", "lm reproduce --first-seeds 6 --plan"),
        reproduce,
        option("names", "experiments, such as glu (default: all)", nargs="*", metavar="NAME"),
        option(
            "--tier", "C: claims on a CPU, G: on a GPU, L: ladders (default: C)", choices=("C", "G", "L"), default="C"
        ),
        option(
            "--experiments",
            "folder of experiment files (default: experiments, or the shipped ones)",
            type=Path,
            default=Path("experiments"),
        ),
        *TRAIN,
        option("--first-seeds", "only the first N seeds of each experiment (default: all)", type=int, metavar="N"),
        *TRAIN_CELLS,
        flag("--plan", "show what would be trained and about how long it takes"),
        settable=True,
    ),
}
