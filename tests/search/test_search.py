"""`lm sweep` end to end: processes, pruning, kills, and the report."""

import functools
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from helpers import Capture, Patch, known
from messages import CheckMessage
from optuna.storages.journal import JournalFileBackend
from searches import write_sweep
from undrawn import UNDRAWN

from lm.analysis.runs import find_one
from lm.cli import main
from lm.config.tree import load_yaml
from lm.store.store import Store
from lm.training.cell import check

pytestmark = pytest.mark.slow

SPACE: dict[str, Any] = {
    "optim.lr": {"low": "1e-4", "high": 0.1, "log": True},
    "model.width": {"choices": [16, 24]},
    "model.heads": {"choices": [1, 2, 3]},
    "model.position": {
        "choices": ["Alibi", {"class_path": "Rope", "space": {"base": {"low": 100, "high": "1e5", "log": True}}}]
    },
}


write = functools.partial(write_sweep, trainer={"max_steps": 24}, space=SPACE, trials=8)


def command(spec: Path, out: Path, *more: str) -> list[str]:
    return [*UNDRAWN, "sweep", str(spec), "--out", str(out), "--checkpoint-seconds", "0", *more]


Sweep = Callable[..., SimpleNamespace]


@pytest.fixture
def sweep(capsys: Capture) -> Sweep:
    """Runs the command in this process, which starts its workers: what it answered, printed and told."""

    def run(spec: Path, out: Path, *more: str) -> SimpleNamespace:
        capsys.readouterr()
        code = main(command(spec, out, *more)[len(UNDRAWN) :])
        shown = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=shown.out, stderr=shown.err)

    return run


def study(out: Path, name: str = "small") -> dict[str, Any]:
    """What a search left, and that it agrees with the records and with Optuna's own reading of the journal."""
    found: dict[str, Any] = json.loads((out / name / "study.json").read_text())
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / name / "study.journal")))
    theirs = optuna.load_study(study_name=name, storage=storage).trials
    store = Store(out)
    assert [trial["params"] for trial in found["study"]] == [trial.params for trial in theirs]
    for trial, other in zip(found["study"], theirs, strict=True):
        if trial["state"] == "complete":
            records = [store.record(cell) for cell in trial["cells"].values()]
            expected = [
                sum(known({**r["metrics"], **r["cost"]}[quantity]) for r in records) / len(records)
                for quantity in found["objectives"]
            ]
            assert trial["values"] == other.values == pytest.approx(expected, rel=1e-12)
        elif trial["state"] == "pruned":
            assert not any(store.finished(cell) for cell in trial["cells"].values())
    return found


def best_of(found: dict[str, Any]) -> int:
    """The number of the complete trial with the lowest value."""
    complete = [trial for trial in found["study"] if trial["state"] == "complete"]
    return int(min(complete, key=lambda trial: trial["values"][0])["number"])


@pytest.mark.extra
def test_every_trial_ends_as_what_it_was(tmp_path: Path, sweep: Sweep, check_message: CheckMessage) -> None:
    spec = write(tmp_path, pruner={"name": "median", "n_startup_trials": 2}, trials=12)
    done = sweep(spec, tmp_path / "out", "--workers", "2")
    assert done.returncode == 0, done.stderr
    found = study(tmp_path / "out")
    states = [trial["state"] for trial in found["study"]]
    assert len(states) == 12
    assert set(states) == {"complete", "pruned", "failed"}
    for trial in found["study"]:
        unfit = trial["params"]["model.heads"] == "3" and trial["params"]["model.width"] == "16"
        assert (trial["state"] == "failed") == unfit
        if trial["state"] == "failed":
            assert f"trial {trial['number']}: failed: {trial['reason']}\n" in done.stderr
    (reason,) = {trial["reason"] for trial in found["study"] if trial["state"] == "failed"}
    check_message(reason)
    assert done.stderr.count(": pruned: ") == states.count("pruned")
    assert not list((tmp_path / "out/cells").glob(".*.work"))
    assert {path.name for path in (tmp_path / "out/small").glob("*.png")} == {
        "history.png",
        "slices.png",
        "parallel_coordinates.png",
    }
    names = [f"small/trial_{best_of(found)}/{seed}" for seed in found["seeds"]]
    (line,) = [line for line in done.stderr.splitlines() if "best.yaml" in line]
    check_message(line.replace(", ".join(names), "NAMES"))
    best = check(load_yaml(tmp_path / "out/small/best.yaml"))
    assert best.id == found["study"][best_of(found)]["cells"][str(found["seeds"][0])]
    assert find_one(names[0], tmp_path / "out").cell == best.id
    table = (tmp_path / "out/small/table.md").read_text()
    again = sweep(spec, tmp_path / "out", "--workers", "2")
    check_message([line for line in again.stderr.splitlines() if line.startswith("12 trials: ")])
    assert (tmp_path / "out/small/table.md").read_text() == table


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_a_killed_search_keeps_its_budget_when_run_again(tmp_path: Path, sweep: Sweep) -> None:
    spec, out = write(tmp_path, sampler="random", trials=6), tmp_path / "out"
    for _ in range(3):
        process = subprocess.Popen(command(spec, out, "--workers", "2"), stderr=subprocess.DEVNULL)
        before = len(list(out.glob("cells/[0-9a-f]*")))
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            if len(list(out.glob("cells/[0-9a-f]*"))) > before or list(out.glob("cells/.*.work/last.ckpt")):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    journal = out / "small/study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')  # a line torn by a kill
    done = sweep(spec, out, "--workers", "2")
    assert done.returncode == 0, done.stderr
    found = study(out)
    assert len(found["study"]) == 6
    assert {trial["state"] for trial in found["study"]} <= {"complete", "failed"}
    assert not list((out / "cells").glob(".*.work"))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_a_cell_of_another_search_is_not_trained_again(
    tmp_path: Path, sweep: Sweep, check_message: CheckMessage
) -> None:
    space = {"model.layers": {"choices": [1, 2]}}
    objectives = {"nll": "lower", "parameters": "lower"}
    options: dict[str, Any] = {"space": space, "sampler": "grid", "trials": 2, "seeds": [0, 1]}
    options["objectives"] = objectives
    first = sweep(write(tmp_path, "first", **options), tmp_path / "out")
    assert first.returncode == 0, first.stderr
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/cells").glob("*/*")}
    second = sweep(write(tmp_path, "second", **options), tmp_path / "out")
    check_message([line for line in second.stderr.splitlines() if " seed " in line])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out/cells").glob("*/*")} == cells
    values = [[t["values"] for t in study(tmp_path / "out", name)["study"]] for name in ("first", "second")]
    assert values[0] == values[1]
    assert (tmp_path / "out/second/pareto.svg").is_file()


@pytest.mark.extra
def test_all_processes_of_a_cell_stop_when_it_is_pruned(tmp_path: Path, sweep: Sweep) -> None:
    common = {"trainer.devices": 2, "trainer.strategy": "ddp", "trainer.max_steps": 12}
    space = {"optim.lr": {"choices": [0.01, 1.0e-9]}}
    pruner = {"name": "median", "n_startup_trials": 1}
    spec = write(tmp_path, space=space, common=common, sampler="grid", trials=2, pruner=pruner)
    done = sweep(spec, tmp_path / "out", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert [trial["state"] for trial in study(tmp_path / "out")["study"]] == ["complete", "pruned"]
    assert not list((tmp_path / "out/cells").glob(".*.work"))


def test_a_plan_trains_and_writes_nothing(
    tmp_path: Path, sweep: Sweep, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    done = sweep(write(tmp_path), tmp_path / "out", "--plan")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "optim.lr" in line or line.startswith("8 trials ")]
    check_message([re.sub("about .* at a time", "about TIME", line) for line in told])
    assert not (tmp_path / "out").exists()
