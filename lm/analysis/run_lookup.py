"""Which run is meant by what a person calls it: experiment/arm/seed, the beginning of an id, a folder."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lm.analysis.runs import NO_EXPERIMENT, Run, cells_of, folders_of, run_of_cell, runs
from lm.config.tree import InputError, nearest, path_name
from lm.store.links import require_own
from lm.store.store import Store

LISTED = 5
"""Names that a message lists at most."""


def select_runs(
    found: Sequence[Run],
    experiment: str | None = None,
    arm: str | None = None,
    seed: int | None = None,
    state: str | None = None,
    beginning: str = "",
) -> list[Run]:
    """The runs of an experiment, an arm, a seed, a state, whose id begins so; each only where it is given.

    Raises:
        InputError: for an experiment or an arm that there is not, naming the nearest.
    """
    kept = list(found)
    if experiment is not None:
        kept = _only(kept, [run.experiment for run in kept], experiment, "experiment")
    if arm is not None:
        kept = _only(kept, [run.arm for run in kept], arm, "arm")
    return [
        run
        for run in kept
        if (seed is None or run.seed == seed)
        and (state is None or run.state == state)
        and run.cell.startswith(beginning)
    ]


def find_by_name(text: str, found: Sequence[Run]) -> list[Run]:
    """The runs called experiment, experiment/arm or experiment/arm/seed.

    Raises:
        InputError: where there is none, naming the nearest.
    """
    experiment, *rest = text.rstrip("/").split("/")
    try:
        kept = select_runs(found, experiment, rest[0] if rest else None)
    except InputError as error:
        raise InputError(f"{text}: no such folder, and {error}") from None
    if len(rest) > 1:
        names = [f"{experiment}/{rest[0]}/{run.seed}" for run in kept]
        kept = [run for run, name in zip(kept, names, strict=True) if name == text.rstrip("/")]
        if not kept:
            raise InputError(f"{text}: no such folder, and no such run.{nearest(text, names)} {_choices(names)}")
    return kept


def _only(kept: list[Run], names: list[str], wanted: str, kind: str) -> list[Run]:
    if wanted not in names:
        there = sorted(set(names) - {NO_EXPERIMENT})
        raise InputError(f"no {kind} {wanted!r}.{nearest(wanted, there)} {_choices(there)}")
    return [run for run, name in zip(kept, names, strict=True) if name == wanted]


def _choices(names: Sequence[str]) -> str:
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"Choose from {', '.join(names[:LISTED])}{more}" if names else "There is none"


def find_one(text: str, out: Path) -> Run:
    """The one run that is called so: experiment/arm/seed, or the beginning of an id, below a folder of results.

    Raises:
        InputError: where there is no such run, or more than one, with the nearest choices.
    """
    text = text.rstrip("/")
    if "/" not in text or text[0] in "/.":
        return _by_id(text, out)
    experiment, _, rest = text.partition("/")
    path_name(experiment, f"{text}: the experiment")
    there = list(folders_of(out))
    if experiment not in there:
        raise InputError(
            f"{text}: no experiment {experiment!r} in {out}.{nearest(experiment, there)} {_choices(there)}"
        )
    of_it = runs(out, experiment)
    if of_it.unreadable and not of_it.runs:
        raise InputError(of_it.unreadable[0])
    arm, _, seed = rest.partition("/")
    try:
        kept = select_runs(of_it.runs, arm=arm or None)
    except InputError as error:
        raise InputError(f"{text}: {experiment} has {error}") from None
    if seed:
        kept = [run for run in kept if str(run.seed) == seed]
    if len(kept) == 1:
        return kept[0]
    names = [run.name for run in kept or select_runs(of_it.runs, arm=arm or None)]
    what = f"{len(kept)} runs" if kept else f"no seed {seed!r}"
    raise InputError(f"{text}: {what}; expected experiment/arm/seed.{nearest(text, names)} {_choices(names)}")


def _by_id(text: str, out: Path) -> Run:
    store = Store(out)
    text = path_name(text, "RUN: no such folder, and as the beginning of an id")
    ids = [cell for cell in cells_of(store) if cell.startswith(text)]
    if len(ids) > 1:
        listed = ", ".join(cell[:12] for cell in ids[:LISTED])
        raise InputError(f"{text}: {len(ids)} runs under {store.cells} begin like this: {listed}; give more of the id")
    if ids:
        return run_of_cell(store, ids[0])
    there = list(folders_of(out))
    if text in there:
        found = runs(out, text).runs
        such = f", such as {found[0].name}" if found else ""
        raise InputError(f"{text}: an experiment; expected one of its runs{such}")
    near = f".{nearest(text, there)} {_choices([f'{name}/ARM/SEED' for name in there])}" if there else ""
    raise InputError(
        f"{text}: no finished run; expected the folder of one, such as {store.cells}/ID, experiment/arm/seed, or the "
        f"beginning of an ID there{near}"
    )


def experiments_using(cell: str, found: Iterable[Run]) -> list[Run]:
    """The runs of experiments that are this cell; several experiments may share one."""
    return [run for run in found if run.cell == cell and run.experiment != NO_EXPERIMENT]


def find_run_or_arm(text: str, out: Path) -> tuple[Path, list[Run]]:
    """A run, or all runs of an arm called `experiment/arm`, and the folder of results that they lie in.

    Raises:
        InputError: where there is no such run or arm, with the nearest choices.
    """
    given = Path(text)
    if os.path.isfile(given / "record.json"):
        place = given.resolve()
        require_own(place.parent, [place.name])
        return place.parent.parent, [run_of_cell(Store(place.parent.parent), place.name)]
    experiment, _, arm = text.rstrip("/").partition("/")
    if experiment in folders_of(out) and arm and "/" not in arm:
        try:
            return out, select_runs(runs(out, experiment).runs, arm=arm)
        except InputError as error:
            raise InputError(f"{text}: {experiment} has {error}") from None
    return out, [find_one(text, out)]
