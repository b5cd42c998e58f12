"""`lm trace`: what lies behind a number."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.plain import shown
from lm.config.tree import InputError, nearest

HELP = "print the cells behind a number of a table, and the commands that make them"
EXAMPLES = ("lm trace quickstart pre_norm nll", "lm trace quickstart/pre_norm/0")


def add_options(command: Parser) -> None:
    command.usage = "lm trace EXPERIMENT ARM [METRIC], or lm trace RUN [METRIC]"
    command.add_argument(
        "folder",
        type=Path,
        metavar="EXPERIMENT",
        help="an experiment's name, its folder such as results/quickstart, or its pack; or a run, such as "
        "quickstart/pre_norm/0 or the beginning of its id",
    )
    command.add_argument("arm", nargs="?", help="one of its arms, of a ladder RUNG.ARM; is left out after a run")
    command.add_argument(
        "metric",
        nargs="?",
        help="a quantity such as nll, or a path into the records such as initial/entropy (default: the headline)",
    )
    command.add_argument("--out", type=Path, default=Path("results"), help="folder of results (default: results)")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.analysis.results import read_manifest
    from lm.report.pack import can_be_packed, open_results, rungs_of
    from lm.report.trace import trace

    folder, arm, metric = options.folder, options.arm, options.metric
    if not folder.exists() and can_be_packed(options.out / folder):
        folder = options.out / folder
    elif metric is None and (called := _run(folder, options.out)) is not None:
        folder, arm, metric = *called, arm
    with open_results(folder) as place:
        of = place.folder
        if rungs := rungs_of(of):
            of, arm = _on_rung(folder, {rung.name.removeprefix(f"{of.name}."): rung for rung in rungs}, arm)
        if metric is None or arm is None:
            manifest = read_manifest(of)
            if arm is None:
                raise InputError(f"{folder}: expected an arm after it, one of {', '.join(manifest['arms'])}")
            metric = manifest["metric"]
        trace(of, arm, metric, Console(), place.pack)
    return 0


def _on_rung(ladder: Path, rungs: dict[str, Path], given: str | None) -> tuple[Path, str]:
    """The folder of a rung, and the arm, of `RUNG.ARM`. Raises InputError."""
    given = given or ""
    for rung, folder in sorted(rungs.items(), key=lambda one: -len(one[0])):  # one name may begin another
        if given.startswith(f"{rung}.") and len(given) > len(rung) + 1:
            return folder, given[len(rung) + 1 :]
    found = f", found {shown(given)}" if given else ""
    near = nearest(given.partition(".")[0], list(rungs)) if given else ""
    raise InputError(
        f"{ladder}: is a ladder; expected RUNG.ARM after it{found}.{near} Its rungs are {', '.join(rungs)}"
    )


def _run(given: Path, out: Path) -> tuple[Path, str] | None:
    """The experiment's folder and the arm of a run; None for an experiment or a pack. Raises InputError."""
    from lm.analysis.run_lookup import experiments_using, find_one
    from lm.analysis.runs import NO_EXPERIMENT, is_experiment_or_search, runs
    from lm.store.archive import ENDING

    if (given / "record.json").is_file():
        place = given.resolve()
        out, name = place.parent.parent, place.name
    elif given.exists() or is_experiment_or_search(given) or given.with_name(f"{given.name}{ENDING}").exists():
        return None
    else:
        name = str(given)
    found = find_one(name, out)
    if found.experiment != NO_EXPERIMENT:
        return out / found.experiment, found.arm
    asking = {(run.experiment, run.arm): run for run in experiments_using(found.cell, runs(out).runs)}
    if len(asking) != 1:
        names = ", ".join(run.name for run in asking.values())
        raise InputError(
            f"{given}: {f'stands for {names}; give one of them' if asking else 'no experiment asks for it'}"
        )
    experiment, arm = next(iter(asking))
    return out / experiment, arm
