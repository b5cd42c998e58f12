"""Contents of a folder of results and the work left, as tables, lines and JSON."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from lm.analysis.runs import NO_EXPERIMENT, RunEntry, RunIndex
from lm.report.render import print_table

COLUMNS = {
    "ok": "done", "diverged": "diverged", "failed": "failed", "damaged": "damaged", "dropped": "dropped",
    "training": "in training", "interrupted": "interrupted", "missing": "missing",
}  # fmt: skip
ALWAYS = ("ok", "training", "missing")  # states that always have a column
FAULTY = ("failed", "diverged", "damaged")  # states whose runs have a line with the reason
MOST_TO_COME = 100_000  # largest number of a search's coming cells in an estimate
LINES = 20  # largest number of lines of a kind
ID = 12  # length of a shown id


def duration(seconds: float) -> str:
    """Format a length of time with two units: 8 s, 1 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _distinct(runs: Iterable[RunEntry]) -> list[RunEntry]:
    """Return each cell once, though several arms may use it."""
    return list({run.cell: run for run in runs}.values())


def seconds_left(runs: Sequence[RunEntry], to_come: int = 0) -> float | None:
    """Estimate the seconds until these runs and `to_come` more are done, at today's parallelism; None without data."""
    runs = _distinct(runs)
    training = [_left(run, runs) for run in runs if run.state == "training"]
    others = [_left(run, runs) for run in runs if run.state in ("interrupted", "missing")]
    others += [typical(runs, "")] * min(to_come, MOST_TO_COME)
    estimates = [seconds for seconds in (*training, *others) if seconds is not None]
    if len(estimates) < len(training) + len(others):
        return None
    return max([sum(estimates) / max(1, len(training)), *estimates[: len(training)]])


def _left(run: RunEntry, others: Sequence[RunEntry]) -> float | None:
    progress = run.progress
    if progress is not None and progress["pace"] is not None:
        return max(0, progress["steps"] - progress["step"]) * progress["pace"]
    whole = typical(others, run.arm)
    if whole is not None and progress is not None and progress["steps"] > 0:
        return whole * max(0.0, 1 - progress["step"] / progress["steps"])
    return whole


def typical(runs: Sequence[RunEntry], arm: str) -> float | None:
    """Return the median seconds of an arm's runs, else of any, else as promised by runs in training."""
    of_arm = [run.seconds for run in runs if run.arm == arm and run.seconds is not None]
    of_any = [run.seconds for run in runs if run.seconds is not None]
    paces = [run.progress for run in runs if run.progress is not None]
    promised = [progress["pace"] * progress["steps"] for progress in paces if progress["pace"] is not None]
    durations = of_arm or of_any or promised
    return statistics.median(durations) if durations else None


def counts(runs: Sequence[RunEntry], to_come: int = 0) -> dict[str, int]:
    """Count the cells in each state; trials that a search has yet to begin are missing."""
    number = {state: sum(run.state == state for run in _distinct(runs)) for state in COLUMNS}
    return number | {"missing": number["missing"] + to_come}


def _by_experiment(index: RunIndex) -> dict[str, tuple[list[RunEntry], int]]:
    names = [*index.experiments, *{NO_EXPERIMENT for run in index.runs if run.experiment == NO_EXPERIMENT}]
    runs_of = {name: [run for run in index.runs if run.experiment == name] for name in names}
    return {name: (runs, index.to_come.get(name, 0)) for name, runs in runs_of.items()}


def status_json(index: RunIndex) -> dict[str, Any]:
    """Return the output of `lm status --json`."""
    return {
        "experiments": {
            name: {**counts(runs, to_come), "seconds_left": seconds_left(runs, to_come)}
            for name, (runs, to_come) in _by_experiment(index).items()
        },
        "training": [run_json(run) for run in _distinct(index.runs) if run.state == "training"],
        "seconds_left": seconds_left(index.runs, sum(index.to_come.values())),
        "unreadable": index.unreadable,
    }


def show_status(index: RunIndex, console: Console) -> None:
    """Print counts by experiment and state, runs in training, failures, and the work left."""
    columns, rows, lines = status_parts(index)
    if rows:
        print_table("", columns, rows, console)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def status_parts(index: RunIndex) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the columns and rows of the table of `lm status`, and the lines below it."""
    every = counts(index.runs)
    states = [state for state in COLUMNS if state in ALWAYS or every[state]]
    rows = []
    for name, (of_name, to_come) in _by_experiment(index).items():
        number = counts(of_name, to_come)
        title = "(no experiment)" if name == NO_EXPERIMENT else name
        rows.append([title, str(sum(number.values())), *(str(number[state]) for state in states)])
    runs = _distinct(index.runs)
    lines = [] if rows else ["no cells"]
    lines += [training_line(run) for run in runs if run.state == "training"]
    ended_badly = [run for run in runs if run.state in FAULTY]
    lines += [f"{run.name}: {run.state}: {run.note}" for run in ended_badly[:LINES]]
    if len(ended_badly) > LINES:
        lines.append(f"and {len(ended_badly) - LINES} more like these: lm ls --status {ended_badly[-1].state}")
    for run in [run for run in runs if run.state == "interrupted"][:LINES]:
        at = f" at step {run.progress['step']:,} of {run.progress['steps']:,}" if run.progress else ""
        lines.append(f"{run.name}: interrupted{at}; the same command resumes it")
    all_to_come = sum(index.to_come.values())
    left = every["training"] + every["interrupted"] + every["missing"] + all_to_come
    seconds, cells = seconds_left(index.runs, all_to_come), "1 cell" if left == 1 else f"{left} cells"
    if not left:
        lines.append("nothing is left to train" + " of what can be read" * bool(index.unreadable))
    elif seconds is None:
        lines.append(f"{cells} left; no estimate before one is done or has reported two steps")
    else:
        lines.append(f"{cells} left: about {duration(seconds)} with {every['training'] or 1} at a time")
    return ["experiment", "cells", *(COLUMNS[state] for state in states)], rows, lines


def training_line(run: RunEntry) -> str:
    """Describe a run in training in a line: progress, loss, and who trains it."""
    progress = run.progress
    at = "no step reported yet"
    if progress is not None:
        loss = "" if progress["loss"] is None else f", training loss {progress['loss']:z.4f}"
        at = f"step {progress['step']:,} of {progress['steps']:,}{loss}"
        if progress["pace"] is not None:
            at += f", about {duration((progress['steps'] - progress['step']) * progress['pace'])} left"
    return f"{run.name}: {at}; {run.holder}"


def run_json(run: RunEntry) -> dict[str, Any]:
    """Return a run as a mapping for JSON."""
    alone, at = run.experiment == NO_EXPERIMENT, run.progress
    progress = (None, None, None) if at is None else (at["step"], at["steps"], at["loss"])
    return {
        "name": run.name,
        "experiment": None if alone else run.experiment,
        "arm": None if alone else run.arm,
        "seed": run.seed,
        "id": run.cell,
        "status": run.state,
        "nll": run.nll,
        **dict(zip(("step", "steps", "loss"), progress, strict=True)),
        "held_by": run.holder,
        "note": run.note or None,
    }


def show_runs(runs: Sequence[RunEntry], console: Console) -> None:
    """Print a row for each run: name, seed, status, loss, id."""
    rows = []
    for run in runs:
        at = "" if run.progress is None else f" {run.progress['step']:,}/{run.progress['steps']:,}"
        nll = "-" if run.nll is None else f"{run.nll:z.4f}"
        seed = "-" if run.seed is None else str(run.seed)
        rows.append([run.name, seed, run.state + at, nll, run.cell[:ID]])
    if rows:
        print_table("", ["run", "seed", "status", "validation NLL", "id"], rows, console)
    noun = "run" if len(rows) == 1 else "runs"
    console.print(f"{len(rows)} {noun}", highlight=False)
