"""Which run is meant by what a person calls it: experiment/arm/seed, the beginning of an id, a folder."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lm.analysis.runs import NO_EXPERIMENT, RunEntry, cells_of, folders_of, run_of_cell, runs
from lm.config.tree import InputError, nearest, path_name
from lm.store.files import require_own
from lm.store.store import Store

LISTED = 5
"""Names that a message lists at most."""


def select_runs(
    candidates: Sequence[RunEntry],
    experiment: str | None = None,
    arm: str | None = None,
    seed: int | None = None,
    state: str | None = None,
    beginning: str = "",
) -> list[RunEntry]:
    """Select runs by experiment, arm, seed, state and the beginning of the id, where given.

    Raises:
        InputError: for an experiment or an arm that there is not, naming the nearest.
    """
    selected = list(candidates)
    if experiment is not None:
        selected = _only(selected, [run.experiment for run in selected], experiment, "experiment")
    if arm is not None:
        selected = _only(selected, [run.arm for run in selected], arm, "arm")
    return [
        run
        for run in selected
        if (seed is None or run.seed == seed)
        and (state is None or run.state == state)
        and run.cell.startswith(beginning)
    ]


def find_by_name(text: str, candidates: Sequence[RunEntry]) -> list[RunEntry]:
    """Find the runs named experiment, experiment/arm or experiment/arm/seed.

    Raises:
        InputError: where there is none, naming the nearest.
    """
    experiment, *rest = text.rstrip("/").split("/")
    try:
        selected = select_runs(candidates, experiment, rest[0] if rest else None)
    except InputError as error:
        raise InputError(f"{text}: no such folder, and {error}") from None
    if len(rest) > 1:
        names = [f"{experiment}/{rest[0]}/{run.seed}" for run in selected]
        selected = [run for run, name in zip(selected, names, strict=True) if name == text.rstrip("/")]
        if not selected:
            raise InputError(f"{text}: no such folder, and no such run.{nearest(text, names)} {_choices(names)}")
    return selected


def _only(candidates: list[RunEntry], names: list[str], name: str, kind: str) -> list[RunEntry]:
    if name not in names:
        choices = sorted(set(names) - {NO_EXPERIMENT})
        raise InputError(f"no {kind} {name!r}.{nearest(name, choices)} {_choices(choices)}")
    return [run for run, its_name in zip(candidates, names, strict=True) if its_name == name]


def _choices(names: Sequence[str]) -> str:
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"Choose from {', '.join(names[:LISTED])}{more}" if names else "There is none"


def find_one(text: str, out: Path) -> RunEntry:
    """Find the run named experiment/arm/seed, or by the beginning of its id, below a folder of results.

    Raises:
        InputError: where there is no such run, or more than one, with the nearest choices.
    """
    text = text.rstrip("/")
    if "/" not in text or text[0] in "/.":
        return _by_id(text, out)
    experiment, _, rest = text.partition("/")
    path_name(experiment, f"{text}: the experiment")
    experiments = list(folders_of(out))
    if experiment not in experiments:
        raise InputError(
            f"{text}: no experiment {experiment!r} in {out}.{nearest(experiment, experiments)} {_choices(experiments)}"
        )
    of_it = runs(out, experiment)
    if of_it.unreadable and not of_it.runs:
        raise InputError(of_it.unreadable[0])
    arm, _, seed = rest.partition("/")
    try:
        selected = select_runs(of_it.runs, arm=arm or None)
    except InputError as error:
        raise InputError(f"{text}: {experiment} has {error}") from None
    if seed:
        selected = [run for run in selected if str(run.seed) == seed]
    if len(selected) == 1:
        return selected[0]
    names = [run.name for run in selected or select_runs(of_it.runs, arm=arm or None)]
    what = f"{len(selected)} runs" if selected else f"no seed {seed!r}"
    raise InputError(f"{text}: {what}; expected experiment/arm/seed.{nearest(text, names)} {_choices(names)}")


def _by_id(text: str, out: Path) -> RunEntry:
    store = Store(out)
    text = path_name(text, "RUN: no such folder, and as the beginning of an id")
    ids = [cell for cell in cells_of(store) if cell.startswith(text)]
    if len(ids) > 1:
        listed = ", ".join(cell[:12] for cell in ids[:LISTED])
        raise InputError(f"{text}: {len(ids)} runs under {store.cells} begin like this: {listed}; give more of the id")
    if ids:
        return run_of_cell(store, ids[0])
    experiments = list(folders_of(out))
    if text in experiments:
        its_runs = runs(out, text).runs
        such = f", such as {its_runs[0].name}" if its_runs else ""
        raise InputError(f"{text}: an experiment; expected one of its runs{such}")
    near = (
        f".{nearest(text, experiments)} {_choices([f'{name}/ARM/SEED' for name in experiments])}" if experiments else ""
    )
    raise InputError(
        f"{text}: no finished run; expected the folder of one, such as {store.cells}/ID, experiment/arm/seed, or the "
        f"beginning of an ID there{near}"
    )


def experiments_using(cell: str, all_runs: Iterable[RunEntry]) -> list[RunEntry]:
    """List the runs of experiments that share this cell."""
    return [run for run in all_runs if run.cell == cell and run.experiment != NO_EXPERIMENT]


def find_run_or_arm(text: str, out: Path) -> tuple[Path, list[RunEntry]]:
    """Find a run, or all runs of an arm named `experiment/arm`, with their folder of results.

    Raises:
        InputError: where there is no such run or arm, with the nearest choices.
    """
    path = Path(text)
    if os.path.isfile(path / "record.json"):
        folder = path.resolve()
        require_own(folder.parent, [folder.name])
        return folder.parent.parent, [run_of_cell(Store(folder.parent.parent), folder.name)]
    experiment, _, arm = text.rstrip("/").partition("/")
    if experiment in folders_of(out) and arm and "/" not in arm:
        try:
            return out, select_runs(runs(out, experiment).runs, arm=arm)
        except InputError as error:
            raise InputError(f"{text}: {experiment} has {error}") from None
    return out, [find_one(text, out)]
