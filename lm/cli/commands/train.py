"""`lm fit`, `lm ablate`, `lm sweep` and `lm reproduce`: commands that train; `lm register`, which comes before."""

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm.cli.options import (
    CONFIG,
    EXECUTOR,
    LOGGERS,
    TRAIN,
    TRAIN_CELLS,
    Command,
    console,
    execution_of,
    flag,
    option,
    out_option,
)
from lm.config.reading import load_config, shipped_files
from lm.config.tree import InputError, override, parse_value, prefix_errors, require_place


def _refuse_seeds(settings: dict[str, Any], remedy: str) -> None:
    if seeds := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(seeds)}: {remedy}")


def fit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Train one configuration and print its results."""
    execution = execution_of(options)
    tree = override(load_config(options.config), overrides)
    from lm.execution.single_run import train_single
    from lm.report.run import show_run
    from lm.store.store import Store

    folder = train_single(tree, options.out, execution, called=options.config.stem)
    store, cell = Store(options.out), folder.name
    if not store.finished(cell):  # a second process of a multi-device run, whose first one reports
        return 0
    if options.debug and (trace := store.record(cell).get("traceback")):
        print(trace, end="", file=sys.stderr)
    return 0 if show_run(store, cell, console()) == "ok" else 1


def ablate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Train the missing cells of an experiment and write its report."""
    from lm.ablation.experiment import load_experiment
    from lm.execution.factory import usable

    execution = execution_of(options)
    executor = usable(options.executor, execution.loggers)
    _refuse_seeds(overrides, "an experiment has several; use --seeds 0,1,2")
    experiment, command = load_experiment(options.spec, overrides, options.seeds, options.tier), options.arguments
    from lm.ablation.ablate import RunOptions, with_added_seeds
    from lm.ablation.ablate import ablate as run_experiment

    if options.add_seeds is not None:
        added, out = options.add_seeds, options.out
        seeds = with_added_seeds(experiment, added, out, options.underpowered, options.seeds)
        experiment = load_experiment(options.spec, overrides, seeds, options.tier)
        command = (*_without_option(command, "--add-seeds"), "--seeds", json.dumps(seeds, separators=(",", ":")))
    flags = (options.retry_failed, options.underpowered)
    run_options = RunOptions(options.out, options.workers, *flags, command, execution, executor)
    if experiment.ladder is not None:
        from lm.ablation.ladder.run_ladder import run_ladder  # takes seconds

        return run_ladder(experiment, run_options, options.plan)
    return run_experiment(experiment, run_options, options.plan)


def register(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write down what an experiment asks and how, of a ladder for each rung, of several texts for each."""
    _refuse_seeds(overrides, "an experiment has several; use --seeds 0,1,2")
    require_place(options.out, "--out", folder=True)
    from lm.ablation.experiment import load_experiment

    experiment = load_experiment(options.spec, overrides, options.seeds, options.tier)
    from lm.ablation.ablate import warn
    from lm.ablation.before_training import check_before_training, check_texts_differ, parts_beside, warnings_of
    from lm.ablation.derived import expand_corpora
    from lm.ablation.ladder.plan import expand_rungs, plan_ladder
    from lm.ablation.ladder.run_ladder import check_seeds, idle_everywhere
    from lm.ablation.plan import Plan, design_of, make_plan
    from lm.ablation.registration import write_registrations
    from lm.store.archive import REGISTRATION
    from lm.store.store import Store

    parts = expand_rungs(experiment) if experiment.ladder else expand_corpora(experiment)
    store, designs, plans = Store(options.out), {}, list[Plan]()
    for part in parts:
        text = f"corpora.{part.name.removeprefix(experiment.name)[1:]}" if experiment.corpora else ""
        with prefix_errors(text) if text else contextlib.nullcontext():
            plans.append(plan := make_plan(part))
            check_before_training(plan, store)
            for title, beside in parts_beside(part).items():
                with prefix_errors(title):
                    make_plan(beside)
        finished = len(plan.distinct) - len(plan.missing(store))
        designs[plan.manifest(store).with_name(REGISTRATION)] = design_of(plan), finished
    if experiment.corpora:
        check_texts_differ(dict(zip(experiment.corpora, plans, strict=True)))
    if experiment.ladder:
        check_seeds(experiment)
        plan_ladder(experiment, options.out, None)
    write_registrations(designs)
    for path, (_, finished) in designs.items():
        late = f"; {finished} of its cells were finished before, as reports will say" if finished else ""
        print(f"registered: {path}{late}", file=sys.stderr)
    if not (experiment.bracket or experiment.tuning or experiment.grid or experiment.ladder):
        print("no learning rate is searched: `tune: rates` would judge every arm at its own", file=sys.stderr)
    of_parts = idle_everywhere(plans) if experiment.ladder else itertools.chain(*map(warnings_of, plans))
    warn(dict.fromkeys(of_parts))
    return 0


def sweep(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run a search, or go on with one."""
    from lm.execution.factory import usable
    from lm.search.spec import load_sweep

    execution = execution_of(options)
    executor = usable(options.executor, execution.loggers)
    _refuse_seeds(overrides, "a sweep's trials may have several; give them with seeds in its file")
    spec = load_sweep(options.spec, overrides, options.trials)
    from lm.search.sweep import sweep as run_sweep

    return run_sweep(spec, options.out, options.workers, execution, options.plan, executor)


def reproduce(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the experiments with claims and print which claims hold."""
    execution = execution_of(options)
    from lm.ablation.ablate import RunOptions
    from lm.ablation.reproduce import ReproductionScope, find_experiments, reproduce_ladders
    from lm.ablation.reproduce import reproduce as run_experiments
    from lm.store.archive import ENDING

    _refuse_seeds(overrides, "an experiment has several; use --first-seeds")
    if options.tier == "L" and options.first_seeds:
        raise InputError("--tier L: a rung has seeds of its own; expected no --first-seeds")
    run_options = RunOptions(options.out, options.workers, False, True, options.arguments, execution)
    if packs := [name for name in options.names if name.endswith(ENDING) or "/" in name]:
        return _answer_packs(packs, options, overrides, run_options)
    folder = options.experiments
    examples = list(shipped_files("experiment").values())
    if folder == Path("experiments") and not folder.is_dir() and examples:
        folder = examples[0].parent
    files = find_experiments(folder, options.names, "ladder" if options.tier == "L" else "claims")
    if options.tier == "L":
        return reproduce_ladders(files, overrides, run_options, options.plan)
    portion = ReproductionScope(options.tier, overrides, options.first_seeds)
    return run_experiments(files, portion, run_options, options.plan, bool(options.names))


def _answer_packs(
    packs: Sequence[str], options: argparse.Namespace, overrides: dict[str, Any], run_options: Any
) -> int:
    """Print the answers of packs and folders, which are trained. Raises InputError beside what asks for training."""
    from lm.ablation.reproduce import answer_trained

    refusals = {"--tier L": options.tier == "L", "--first-seeds": options.first_seeds, "--plan": options.plan}
    refusals |= {"settings": overrides, "names of experiments": len(packs) < len(options.names)}
    if refused := next((name for name, is_asked in refusals.items() if is_asked), ""):
        raise InputError(f"{packs[0]}: holds results, so nothing is trained; expected no {refused} beside it")
    return answer_trained([Path(pack) for pack in packs], options.tier, run_options)


def _without_option(arguments: Sequence[str], name: str) -> list[str]:
    """Return arguments without an option that has a value, in both of its spellings."""
    words = [word for word in arguments if not word.startswith(f"{name}=")]
    place = words.index(name) if name in words else len(words)
    return [*words[:place], *words[place + 2 :]]


def _seeds(text: str) -> Any:
    return parse_value(text, "--seeds") or text


SPEC = option("spec", "a YAML file, or the name of a shipped one such as quickstart", Path)
SEEDS = option(
    "--seeds", "instead of the file's: a number (6 for 0 to 5), a list (0,1,2 or 6,) or a range (0-5)", _seeds
)
TIER = option("--tier", "take the experiment at another of its sizes, such as G", None, "T", default="")

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
        SPEC,
        *TRAIN,
        SEEDS,
        option("--add-seeds", "train N more than the results have; looking at those in between is paid for", int, "N"),
        *TRAIN_CELLS,
        EXECUTOR,
        LOGGERS,
        flag("--plan", "show what would be trained and about how long it takes"),
        flag("--retry-failed", "train failed cells again"),
        flag("--underpowered", "go on with too few seeds for any difference to be significant"),
        TIER,
        settable=True,
    ),
    "register": Command(
        "write down what an experiment asks and how before it is trained; its reports say what has changed since",
        ("lm register quickstart", "lm register experiments/mine.yaml --seeds 0-11 --out results"),
        register,
        SPEC,
        out_option(),
        SEEDS,
        TIER,
        settable=True,
    ),
    "sweep": Command(
        "search for the best values of settings, and report",
        ("lm sweep learning_rate --plan", "lm sweep sweeps/learning_rate.yaml --trials 8 --workers 2"),
        sweep,
        option("spec", "a YAML file, or the name of a shipped one such as learning_rate", Path),
        *TRAIN,
        option("--trials", "number of trials (default: the file's)", int, "N"),
        *TRAIN_CELLS,
        EXECUTOR,
        LOGGERS,
        flag("--plan", "show what would be searched and about how long it takes"),
        settable=True,
    ),
    "reproduce": Command(
        "run the experiments that have claims, or all ladders, and print one table of all",
        (
            "lm reproduce --first-seeds 6 --plan",
            "lm reproduce results/reference/*.lmpack",
        ),
        reproduce,
        option(
            "names", "experiments, such as glu (default: all), or packs, to answer untrained", None, "NAME", nargs="*"
        ),
        option("--tier", "C: claims on a CPU, G: on a GPU, L: ladders (default: C)", choices="CGL", default="C"),
        option("--experiments", "their folder (default: that, or the shipped ones)", Path, default=Path("experiments")),
        *TRAIN,
        option("--first-seeds", "only the first N seeds of each experiment (default: all)", int, "N"),
        *TRAIN_CELLS,
        flag("--plan", "show what would be trained and about how long it takes"),
        settable=True,
    ),
}
