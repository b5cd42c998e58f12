"""`lm ls`, `lm status`, `lm diff` and `lm dashboard`: commands that show a folder of results."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.cli.options import JSON, RESULTS, Command, bounded, experiment_folder, option, out_option, print_result, results
from lm.config.reading import load_config
from lm.config.tree import InputError, Tree, load_yaml, nearest
from lm.execution.signal_handling import INTERRUPTED, cause

if TYPE_CHECKING:
    from lm.store.record import Record

PORT = 8765
SIDE = "a run (experiment/arm/seed, its folder, the beginning of its id), an arm (experiment/arm) or a YAML file"


def _report_unreadable(lines: Sequence[str]) -> int:
    """Print a line for each unreadable file; return the exit code, 1 if there are any."""
    for line in lines:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if lines else 0


def list_runs(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the selected runs of a folder."""
    from lm.analysis.runs import STATES, find_by_name, runs_of_folder, select_runs
    from lm.report.status import run_json, show_runs

    if options.status is not None and options.status not in STATES:
        near = nearest(options.status, STATES)
        raise InputError(f"--status: no status {options.status!r}.{near} Choose from {', '.join(STATES)}")
    is_name = not options.folder.exists() and RESULTS.is_dir()
    index = runs_of_folder(RESULTS if is_name else options.folder)
    runs = find_by_name(str(options.folder), index.runs) if is_name else index.runs
    runs = select_runs(runs, options.experiment, options.arm, options.seed, options.status, options.id)
    print_result(options.json, lambda: [run_json(run) for run in runs], lambda console: show_runs(runs, console))
    return _report_unreadable(index.unreadable)


def status(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the progress of everything in a folder."""
    from lm.analysis.runs import runs_of_folder
    from lm.report.status import show_status, status_json

    index = runs_of_folder(experiment_folder(options.folder))
    print_result(options.json, lambda: status_json(index), lambda console: show_status(index, console))
    return _report_unreadable(index.unreadable)


def diff(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the differences between two runs, arms or configurations."""
    sides = (options.left, options.right)
    files = [name.endswith((".yaml", ".yml")) for name in sides]
    if files[0] != files[1]:
        file, other = sides if files[0] else sides[::-1]
        raise InputError(f"{file} is a configuration and {other} is none; expected two of one kind")
    from lm.analysis.comparability import diff_configurations, diff_runs
    from lm.report.run import show_diff

    if files[0]:
        difference = diff_configurations(_resolve(options.left), _resolve(options.right))
    else:
        (left, left_records), (right, right_records) = (_open_side(name, options.out) for name in sides)
        difference = diff_runs((left, right), (left_records, right_records))
    show = functools.partial(show_diff, difference, sides, measured=not files[0])
    print_result(options.json, lambda: dataclasses.asdict(difference), show)
    return 0


def _resolve(file: str) -> Tree:
    """Return the configuration in a file with all defaults. Raises InputError if it could not be trained."""
    from lm.training.cell import checked_unread

    tree = load_config(file)
    try:
        return checked_unread(tree)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _open_side(name: str, out: Path) -> "tuple[Tree, list[Record]]":
    """Return the configuration of a run or an arm, and its records. Raises InputError if it has none yet."""
    from lm.analysis.runs import find_run_or_arm
    from lm.store.store import Store

    store, runs = find_run_or_arm(name, out)
    records = [run.record for run in runs if run.record is not None]
    if not records:
        raise InputError(f"{name}: {runs[0].name} is {runs[0].state}; expected one that has ended")
    complete = [record for record in records if record["status"] == "ok"] or records[:1]
    return load_yaml(Store(store).directory(complete[0]["id"]) / "config.yaml"), complete


def dashboard(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Serve the results of a folder as web pages until interrupted."""
    from lm.report.web.board import Board, optuna_commands
    from lm.report.web.serve import Server

    board = Board(experiment_folder(options.folder))
    try:
        server = Server(board, options.host, PORT if options.port is None else options.port)
    except InputError:
        if options.port is not None:
            raise
        server = Server(board, options.host, 0)
    with server:
        print(f"dashboard: {server.address} (Ctrl-C ends it)", flush=True)
        for command in optuna_commands(board):
            print(f"trials: {command}", file=sys.stderr)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            if (ended := cause()) != "interrupted":  # by a signal, and not by Ctrl-C
                print(f"lm: {ended}", file=sys.stderr)
                return INTERRUPTED
            print("\nlm: dashboard ended", file=sys.stderr)
    return 0


COMMANDS = {
    "ls": Command(
        "list the runs in a folder of results, all or a selection",
        ("lm ls --experiment quickstart --status failed", "lm ls results --arm swiglu --seed 0 --json"),
        list_runs,
        results("; or experiment/arm or experiment/arm/seed in results"),
        option("--experiment", "only the runs of this experiment or search", None, "NAME"),
        option("--arm", "only the runs of this arm, or trial", None, "NAME"),
        option("--seed", "only the runs with this seed", int, "S"),
        option("--status", "only the runs with this status: ok, failed, training, ...", None, "STATUS"),
        option("--id", "only the runs whose id begins with this", None, "PREFIX", default=""),
        JSON,
    ),
    "status": Command(
        "show what is done, in training, failed and missing in a folder of results",
        ("lm status", "lm status quickstart --json"),
        status,
        results(),
        JSON,
    ),
    "diff": Command(
        "show the differences between two runs, two arms or two configurations",
        ("lm diff quickstart/swiglu quickstart/gelu", "lm diff a.yaml b.yaml --json"),
        diff,
        option("left", SIDE, None, "A"),
        option("right", "another of the same kind", None, "B"),
        out_option(),
        JSON,
    ),
    "dashboard": Command(
        "show the report of a folder of results in a browser, updated as cells end",
        ("lm dashboard", "lm dashboard quickstart --port 8080"),
        dashboard,
        results(),
        option("--port", f"port to listen on (default: {PORT}, or a free one if taken)", bounded(int, 0, 65535)),
        option("--host", "address to listen on; others than this machine need a printed token", default="127.0.0.1"),
    ),
}
