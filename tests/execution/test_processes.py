"""The processes that train cells: kill them, and nothing is lost, doubled or left behind."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from faults.outcome import measured
from faults.place import marked
from helpers import RUN, Capture, Patch, cells_line
from messages import CheckMessage
from undrawn import UNDRAWN

from lm.cli import main

pytestmark = pytest.mark.slow


def write(folder: Path, **arms: dict[str, Any]) -> Path:
    (folder / "base.yaml").write_text(yaml.safe_dump({**RUN, "trainer": {**RUN["trainer"], "max_steps": 30}}))
    path = folder / "small.yaml"
    arms = arms or {"post": {"model.block": "PostNorm"}, "pre": {"model.block": "PreNorm"}}
    tree = {"base": "base.yaml", "baseline": next(iter(arms)), "arms": arms, "seeds": [0, 1]}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def command(spec: Path, out: Path, *more: str) -> list[str]:
    fixed = ["--underpowered", "--checkpoint-seconds", "0"]
    return [*UNDRAWN, "ablate", str(spec), "--out", str(out), *fixed, *more]


Ablate = Callable[..., SimpleNamespace]


@pytest.fixture
def ablate(capsys: Capture, undrawn: None) -> Ablate:
    """Runs the command in this process, which starts its workers: what it answered and told."""

    def run(spec: Path, out: Path, *more: str) -> SimpleNamespace:
        capsys.readouterr()
        code = main(command(spec, out, *more)[len(UNDRAWN) :])
        return SimpleNamespace(returncode=code, stderr=capsys.readouterr().err)

    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of an experiment that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm.report.figures.picture.render", lambda _: {"png": b"", "svg": b""})
        assert main(command(write(folder), folder / "out")[len(UNDRAWN) :]) == 0
    return folder / "out"


def test_a_killed_command_run_again_gives_the_same_results(tmp_path: Path, ablate: Ablate, whole: Path) -> None:
    spec = write(tmp_path)
    out, marker = tmp_path / "killed", f"LM_TEST_MARKER={tmp_path}"
    environment = {**os.environ, "LM_TEST_MARKER": str(tmp_path)}
    for _ in range(2):
        process = subprocess.Popen(command(spec, out), env=environment, stderr=subprocess.DEVNULL)
        done = len(list(out.glob("cells/[0-9a-f]*")))
        while process.poll() is None:
            if len(list(out.glob("cells/[0-9a-f]*"))) > done or list(out.glob("cells/.*.work/last.ckpt")):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        while marked(marker):  # for ever, if an orphan goes on training
            time.sleep(0.1)
    again = ablate(spec, out)
    assert again.returncode == 0, again.stderr
    assert measured(out) == measured(whole)
    assert not list(out.glob("cells/.*.work"))


def test_cells_at_a_time_have_the_numbers_of_one_at_a_time(tmp_path: Path, ablate: Ablate, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a record holds; more threads add in another order
    spec = write(tmp_path)
    for workers in ("1", "3"):
        assert ablate(spec, tmp_path / workers, "--workers", workers).returncode == 0
    together, alone = measured(tmp_path / "3"), measured(tmp_path / "1")
    assert len(alone) == 4
    assert together == alone, "to the last bit"


@pytest.mark.extra
def test_removed_results_end_the_command_with_one_line(tmp_path: Path, check_message: CheckMessage) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(write(tmp_path), out, "--workers", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list(out.glob("cells/[0-9a-f]*/record.json")):
        time.sleep(0.01)
    while process.poll() is None and (out / "small" / "experiment.json").exists():
        shutil.rmtree(out, ignore_errors=True)
    said, error = process.communicate(timeout=120)
    assert (process.returncode, said) == (1, "")
    check_message(error.splitlines()[-1])
    assert "Traceback" not in error
    assert len(list(out.glob("cells/[0-9a-f]*/record.json"))) < 3


def test_a_repeated_command_trains_nothing_and_keeps_the_table(
    ablate: Ablate, whole: Path, check_message: CheckMessage
) -> None:
    table = (whole / "small/table.md").read_text()
    cells = {path: path.stat().st_mtime_ns for path in (whole / "cells").glob("*/*")}
    again = ablate(whole.parent / "small.yaml", whole)
    check_message(cells_line(again.stderr))
    assert {path: path.stat().st_mtime_ns for path in (whole / "cells").glob("*/*")} == cells
    assert (whole / "small/table.md").read_text() == table


USER = """
import os
from pathlib import Path
from lm.model.mlp import ReLU

class Raises(ReLU):
    \"\"\"Fails once it is trained on more than a row, unless something outside the code has changed.\"\"\"
    def forward(self, x_btd):
        if self.training and len(x_btd) > 1 and not Path(__file__).with_name("luck").exists():
            raise RuntimeError("out of luck")
        return super().forward(x_btd)

class Dies(ReLU):
    \"\"\"Kills its process once it is trained on more than the one row of a plan.\"\"\"
    def forward(self, x_btd):
        if self.training and len(x_btd) > 1:
            os.kill(os.getpid(), 9)
        return super().forward(x_btd)
"""


def test_failed_and_diverged_cells_are_rows_and_stop_no_other(
    tmp_path: Path, ablate: Ablate, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "user_parts.py").write_text(USER)
    spec = write(
        tmp_path,
        good={},
        raises={"model.mlp": "user_parts.Raises"},
        dies={"model.mlp": "user_parts.Dies"},
        diverges={"optim.lr": 1e200, "optim.schedule": "Constant"},
    )
    done = ablate(spec, tmp_path / "out", "--seeds", "[0]")
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out/small/table.md").read_text()
    (raised,) = (record for record, _ in measured_all(tmp_path / "out") if record["error"] and record.get("traceback"))
    log = f"cells/{raised['id']}/log.txt"
    assert f"{tmp_path}/out/{log}" in done.stderr
    ends = [line for line in table.splitlines() if " seed 0 " in line]
    check_message([line.replace(log, "LOG") for line in ends])
    records = [record for record, _ in measured_all(tmp_path / "out")]
    assert sorted(record["status"] for record in records) == ["diverged", "failed", "failed", "ok"]

    (tmp_path / "luck").touch()
    kept = ablate(spec, tmp_path / "out", "--seeds", "[0]")
    again = ablate(spec, tmp_path / "out", "--seeds", "[0]", "--retry-failed")
    check_message([cells_line(kept.stderr), cells_line(again.stderr)])
    records = [record for record, _ in measured_all(tmp_path / "out")]
    assert sorted(record["status"] for record in records) == ["diverged", "failed", "ok", "ok"]


def measured_all(out: Path) -> list[tuple[dict[str, Any], str]]:
    return [
        (json.loads(path.read_text()), path.parent.name)
        for path in sorted((out / "cells").glob("[0-9a-f]*/record.json"))
    ]


WAITS = """
import time
from pathlib import Path
from lm.model.mlp import ReLU

class Waits(ReLU):
    \"\"\"Says that it is trained on more than the one row of a plan, and never ends.\"\"\"
    def forward(self, x_btd):
        while self.training and len(x_btd) > 1:
            Path(__file__).with_name("waits").touch()
            time.sleep(0.05)
        return super().forward(x_btd)
"""


@pytest.mark.extra
def test_interrupting_is_one_line_and_keeps_what_is_done(tmp_path: Path, check_message: CheckMessage) -> None:
    (tmp_path / "user_waits.py").write_text(WAITS)
    spec = write(tmp_path, done={}, waits={"model.mlp": "user_waits.Waits"})
    process = subprocess.Popen(
        command(spec, tmp_path / "out", "--workers", "1"),
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "waits").is_file() and process.poll() is None:  # however long the first cell takes
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    check_message(error.strip().splitlines()[-1])
    assert "Traceback" not in error
    assert [record["status"] for record, _ in measured_all(tmp_path / "out")] == ["ok"]
