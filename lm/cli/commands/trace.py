"""`lm trace`: the cells and commands behind a number of a table."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Command, option, out_option
from lm.config.plain import shown
from lm.config.tree import InputError, nearest


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print where the numbers of an arm or a run come from."""
    from rich.console import Console

    from lm.analysis.results import read_manifest
    from lm.report.pack import can_be_packed, open_results, rungs_of
    from lm.report.trace import trace

    folder, arm, metric = options.folder, options.arm, options.metric
    if not folder.exists() and can_be_packed(options.out / folder):
        folder = options.out / folder
    elif metric is None and (run_of_arm := _find_run(folder, options.out)) is not None:
        folder, arm, metric = *run_of_arm, arm
    with open_results(folder) as source:
        experiment = source.folder
        if rungs := rungs_of(experiment):
            by_name = {rung.name.removeprefix(f"{experiment.name}."): rung for rung in rungs}
            fitting = [name for name in by_name if (arm or "").startswith(f"{name}.") and len(arm) > len(name) + 1]
            if not fitting:
                value, near = "", ""
                if arm:
                    value, near = f", found {shown(arm)}", nearest(arm.partition(".")[0], list(by_name))
                choices = f"{near} Its rungs are {', '.join(by_name)}"
                raise InputError(f"{folder}: is a ladder; expected RUNG.ARM after it{value}.{choices}")
            rung = max(fitting, key=len)  # one name may begin another
            experiment, arm = by_name[rung], arm[len(rung) + 1 :]
        if metric is None or arm is None:
            manifest = read_manifest(experiment)
            if arm is None:
                raise InputError(f"{folder}: expected an arm after it, one of {', '.join(manifest['arms'])}")
            metric = manifest["metric"]
        trace(experiment, arm, metric, Console(), source.pack)
    return 0


def _find_run(path: Path, out: Path) -> tuple[Path, str] | None:
    """Return the experiment's folder and the arm of a run; None for an experiment or a pack. Raises InputError."""
    from lm.analysis.runs import NO_EXPERIMENT, experiments_using, find_one, is_experiment_or_search, runs
    from lm.store.archive import ENDING

    if (path / "record.json").is_file():
        cell = path.resolve()
        out, name = cell.parent.parent, cell.name
    elif path.exists() or is_experiment_or_search(path) or path.with_name(f"{path.name}{ENDING}").exists():
        return None
    else:
        name = str(path)
    match = find_one(name, out)
    if match.experiment != NO_EXPERIMENT:
        return out / match.experiment, match.arm
    users = {(run.experiment, run.arm): run for run in experiments_using(match.cell, runs(out).runs)}
    if len(users) != 1:
        names = ", ".join(run.name for run in users.values())
        raise InputError(f"{path}: {f'belongs to {names}; give one of them' if users else 'belongs to no experiment'}")
    experiment, arm = next(iter(users))
    return out / experiment, arm


COMMANDS = {
    "trace": Command(
        "print the cells behind a number of a table, and the commands that made them",
        ("lm trace quickstart swiglu nll", "lm trace quickstart/swiglu/0"),
        run,
        option(
            "folder",
            "an experiment's name, its folder such as results/quickstart, or its pack; or a run, such as "
            "quickstart/swiglu/0 or the beginning of its id",
            type=Path,
            metavar="EXPERIMENT",
        ),
        option("arm", "one of its arms, of a ladder RUNG.ARM; left out after a run", nargs="?"),
        option(
            "metric",
            "a quantity such as nll, or a path into the records such as initial/entropy (default: the headline)",
            nargs="?",
        ),
        out_option(),
        usage="lm trace EXPERIMENT ARM [METRIC], or lm trace RUN [METRIC]",
    ),
}
