"""Loggers that follow a run: they are told its rows, once each, and change nothing of it."""

import csv
import importlib
import importlib.util
import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import Patch, known
from messages import CheckMessage, Refused, RefusedCommand
from small_runs import Killed, kill_at, train_cell

from lm.store.record import Record
from lm.store.store import LOGGED, Store
from lm.training.identified import Cell
from lm.training.loggers import KINDS, NEEDS, Logger, Tracker, parse_loggers, tracked
from lm.training.recorder import CostMeter

NAME = "quickstart/swiglu/0"
Told = list[tuple[int, dict[str, float]]]
ROWS: dict[int, dict[str, float]] = {0: {"a": 1.5}, 3: {"a": 1.0, "b": 2.0}, 6: {"a": 0.5}}


# names ---------------------------------------------------------------------------------------------------------------


def test_several_loggers_are_parsed_at_once() -> None:
    assert parse_loggers([]) == ()
    assert parse_loggers(["csv", "csv, csv"]) == ("csv",)
    assert KINDS.keys() == NEEDS.keys()


def test_an_unknown_logger_names_the_nearest(refused: Refused) -> None:
    with refused():
        parse_loggers(["csv,tensorbord"])


@pytest.mark.parametrize(("name", "package"), [("wandb", "wandb"), ("mlflow", "alembic")])
def test_a_missing_package_names_the_install_command(
    name: str, package: str, monkeypatch: Patch, refused: Refused
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == package else module)
    with refused():
        parse_loggers(["csv", name])


@pytest.mark.parametrize("command", ["fit", "ablate", "sweep"])
def test_commands_refuse_an_unknown_logger_first(
    command: str, tmp_path: Path, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    refused_command([command, "nowhere.yaml", "--logger", "csv", "--logger", "mlfow"])
    assert not list(tmp_path.iterdir())


# what they are told --------------------------------------------------------------------------------------------------


class Fake(Logger):
    """Remembers what it is told."""

    def make(self) -> Any:
        self.rows: Told = []
        self.ended: list[str] = []
        self.run = self.run or "first"
        return self

    def log_hyperparams(self, config: Any) -> None:
        random.random()
        torch.rand(1)

    def row(self, step: int, row: Mapping[str, float]) -> None:
        torch.rand(1)
        self.rows.append((step, dict(row)))

    def end(self, status: str) -> None:
        self.ended.append(status)


class Failing(Fake):
    def row(self, step: int, row: Mapping[str, float]) -> None:
        raise ConnectionError("no route to host\nand more")


@pytest.fixture
def opened(monkeypatch: Patch) -> list[Any]:
    """The loggers that were opened: `fake` goes on in a log, `anew` begins it again, `failing` fails when told."""
    opened: list[Any] = []

    def kind(cls: type[Fake], restarts: bool) -> Callable[..., Fake]:
        class One(cls):  # type: ignore[valid-type, misc]
            restart_on_resume = restarts

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                opened.append(self)

        return One

    for name, cls, again in (("fake", Fake, False), ("anew", Fake, True), ("failing", Failing, False)):
        monkeypatch.setitem(KINDS, name, kind(cls, again))
    return opened


def begun(work: Path, *names: str, say: Callable[[str], None] = pytest.fail) -> Tracker:
    work.mkdir(exist_ok=True)
    tracker = Tracker(work, say)
    tracker.begin(names, work, NAME, {"seed": 0})
    return tracker


def test_a_row_is_logged_once_after_a_later_one_began(tmp_path: Path, opened: list[Any]) -> None:
    tracker = begun(tmp_path, "fake")
    tracker.log_rows(ROWS, 3)
    assert opened[0].rows == [(0, ROWS[0])]
    tracker.log_rows(ROWS, 6)
    tracker.log_rows(ROWS)
    assert opened[0].rows == list(ROWS.items())


def test_a_resumed_run_continues_or_restarts_its_log(tmp_path: Path, opened: list[Any]) -> None:
    begun(tmp_path, "fake", "anew").log_rows(ROWS, 6)
    begun(tmp_path, "fake", "anew").log_rows(ROWS)
    fake, anew = opened[2:]
    assert (fake.run, fake.rows) == ("first", [(6, ROWS[6])])
    assert anew.rows == list(ROWS.items())


def test_a_kill_while_logging_does_not_double_a_row(tmp_path: Path, opened: list[Any]) -> None:
    class KilledError(BaseException):
        pass

    tracker = begun(tmp_path, "fake")

    def row(step: int, row: Any) -> None:
        raise KilledError

    opened[0].row = row
    with pytest.raises(KilledError):
        tracker.log_rows(ROWS, 3)
    begun(tmp_path, "fake").log_rows(ROWS)
    assert [step for step, _ in opened[1].rows] == [3, 6]


def test_a_failing_logger_is_dropped_with_one_line(
    tmp_path: Path, opened: list[Any], check_message: CheckMessage
) -> None:
    lines: list[str] = []
    tracker = begun(tmp_path, "failing", "fake", say=lines.append)
    tracker.log_rows(ROWS)
    tracker.end("success")
    check_message(lines)
    assert opened[1].rows == list(ROWS.items())
    assert (opened[0].ended, opened[1].ended) == ([], ["success"])


def test_a_logger_leaves_the_random_state_alone(tmp_path: Path, opened: list[Any]) -> None:
    before = random.getstate(), torch.get_rng_state()
    begun(tmp_path, "fake").log_rows(ROWS)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_damaged_tracking_state_restarts_the_log(tmp_path: Path, opened: list[Any]) -> None:
    (tmp_path / LOGGED).write_text('{"fake": []}')
    begun(tmp_path, "fake").log_rows(ROWS)
    assert opened[0].rows == list(ROWS.items())


@pytest.mark.parametrize(
    ("raised", "status"), [(None, "success"), (ValueError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_the_last_rows_and_the_status_are_logged(
    tmp_path: Path, opened: list[Any], raised: type[BaseException] | None, status: str
) -> None:
    def follow() -> None:
        with tracked(["fake"], tmp_path, tmp_path, NAME, {}, pytest.fail):
            (tmp_path / "history.csv").write_text("step,a,b\n0,1.5,\n3,1.0,2.0\n6,0.5,\n")
            if raised is not None:
                raise raised

    if raised is None:
        follow()
    else:
        with pytest.raises(raised):
            follow()
    assert opened[0].rows == (list(ROWS.items()) if raised is None else [])
    assert opened[0].ended == [status]


def test_another_attempt_in_the_process_continues_the_log(tmp_path: Path, opened: list[Any]) -> None:
    """Memory did not suffice, and batches are taken in halves from the last checkpoint on."""
    with tracked(["fake", "anew"], tmp_path, tmp_path, NAME, {}, pytest.fail) as follow:
        recorder = SimpleNamespace(rows=ROWS, clock=0.0, meter=CostMeter())
        follow(recorder)
        recorder.on_row()
        (tmp_path / "history.csv").write_text("step,a,b\n0,1.5,\n3,1.0,2.0\n6,0.5,\n")
        follow(SimpleNamespace())
    assert [[step for step, _ in one.rows] for one in opened] == [[0, 3], [0, 3], [6], [0, 3, 6]]
    assert [one.ended for one in opened] == [["interrupted"], ["interrupted"], ["success"], ["success"]]


def test_loggers_and_messages_contain_no_secret(
    tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    hyperparameters: list[Any] = []

    class Refused(Fake):
        def log_hyperparams(self, config: Any) -> None:
            hyperparameters.append(config)

        def row(self, step: int, row: Mapping[str, float]) -> None:
            raise ConnectionError("https://me:hunter2@host: key 0123456789abcdef was refused")

    config = {"seed": 0, "data": {"url": "https://me:hunter2@host/a.txt", "api_key": "open sesame"}}
    monkeypatch.setitem(KINDS, "csv", Refused)
    lines: list[str] = []
    with tracked(["csv"], tmp_path, tmp_path / "logs", NAME, config, lines.append) as follow:
        recorder = SimpleNamespace(rows=ROWS, clock=0.0, meter=CostMeter())
        follow(recorder)
        recorder.on_row()
    assert hyperparameters == [{"seed": 0, "data": {"url": "https://me:***@host/a.txt", "api_key": "***"}}]
    check_message(lines)
    assert config["data"] == {"url": "https://me:hunter2@host/a.txt", "api_key": "open sesame"}


# real runs -----------------------------------------------------------------------------------------------------------


def trained(out: Path, *loggers: str, killed_at: int | None = None) -> tuple[Cell, Record]:
    settings = {"checkpoint_seconds": 0, "loggers": loggers, "run_name": NAME}
    return train_cell(out, {"model.dropout": 0.1}, kill_at(killed_at), **settings)[:2]


def interrupted(out: Path, *loggers: str) -> tuple[Cell, Record]:
    """A run that was killed at step 9, after its checkpoint of step 6, and taken up."""
    with pytest.raises(Killed):
        trained(out, *loggers, killed_at=9)
    return trained(out, *loggers)


def history(out: Path, cell: Cell) -> dict[int, dict[str, float]]:
    with Store(out).history(cell.id).open() as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    return {int(row.pop("step")): row for row in rows}


def told_by_csv(out: Path) -> dict[int, dict[str, float]]:
    with (out / "logs" / "csv" / NAME / "metrics.csv").open() as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    steps = [int(row["step"]) for row in rows]
    assert len(set(steps)) == len(steps)
    return {int(row.pop("step")): row for row in rows}


BLOCK = 32768


def records_of(path: Path) -> Iterator[bytes]:
    """What a log of wandb's holds: blocks of pieces with a sum, a length and a kind: whole, first, middle, last."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def measured(record: Record) -> Any:
    """A record without what hangs on the clock."""
    kept = {name: value for name, value in record.items() if name not in ("provenance", "cost")}
    return kept, record["cost"]["tokens"]


@pytest.mark.slow
def test_a_logger_holds_the_rows_and_changes_no_number(tmp_path: Path) -> None:
    cell, plain = trained(tmp_path / "plain")
    _, record = trained(tmp_path / "logged", "csv")
    assert measured(record) == measured(plain)
    names = [
        sorted(path.name for path in Store(tmp_path / one).directory(cell.id).iterdir()) for one in ("plain", "logged")
    ]
    assert names[0] == names[1]
    left, right = (
        torch.load(Store(tmp_path / one).directory(cell.id) / "last.ckpt", weights_only=True)
        for one in ("plain", "logged")
    )
    assert left["state_dict"].keys() == right["state_dict"].keys()
    assert all(torch.equal(value, right["state_dict"][name]) for name, value in left["state_dict"].items())
    assert history(tmp_path / "logged", cell) == history(tmp_path / "plain", cell) == told_by_csv(tmp_path / "logged")
    assert cell.id in (tmp_path / "logged" / "logs" / "csv" / NAME / "hparams.yaml").read_text()


@pytest.mark.extra
def test_a_resumed_run_logs_no_row_twice(tmp_path: Path) -> None:
    cell, _ = interrupted(tmp_path, "csv")
    assert told_by_csv(tmp_path) == history(tmp_path, cell)
    assert not (Store(tmp_path).directory(cell.id) / LOGGED).exists()


@pytest.mark.slow
def test_a_run_continues_without_an_unopenable_logger(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "logs").write_text("in the way")
    _, record = trained(tmp_path, "csv")
    assert record["status"] == "ok"
    assert capsys.readouterr().err.count("--logger csv: ") == 1


@pytest.mark.extra
def test_tensorboard_holds_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard, of the extra track")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cell, _ = interrupted(tmp_path, "tensorboard")
    folder = tmp_path / "logs" / "tensorboard" / NAME
    assert len(list(folder.glob("events.out.*"))) == 1
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    logged: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for one in events.Scalars(tag):
            assert tag not in logged.setdefault(one.step, {}), "a doubled row"
            logged[one.step][tag] = one.value
    expected = {
        step: {name: struct.unpack("f", struct.pack("f", value))[0] for name, value in row.items()}
        for step, row in history(tmp_path, cell).items()
    }
    assert logged == expected
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert cell.id in (folder / "hparams.yaml").read_text()


@pytest.mark.extra
def test_mlflow_holds_the_rows_in_one_run(tmp_path: Path, monkeypatch: Patch) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"needs {package}, of the extra track")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cell, _ = interrupted(tmp_path, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'logs' / 'mlflow.db'}")
    experiment = known(client.get_experiment_by_name("quickstart"))
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["cell"]) == (NAME, "FINISHED", cell.id)
    logged: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for one in client.get_metric_history(run.info.run_id, name):
            assert name not in logged.setdefault(one.step, {}), "a doubled row"
            logged[one.step][name] = one.value
    assert logged == history(tmp_path, cell)


@pytest.mark.extra
def test_wandb_holds_the_rows_in_one_offline_run(tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("wandb", reason="needs wandb, of the extra track")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    cell, _ = interrupted(tmp_path, "wandb")
    wandb_internal_pb2: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    parts = sorted((tmp_path / "logs" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(parts) == 2
    assert len({part.name for part in parts}) == 1, "another run"
    logged: dict[int, dict[str, float]] = {}
    names = set()
    for part in parts:
        for data in records_of(part):
            found = wandb_internal_pb2.Record()
            found.ParseFromString(data)
            if found.WhichOneof("record_type") == "run":
                names.add(found.run.display_name)
            if found.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found.history.item
                }
                step = int(items["trainer/global_step"])
                assert step not in logged, "a doubled row"
                logged[step] = {
                    key: value for key, value in items.items() if key[0] != "_" and key != "trainer/global_step"
                }
    assert names == {NAME}
    assert logged == history(tmp_path, cell)


@pytest.mark.extra
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_run_continues_without_an_unreachable_server(
    name: str, tmp_path: Path, monkeypatch: Patch, capsys: Any, check_message: CheckMessage
) -> None:
    pytest.importorskip(name, reason=f"needs {name}, of the extra track")
    nowhere = "http://127.0.0.1:9"
    wandb = {"MODE": "online", "BASE_URL": nowhere, "API_KEY": "0" * 40, "INIT_TIMEOUT": "2"}
    mlflow = {"TRACKING_URI": nowhere, "HTTP_REQUEST_MAX_RETRIES": "1", "HTTP_REQUEST_TIMEOUT": "2"}
    for package, settings in (("WANDB", wandb), ("MLFLOW", mlflow)):
        for key, value in settings.items():
            monkeypatch.setenv(f"{package}_{key}", value)
    _, record = trained(tmp_path, name)
    assert record["status"] == "ok"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("--logger")]
    check_message(re.sub(": .*; ", ": REASON; ", line))  # in the words of the package
