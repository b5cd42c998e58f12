"""What became of every run in a folder of results, and which one a name means."""

import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from messages import CheckMessage, Refused
from records import MakeExperiment, record

from lm.analysis.runs import NO_EXPERIMENT, find_one, find_run_or_arm, runs, runs_of_folder, select_runs
from lm.report.status import seconds_left, status_json
from lm.store.files import to_json, write_atomic
from lm.store.formats import PROGRESS, SEARCH
from lm.store.locks import Holder
from lm.store.side_files import PROGRESS_FILE
from lm.store.store import Store


@pytest.fixture
def folder(experiment: MakeExperiment) -> Path:
    """Results of two arms: one run each that is ok, failed and diverged, and three that are missing."""
    return experiment({"base": [2.0, 2.1, "diverged"], "better": [1.8, "failed", None]})


def begun(store: Store, cell: str, step: int = 30, pace: float | None = 0.5) -> None:
    """Leaves what a run of 100 steps leaves on its way."""
    found = {"step": step, "steps": 100, "loss": 3.25, "pace": pace, "at": 0.0}
    write_atomic(store.work(cell) / PROGRESS_FILE, to_json(PROGRESS.stamped(found)))


def states(out: Path) -> dict[str, str]:
    return {run.name: run.state for run in runs(out).runs}


def test_every_run_is_in_the_state_that_its_files_tell(folder: Path) -> None:
    out = folder.parent
    assert states(out) == {
        "demo/base/0": "ok",
        "demo/base/1": "ok",
        "demo/base/2": "diverged",
        "demo/better/0": "ok",
        "demo/better/1": "failed",
        "demo/better/2": "missing",
    }
    (Store(out).directory("base-0") / "record.json").write_text("{")
    assert states(out)["demo/base/0"] == "damaged"
    begun(Store(out), "better-2")
    assert states(out)["demo/better/2"] == "interrupted"


def test_held_cells_are_training_until_their_process_exits(folder: Path, check_message: CheckMessage) -> None:
    store = Store(folder.parent)
    begun(store, "better-2")
    with store.lock("better-2"):
        (run,) = select_runs(runs(folder.parent).runs, state="training")
        assert (run.name, run.progress and run.progress["step"]) == ("demo/better/2", 30)
        assert f"process {os.getpid()} on host {socket.gethostname()}" in str(run.holder)
        assert seconds_left(runs(folder.parent).runs) == 35
    assert states(folder.parent)["demo/better/2"] == "interrupted"
    (lease,) = (store.cells / ".leases" / "better-2").iterdir()
    gone = replace(Holder.this("a" * 16), pid=2**22 + 1)  # past the largest number there is
    lease.write_bytes(gone.written())
    assert states(folder.parent)["demo/better/2"] == "interrupted"
    far = replace(gone, machine="elsewhere")
    lease.write_bytes(far.written())
    assert states(folder.parent)["demo/better/2"] == "training"
    (run,) = select_runs(runs(folder.parent).runs, state="training")
    check_message(str(run.holder).replace(str(far), "HOLDER"))


def test_remaining_time_follows_runs_of_the_same_arm(experiment: MakeExperiment) -> None:
    def long(arm: str, seed: int, stored: dict[str, Any]) -> None:
        stored["provenance"]["finished"] = 10.0 if arm == "base" else 30.0

    folder = experiment({"base": [2.0, None], "better": [1.8, None]}, long)
    found = runs(folder.parent)
    assert seconds_left(found.runs) == 40
    begun(Store(folder.parent), "better-1", 50, None)
    assert seconds_left(runs(folder.parent).runs) == 25
    counted = status_json(found)["experiments"]["demo"]
    assert (counted["ok"], counted["missing"], counted["seconds_left"]) == (2, 2, 40)


def test_a_clock_that_was_set_back_makes_no_run_shorter(experiment: MakeExperiment) -> None:
    def yesterday(arm: str, seed: int, stored: dict[str, Any]) -> None:
        stored["provenance"] |= {"started": 86400.0, "finished": 12.0, "seconds": 12.0}

    (base, better) = runs(experiment({"base": [2.0], "better": [1.8]}, yesterday).parent).runs
    assert (base.seconds, better.seconds) == (12.0, 12.0)


def test_nothing_is_estimated_where_nothing_is_known(experiment: MakeExperiment) -> None:
    assert seconds_left(runs(experiment({"base": [None], "better": [None]}).parent).runs) is None


def test_a_search_has_its_trials_and_those_to_come(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.finish("one", record("one", 2.0, 0))
    trial: dict[str, Any] = {"params": {}, "values": [2.0], "reason": None, "seconds": 1.0}
    trials = [
        {**trial, "number": 0, "state": "complete", "cells": {"0": "one"}},
        {**trial, "number": 1, "state": "pruned", "values": None, "cells": {"0": "two"}},
        {**trial, "number": 2, "state": "open", "values": None, "cells": {"0": "three"}},
    ]
    study: dict[str, Any] = {"name": "s", "title": "S", "notes": "", "objectives": {"nll": "lower"}, "space": {}}
    study |= {"trials": 5, "seeds": [0], "methods": [], "study": trials}
    write_atomic(tmp_path / "s" / "study.json", to_json(SEARCH.stamped(study)))
    write_atomic(tmp_path / "e" / "tune" / "arm" / "study.json", to_json(SEARCH.stamped(study)))
    found = runs(tmp_path)
    of_it = {run.name: run.state for run in found.runs if run.experiment == "s"}
    assert of_it == {"s/trial_0/0": "ok", "s/trial_1/0": "dropped", "s/trial_2/0": "missing"}
    assert "e.tune/arm.trial_2/0" in {run.name for run in found.runs}
    assert status_json(found)["experiments"]["s"]["missing"] == 3
    assert find_one("s/trial_0/0", tmp_path).cell == "one"


def test_single_runs_have_their_id_and_configured_seed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.finish("abcdef", record("abcdef", 2.0, 0))
    (store.directory("abcdef") / "config.yaml").write_text("seed: 7\n")
    (run,) = runs(tmp_path).runs
    assert (run.experiment, run.name, run.seed) == (NO_EXPERIMENT, "abcdef", 7)


def test_damaged_manifests_are_named_and_hide_nothing_else(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("other"))
    (folder.with_name("other") / "experiment.json").write_text("{}")
    found = runs(folder.parent)
    assert len(found.runs) == 6
    assert len(found.unreadable) == 1
    assert "other/experiment.json" in found.unreadable[0]


def test_an_experiments_own_folder_shows_that_one_alone(folder: Path) -> None:
    Store(folder.parent).finish("alone", record("alone", 2.0, 0))
    assert len(runs_of_folder(folder).runs) == 6
    assert len(runs_of_folder(folder.parent).runs) == 7


def test_runs_are_found_by_experiment_arm_seed_status_and_id(folder: Path, refused: Refused) -> None:
    found = runs(folder.parent).runs
    assert [run.name for run in select_runs(found, arm="base", seed=1)] == ["demo/base/1"]
    assert [run.name for run in select_runs(found, "demo", state="failed")] == ["demo/better/1"]
    assert [run.name for run in select_runs(found, beginning="better-2")] == ["demo/better/2"]
    with refused():
        select_runs(found, arm="beter")


@pytest.mark.parametrize(
    "text", ["dmeo/base/0", "demo/bse/0", "demo/base/9", "demo/base", "demo", "zzz", "base", "../x/0", ""]
)
def test_ambiguous_run_names_are_answered_with_the_nearest(folder: Path, refused: Refused, text: str) -> None:
    with refused():
        find_one(text, folder.parent)


def test_a_name_means_one_run(folder: Path) -> None:
    assert find_one("demo/better/0", folder.parent).cell == "better-0"
    assert find_one("better-1", folder.parent).cell == "better-1"
    assert [run.seed for run in find_run_or_arm("demo/better", folder.parent)[1]] == [0, 1, 2]
    assert [run.seed for run in find_run_or_arm("demo/better/1", folder.parent)[1]] == [1]
