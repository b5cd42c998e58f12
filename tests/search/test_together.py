"""`lm sweep` twice at once on one study, over a journal and over PostgreSQL."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from postgres import PASSWORD, Postgres, serving
from searches import write_sweep
from undrawn import UNDRAWN

from lm.search.spec import load_sweep
from lm.search.storage import journal, open_storage
from lm.store.store import Store

pytestmark = pytest.mark.slow

SPACE: dict[str, Any] = {"optim.lr": {"low": "1e-4", "high": 0.1, "log": True}, "model.width": {"choices": [16, 24]}}


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with serving() as server:
        yield server


@pytest.fixture(params=["journal", pytest.param("postgres", marks=pytest.mark.extra)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres").url)
    return str(tmp_path / "study.journal")


class Sweep:
    """The command in a process of its own, with a results folder of its own, as on another machine."""

    def __init__(self, spec: Path, out: Path) -> None:
        self.out = out
        self.log = out.with_suffix(".log")
        command = [*UNDRAWN, "sweep", str(spec), "--out", str(out), "--workers", "1"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def signal(self, number: int) -> None:
        """Sends a signal to it and all that it started."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Ends it, and all that it started, as a machine that fails would."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self) -> None:
        assert self.process.wait(600) == 0, self.said


def write(folder: Path, storage: str, trials: int) -> Path:
    changes: dict[str, Any] = {"space": SPACE, "trials": trials, "sampler": "random", "storage": storage}
    return write_sweep(folder, trainer={"max_steps": 24}, **changes)


def trials_of(spec: Path) -> list[FrozenTrial]:
    read = load_sweep(spec, {})
    found = open_storage(read, journal(read, spec.parent))
    if read.name not in optuna.get_all_study_names(found):
        return []
    return optuna.load_study(study_name=read.name, storage=found).get_trials()


def until(condition: Callable[[], bool], *sweeps: Sweep) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, [sweep.said for sweep in sweeps]
        assert all(sweep.process.poll() is None for sweep in sweeps), [sweep.said for sweep in sweeps]
        time.sleep(0.05)


def by(sweep: Sweep, trial: FrozenTrial) -> bool:
    return f"process {sweep.process.pid} " in trial.user_attrs.get("holder", {}).get("by", "")


def check(spec: Path, trials: int, *sweeps: Sweep) -> None:
    """The budget, to the trial; none open, none twice; a table, one and the same; and no password anywhere."""
    found = trials_of(spec)
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * trials
    assert len({json.dumps(trial.params) for trial in found}) == trials
    trained = [store.finished(cell) for trial in found for cell in trial.user_attrs["cells"].values()
               for store in (Store(sweep.out) for sweep in sweeps)]  # fmt: skip
    assert sum(trained) == trials
    ended = [sweep for sweep in sweeps if sweep.process.returncode == 0]
    assert len({(sweep.out / "small" / "table.md").read_bytes() for sweep in ended}) == 1
    assert len({(sweep.out / "small" / "study.json").read_bytes() for sweep in ended}) == 1
    for sweep in sweeps:
        assert PASSWORD not in sweep.said
        for path in sweep.out.rglob("*"):
            assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.extra
def test_two_commands_share_a_study(tmp_path: Path, storage: str) -> None:
    spec = write(tmp_path, storage, trials=6)
    first, second = Sweep(spec, tmp_path / "first"), Sweep(spec, tmp_path / "second")
    first.wait()
    second.wait()
    check(spec, 6, first, second)
    for sweep, other in ((first, second), (second, first)):
        assert f"process {other.process.pid} on host" in sweep.said or not any(by(other, t) for t in trials_of(spec))


@pytest.mark.extra
def test_a_trial_of_a_killed_command_is_resumed_by_another(tmp_path: Path, storage: str) -> None:
    spec = write(tmp_path, storage, trials=3)
    gone = Sweep(spec, tmp_path / "gone")
    until(lambda: any(by(gone, trial) and trial.state == TrialState.RUNNING for trial in trials_of(spec)), gone)
    gone.signal(signal.SIGSTOP)  # so that it has a trial when it is killed, however long the other takes to come
    left = [trial.number for trial in trials_of(spec) if trial.state == TrialState.RUNNING]
    stays = Sweep(spec, tmp_path / "stays")
    until(lambda: "also works on it" in stays.said, stays)
    gone.kill()
    stays.wait()
    check(spec, 3, stays, gone)
    assert [trial.number for trial in trials_of(spec) if trial.user_attrs.get("taken_up") == 1] == left
    assert f"process {gone.process.pid} on host" in stays.said


@pytest.mark.extra
def test_a_database_that_restarts_in_the_middle_is_waited_for(tmp_path: Path, postgres: Postgres) -> None:
    spec = write(tmp_path, postgres.url, trials=4)
    first, second = Sweep(spec, tmp_path / "first"), Sweep(spec, tmp_path / "second")
    until(lambda: any(trial.state == TrialState.COMPLETE for trial in trials_of(spec)), first, second)
    postgres.control("stop")
    until(lambda: "waiting up to" in first.said + second.said)
    postgres.control("start")
    first.wait()
    second.wait()
    check(spec, 4, first, second)
    assert "answers again" in first.said + second.said
