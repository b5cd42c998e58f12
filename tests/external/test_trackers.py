"""Files and folders of trackers are read; files that the trackers have just made as well."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from messages import CheckMessage, Refused

from lm.analysis.external.runs import CompareRequest, Runs, gather
from lm.analysis.external.trackers import USUAL, read
from lm.config.tree import InputError

ASKED = CompareRequest("plain", ("loss",))

VALUES = {("plain", 0): 1.5, ("plain", 1): 1.75, ("new", 0): 1.25}
"""The last loss of each run that ended well, of those that `MAKE` makes; `new` with seed 1 diverged."""

MAKE = {
    "mlflow": """
        mlflow.set_tracking_uri(URI)
        mlflow.set_experiment("demo")
        for arm, seed, losses in RUNS:
            with mlflow.start_run():
                mlflow.log_params({"arm": arm, "seed": seed})
                mlflow.log_metric("val/accuracy", 0.5)
                for step, loss in enumerate(losses):
                    mlflow.log_metric("loss", loss, step=step)
        mlflow.search_runs(output_format="list")
    """,
    "torch.utils.tensorboard": """
        for arm, seed, losses in RUNS:
            with torch.utils.tensorboard.SummaryWriter(f"out/{arm}_{seed}") as writer:
                for step, loss in enumerate(losses):
                    writer.add_scalar("loss", loss, step)
                writer.add_scalar("val/accuracy", 0.5, 0)
    """,
}
"""What a person's script does with each library, in the folder `out`."""

RUNS = (
    "RUNS = [('plain', 0, [2.5, 1.5]), ('plain', 1, [2.5, 1.75]), ('new', 0, [2.5, 1.25]), "
    "('new', 1, [2.5, float('nan')])]"
)


def made(library: str, folder: Path, uri: str = "") -> None:
    """Lets a library write its files, in a process of its own."""
    body = "\n".join(line.removeprefix("        ") for line in MAKE[library].splitlines())
    script = f"import {library}\n{RUNS}\nURI = {uri!r}\n{body}"
    quiet = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    (folder / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env={**os.environ, **quiet}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def check(runs: Runs, seeds: int = 2) -> None:
    """That runs are those of `MAKE`."""
    found = {key: run.values["loss"] for key, run in runs.runs.items() if run.status == "ok"}
    assert found == VALUES
    assert runs.runs["new", 1].status == "diverged"
    assert len(runs.seeds) == seeds
    assert runs.source.last
    assert runs.better["val/accuracy"] == "higher"
    assert runs.runs["plain", 0].values["val/accuracy"] == 0.5


@pytest.mark.parametrize("place", ["", "run-1", "run-1/run-1.wandb"])
def test_files_of_wandb_are_answered_with_how_to_export_them(place: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "run-1.wandb").write_bytes(b":W&B\x01\x00\x00")
    with refused():
        read(tmp_path / place)


def test_an_export_of_wandb_is_read(tmp_path: Path, check_message: CheckMessage) -> None:
    text = '"Name","State","arm","seed","loss"\n"a","finished","plain","0","1.5"\n"b","crashed","new","0","1.2"\n'
    (tmp_path / "export.csv").write_text(text)
    runs = gather(read(tmp_path / "export.csv"), ASKED)
    check_message(runs.source.kind)
    assert [run.status for run in runs.runs.values()] == ["ok", "failed"]


def store_of_mlflow(folder: Path) -> None:
    """As MLflow 3 lays it out, as far as telling it apart goes."""
    for place in ("1", "1/r0"):
        (folder / place).mkdir(parents=True)
        (folder / place / "meta.yaml").write_text("experiment_id: '1'\n")


class Mlflow(ModuleType):
    """Stands in for the package: one experiment, whose runs come in two pages."""

    def __init__(self, uri: str) -> None:
        super().__init__("mlflow")
        self.MlflowClient, self.entities, self.uri = self.open, SimpleNamespace(ViewType=SimpleNamespace(ALL=3)), uri

    def open(self, uri: str) -> "Mlflow":
        assert uri == self.uri
        return self

    def get_experiment(self, experiment: str) -> SimpleNamespace:
        if experiment != "1":
            raise ValueError("no such\nexperiment")
        return SimpleNamespace(name="demo")

    def search_runs(self, experiments: list[str], page_token: str | None, **options: Any) -> list[SimpleNamespace]:
        listed = [("plain", "FINISHED", "active"), ("new", "FAILED", "active"), ("new", "FINISHED", "deleted")]
        page = Page()
        page.token = None if page_token else "more"
        for arm, status, stage in listed[1:] if page_token else listed[:1]:
            info = SimpleNamespace(run_id=arm, run_name="", status=status, lifecycle_stage=stage)
            data = SimpleNamespace(
                params={"arm": arm, "seed": "0"}, tags={}, metrics={"loss": 1.5, "val/accuracy": 0.5}
            )
            page.append(SimpleNamespace(info=info, data=data))
        return page


class Page(list[SimpleNamespace]):
    """Some runs, and the token of the next ones."""

    token: str | None


def test_a_folder_of_mlflow_is_read_by_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, check_message: CheckMessage
) -> None:
    store_of_mlflow(tmp_path / "mlruns")
    mlflow = Mlflow((tmp_path / "mlruns").as_uri())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", mlflow.entities)
    for place in ("", "mlruns", "mlruns/1"):
        runs = gather(read(tmp_path / place), ASKED)
        assert {key: run.status for key, run in runs.runs.items()} == {("plain", 0): "ok", ("new", 0): "failed"}
        assert dict(runs.runs["plain", 0].values) == {"loss": 1.5, "val/accuracy": 0.5}
        check_message(runs.notes)
    assert runs.source.rows[0]["experiment"] == "demo"
    (tmp_path / "mlruns" / "1").rename(tmp_path / "mlruns" / "2")
    with refused():
        read(tmp_path / "mlruns")


def test_an_export_of_mlflow_is_read(tmp_path: Path, check_message: CheckMessage) -> None:
    text = (
        ",run_id,experiment_id,status,metrics.loss,metrics.val/accuracy,params.arm,params.seed\n"
        "0,a,1,FINISHED,1.5,0.5,plain,0\n1,b,1,FAILED,1.2,,new,0\n"
    )
    (tmp_path / "runs.csv").write_text(text)
    runs = gather(read(tmp_path / "runs.csv"), ASKED)
    check_message(runs.source.kind)
    assert runs.measured == ["loss", "val/accuracy"]
    assert [run.status for run in runs.runs.values()] == ["ok", "failed"]


@pytest.mark.extra
@pytest.mark.parametrize(("uri", "place"), [("sqlite:///mlflow.db", "mlflow.db"), ("out/mlruns", "out/mlruns")])
def test_what_mlflow_has_just_written_is_read(uri: str, place: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    made("mlflow", tmp_path, uri)
    check(gather(read(tmp_path / place), ASKED))


def test_an_export_of_optuna_is_read(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").write_text(
        ",number,value,datetime_start,params_arm,user_attrs_f,user_attrs_seed,state\n0,0,1.5,2026-01-01,plain,0.5,0,COMPLETE\n"
        "1,1,1.25,2026-01-01,new,0.5,0,COMPLETE\n2,2,,2026-01-01,new,0.5,1,FAIL\n"
    )
    runs = gather(read(tmp_path / "trials.csv"), CompareRequest("plain", ("value",)))
    assert [run.values.get("value") for run in runs.runs.values()] == [1.5, 1.25, None]
    assert runs.runs["new", 1].status == "failed"
    assert runs.measured == ["value", "f"]


@pytest.mark.parametrize(
    ("name", "arm", "seed"),
    [
        ("base/0", "base", "0"),
        ("base/version_3", "base", "3"),
        ("lr_1e-3_seed12", "lr_1e-3", "12"),
        ("a/b-s7", "a/b", "7"),
        ("base.seed=1", "base", "1"),
    ],
)
def test_the_name_of_a_run_says_its_arm_and_seed(name: str, arm: str, seed: str) -> None:
    found = USUAL.fullmatch(name)
    assert found is not None
    assert (found["arm"], found["seed"]) == (arm, seed)


@pytest.mark.parametrize("name", ["events.out.tfevents.1.here", "meta.yaml"])
def test_without_its_package_a_line_says_which_extra_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    (tmp_path / "base" / "0").mkdir(parents=True)
    (tmp_path / "base" / "0" / name).write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused():
        read(tmp_path)


@pytest.mark.extra
def test_events_that_tensorboard_has_just_written_are_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made("torch.utils.tensorboard", tmp_path)
    check(gather(read(tmp_path / "out"), ASKED))
    check(gather(read(tmp_path / "out", "{arm}_{seed}"), ASKED))
    with pytest.raises(InputError, match=re.escape("does not say its arm and its seed; expected x{arm}{seed}")):
        read(tmp_path / "out", "x{arm}{seed}")
    with pytest.raises(InputError, match=re.escape("--runs-called {arm}: expected {arm} and {seed}")):
        read(tmp_path / "out", "{arm}")


def test_a_folder_of_two_trackers_is_not_guessed_at(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "run-plain0.wandb").write_bytes(b":W&B")
    store_of_mlflow(tmp_path / "mlruns")
    with refused():
        read(tmp_path)


def test_a_list_of_runs_from_a_server_is_read(tmp_path: Path) -> None:
    runs = [
        {"state": "finished", "config": {"arm": arm, "seed": seed}, "summary": {"loss": loss}}
        for (arm, seed), loss in VALUES.items()
    ]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    found = gather(read(tmp_path / "runs.json"), ASKED)
    assert {key: run.values["loss"] for key, run in found.runs.items()} == VALUES
