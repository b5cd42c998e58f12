"""All runs below a folder of results: what was asked for, what became of it, and which run a name means."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lm.analysis.results import read_manifest
from lm.config.tree import InputError, load_yaml, nearest, path_name
from lm.store.files import read_json, require_own
from lm.store.formats import SEARCH
from lm.store.record import Record, StudyManifest
from lm.store.side_files import ProgressFile, read_progress
from lm.store.store import Store
from lm.store.validation import check_shape, is_number

State = Literal["ok", "diverged", "failed", "damaged", "training", "interrupted", "dropped", "missing"]
# states of a run; `dropped` is the cell of a trial that was pruned, or whose other seed failed
STATES: tuple[State, ...] = ("ok", "diverged", "failed", "damaged", "training", "interrupted", "dropped", "missing")

ENDED = ("ok", "diverged", "failed", "dropped")
NO_EXPERIMENT = "-"  # stands for the experiment and the arm of a cell that belongs to none, as `lm fit` makes them


@dataclass(frozen=True)
class RunEntry:
    """A cell as one experiment or search requests it, or NO_EXPERIMENT for a cell that belongs to none.

    A run that has ended has a record, if it can be read, and another its progress and who trains it now. `note` says
    why it failed or diverged, or what is damaged. `seed` is None where nothing says so.
    """

    cell: str
    state: State
    record: Record | None = None
    progress: ProgressFile | None = None
    holder: str | None = None
    note: str = ""
    experiment: str = NO_EXPERIMENT
    arm: str = NO_EXPERIMENT
    seed: int | None = None

    @property
    def name(self) -> str:
        """Name on a command line: experiment/arm/seed, or the beginning of the id without an experiment."""
        return self.cell[:12] if self.experiment == NO_EXPERIMENT else f"{self.experiment}/{self.arm}/{self.seed}"

    @property
    def nll(self) -> float | None:
        """Validation loss of a run that went well."""
        nll = self.record["metrics"].get("nll") if self.record is not None and self.state == "ok" else None
        return float(nll) if is_number(nll) and nll is not None else None

    @property
    def seconds(self) -> float | None:
        """Duration of a run that went well and was not interrupted."""
        if self.record is None or self.state != "ok" or self.record["provenance"].get("resumed"):
            return None
        origin: Mapping[str, Any] = self.record["provenance"]
        if is_number(measured := origin.get("seconds")) and measured is not None:
            return float(measured)
        times = [origin.get(name) for name in ("started", "finished")]
        start, end = (float(time) if is_number(time) and time is not None else 0.0 for time in times)
        return end - start if end > start else None


@dataclass(frozen=True)
class RunIndex:
    """The runs below a folder, what is wrong with manifests, and the cells that each search has yet to begin."""

    runs: list[RunEntry]
    unreadable: list[str]
    to_come: dict[str, int]

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments and searches."""
        names = dict.fromkeys([*(run.experiment for run in self.runs), *self.to_come])
        return [name for name in names if name != NO_EXPERIMENT]


def runs(out: Path, only: str | None = None) -> RunIndex:
    """List all runs below a folder of results, or of one experiment in it. Raises InputError if it holds no results."""
    folders = folders_of(out)
    if not folders and not os.path.isdir(out / "cells"):
        what = "holds no results" if os.path.isdir(out) else "no such folder"
        expected = "a folder that `lm ablate` made, or the name of an experiment in results"
        raise InputError(f"{out}: {what}; expected {expected}.{nearest_results(out)}")
    names = folders if only is None else [only, f"{only}.tuned"]
    require_own(out, [*{name.removesuffix(".tune") for name in names}, "cells"])
    store, listed, unreadable = Store(out), list[RunEntry](), list[str]()
    by_cell: dict[str, RunEntry] = {}
    to_come: dict[str, int] = {}
    for name in folders if only is None else [only]:
        for folder, prefix in folders.get(name, []):
            try:
                requests, more = _requested_cells(folder, prefix)
            except InputError as error:
                unreadable.append(str(error))
                continue
            if more > 0:
                to_come[name] = to_come.get(name, 0) + more
            for arm, seed, cell, dropped in requests:
                by_cell[cell] = by_cell.get(cell) or _state_of(store, cell, dropped)
                listed.append(replace(by_cell[cell], experiment=name, arm=arm, seed=seed))
    if only is None:
        listed += [run_of_cell(store, cell) for cell in cells_of(store) if cell not in by_cell]
    return RunIndex(listed, unreadable, to_come)


def nearest_results(path: Path, ending: str = "") -> str:
    """Return ` Did you mean X?` for what holds results and has a name like that of a path, or an empty string.

    That is a folder beside it, a file of this `ending`, or, of a mere name, an experiment in `results`.
    """
    names = [str(path.parent / name) for name in _names(path.parent)]
    if ending and os.path.isdir(path.parent):
        names += sorted(str(file) for file in path.parent.glob(f"*{ending}"))
    if path == Path(path.name):
        names += [name for name in _names(Path("results")) if is_experiment_or_search(Path("results", name))]
    return nearest(path, [name for name in names if name != str(path)])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder or ".") if entry.is_dir())
    except (OSError, ValueError):
        return []


def folders_of(out: Path) -> dict[str, list[tuple[Path, str]]]:
    """Find the folders of each experiment and search below `out`, and the prefix of its trials' names.

    The searches that tune the arms of an experiment go by its name with `.tune`. Raises InputError.
    """
    if os.path.isdir(out) and not os.access(out, os.R_OK | os.X_OK):
        raise InputError(f"{out}: cannot be read ({os.strerror(errno.EACCES)})")
    folders: dict[str, list[tuple[Path, str]]] = {}
    for name in _names(out):
        folder = out / name
        if name == "cells" or name[0] == ".":
            continue
        if is_experiment_or_search(folder):
            folders.setdefault(name, []).append((folder, ""))
        for arm in _names(folder / "tune"):
            if os.path.isfile(folder / "tune" / arm / "study.json"):
                folders.setdefault(f"{name}.tune", []).append((folder / "tune" / arm, f"{arm}."))
    return folders


def _requested_cells(folder: Path, prefix: str) -> tuple[list[tuple[str, int, str, bool]], int]:
    """Read arm, seed, cell and whether it was discarded of every requested run, and the number of cells to come."""
    if (folder / "experiment.json").is_file():
        arms = {arm: described["cells"] for arm, described in read_manifest(folder)["arms"].items()}
        discarded, to_come = set[str](), 0
    else:
        path = folder / "study.json"
        study: Any = SEARCH.read(read_json(path), path)
        check_shape(study, StudyManifest, path, "run `lm sweep` again")
        arms = {f"{prefix}trial_{trial['number']}": trial.get("cells") or {} for trial in study["study"]}
        over = [trial["number"] for trial in study["study"] if trial["state"] in ("pruned", "failed")]
        discarded = {f"{prefix}trial_{number}" for number in over}
        to_come = (study["trials"] - len(study["study"])) * len(study["seeds"])
    requests = []
    for arm, cells in arms.items():
        for seed, cell in cells.items():
            if not (seed.isascii() and seed.isdecimal() and len(seed) <= 20):
                raise InputError(f"{folder}: is damaged, found seed {seed[:20]!r}; run the same command again")
            requests.append((arm, int(seed), path_name(cell, f"{folder}: {arm}"), arm in discarded))
    return requests, to_come


def cells_of(store: Store) -> list[str]:
    """List the ids of all cells in a store, finished or in training."""
    names = _names(store.cells)
    in_work = {name.removeprefix(".").removesuffix(".work") for name in names if name.endswith(".work")}
    ids = {name for name in names if name[0] != "."} | in_work - {""}
    return sorted(name for name in ids if name[0] != ".")


def _state_of(store: Store, cell: str, dropped: bool = False) -> RunEntry:
    holder, progress = store.held_by(cell), read_progress(store.work(cell))  # first, as it may finish meanwhile
    if store.finished(cell):
        try:
            record = store.record(cell)
        except InputError as error:
            return RunEntry(cell, "damaged", note=str(error))
        return RunEntry(cell, record["status"], record, note=str(record["error"] or ""))
    if holder is not None:
        unseen = "" if holder.is_local() else ", by its own word: whether it still runs cannot be seen from here"
        return RunEntry(cell, "training", progress=progress, holder=f"{holder}{unseen}")
    started = os.path.isdir(store.work(cell))
    return RunEntry(cell, "dropped" if dropped else "interrupted" if started else "missing", progress=progress)


def run_of_cell(store: Store, cell: str) -> RunEntry:
    """Describe a cell outside of experiments, with the seed of its configuration."""
    for folder in (store.directory(cell), store.work(cell)):
        try:
            seed = load_yaml(folder / "config.yaml").get("seed")
        except InputError:
            continue
        return replace(_state_of(store, cell), seed=seed if type(seed) is int else None)
    return _state_of(store, cell)


def is_experiment_or_search(folder: Path) -> bool:
    """Return whether a folder is that of an experiment or of a search."""
    return any(os.path.isfile(folder / kind) for kind in ("experiment.json", "study.json"))


def runs_of_folder(folder: Path) -> RunIndex:
    """List the runs of a folder of results, or of an experiment's folder in one. Raises InputError for another."""
    if not is_experiment_or_search(folder):
        return runs(folder)
    whole = folder.resolve()
    return runs(whole.parent, whole.name)


LISTED = 5  # names that a message lists at most


def select_runs(
    candidates: Sequence[RunEntry],
    experiment: str | None = None, arm: str | None = None, seed: int | None = None, state: str | None = None,
    beginning: str = "", where: str = "",
) -> list[RunEntry]:  # fmt: skip
    """Select runs by what is given. Raises InputError, after `where`, with the nearest experiment or arm."""
    selected = list(candidates)
    for kind, name in (("experiment", experiment), ("arm", arm)):
        if name is not None:
            choices = sorted({getattr(run, kind) for run in selected} - {NO_EXPERIMENT})
            selected = [run for run in selected if getattr(run, kind) == name]
            if not selected:
                raise InputError(f"{where}no {kind} {name!r}.{nearest(name, choices)} {_choices(choices)}")
    selected = [run for run in selected if seed in (None, run.seed) and state in (None, run.state)]
    return [run for run in selected if run.cell.startswith(beginning)]


def find_by_name(text: str, candidates: Sequence[RunEntry]) -> list[RunEntry]:
    """Find the runs named experiment, experiment/arm or experiment/arm/seed. Raises InputError naming the nearest."""
    name = text.rstrip("/")
    experiment, *rest = name.split("/")
    of_arm = select_runs(candidates, experiment, rest[0] if rest else None, where=f"{text}: no such folder, and ")
    selected = [run for run in of_arm if len(rest) < 2 or run.name == name]
    if not selected:
        names = [run.name for run in of_arm]
        raise InputError(f"{text}: no such folder, and no such run.{nearest(text, names)} {_choices(names)}")
    return selected


def _choices(names: Sequence[str]) -> str:
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"Choose from {', '.join(names[:LISTED])}{more}" if names else "There is none"


def find_one(text: str, out: Path) -> RunEntry:
    """Find the run named experiment/arm/seed, or by the beginning of its id. Raises InputError with the nearest."""
    name, store = text.rstrip("/"), Store(out)
    ids = [cell for cell in cells_of(store) if name and cell.startswith(name)]
    if len(ids) > 1:
        listed = ", ".join(cell[:12] for cell in ids[:LISTED])
        raise InputError(f"{text}: {len(ids)} runs under {store.cells} begin like this: {listed}; give more of the id")
    if ids:
        return run_of_cell(store, ids[0])
    selected = _named(name, out)
    if len(selected) > 1:
        names = [run.name for run in selected]
        raise InputError(f"{text}: {len(selected)} runs; expected experiment/arm/seed. {_choices(names)}")
    return selected[0]


def _named(name: str, out: Path) -> list[RunEntry]:
    """Find the runs named experiment, experiment/arm or experiment/arm/seed in a folder of results."""
    experiment, experiments = name.partition("/")[0], list(folders_of(out))
    if experiment not in experiments:
        near = f"{nearest(experiment, experiments)} {_choices(experiments)}"
        expected = "the folder of a run, experiment/arm/seed, or the beginning of an id"
        raise InputError(
            f"{name}: no finished run, and no experiment of that name in {out}; expected {expected}.{near}"
        )
    index = runs(out, experiment)
    if index.unreadable and not index.runs:
        raise InputError(index.unreadable[0])
    return find_by_name(name, index.runs)


def experiments_using(cell: str, all_runs: Iterable[RunEntry]) -> list[RunEntry]:
    """List the runs of experiments that share this cell."""
    return [run for run in all_runs if run.cell == cell and run.experiment != NO_EXPERIMENT]


def find_run_or_arm(text: str, out: Path) -> tuple[Path, list[RunEntry]]:
    """Find a run, or all runs of an arm named `experiment/arm`, with their folder of results. Raises InputError."""
    path, name = Path(text), text.rstrip("/")
    if os.path.isfile(path / "record.json"):
        folder = path.resolve()
        require_own(folder.parent, [folder.name])
        return folder.parent.parent, [run_of_cell(Store(folder.parent.parent), folder.name)]
    return out, _named(name, out) if name.count("/") == 1 else [find_one(text, out)]
