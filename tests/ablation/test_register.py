"""What an experiment asks is written down before it is trained, and its reports say what has changed since."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from experiment_files import write_experiment
from helpers import Capture
from messages import CheckMessage, RefusedCommand
from records import record

from lm.ablation.derived import expand_corpora
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import design_of, make_plan, write_manifest
from lm.ablation.registration import registration_of
from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.cli import main
from lm.report.notes import notes
from lm.store.store import Store

CLAIM = {"claim": "rms is better", "kind": "ours", "relation": "less", "arm": "rms", "metric": "nll"}
ASKED: dict[str, Any] = {"claims": [CLAIM], "tune": "none"}
ARMS: dict[str, dict[str, Any]] = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}


def changes_after(folder: Path, **changes: Any) -> list[str]:
    """Return what a manifest says has changed, once the experiment's file has."""
    plan = make_plan(load_experiment(write_experiment(folder, **{**ASKED, **changes}), {}))
    manifest = json.loads((write_manifest(plan, Store(folder / "out")) / "experiment.json").read_text())
    parts: list[str] = manifest["registration"]["changes"]
    return parts


@pytest.fixture
def registered(tmp_path: Path) -> Path:
    """Register the small experiment; return the folder of its file."""
    path = write_experiment(tmp_path, **ASKED)
    assert main(["register", str(path), "--out", str(tmp_path / "out")]) == 0
    return tmp_path


def test_each_change_since_is_named(registered: Path) -> None:
    assert changes_after(registered) == []
    assert changes_after(registered, seeds=7) == ["seeds"]
    assert changes_after(registered, seeds=7, claims=[{**CLAIM, "seen": 2}]) == ["claims.rms is better.seen", "seeds"]
    assert changes_after(registered, seeds=7, margin=0.02) == ["rules.margin.nll", "seeds"]
    assert changes_after(registered, claims=[{**CLAIM, "margin": 0.1}]) == ["claims.rms is better.margin"]
    of_runs = [f"what the runs of {arm} compute" for arm in ARMS]
    assert changes_after(registered, common={"optim.lr": 0.02}) == of_runs
    faster = {**ARMS, "rms": {"model.norm": "RMSNorm", "optim.lr": 0.02}}
    assert changes_after(registered, arms=faster) == ["arms.rms.changes.optim.lr", of_runs[1]]
    more = changes_after(registered, arms={**ARMS, "more": {"model.mlp": "ReLU"}})
    assert {"arms.more.changes.model.mlp", "rules.confirmatory"} <= {part.removesuffix(".class_path") for part in more}


def test_other_orders_of_the_data_are_a_change(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, **ASKED, seeds={"init": 6, "data": 3})
    assert main(["register", str(path), "--out", str(tmp_path / "out")]) == 0
    assert changes_after(tmp_path, seeds={"init": 6, "data": 3}) == []
    assert changes_after(tmp_path, seeds={"init": 6, "data": 2}) == ["orders.data"]
    assert changes_after(tmp_path, seeds=6) == ["orders.data", "orders.of_every_arm"]
    assert changes_after(tmp_path, seeds=6, data_seeds=3) == ["orders.of_every_arm"]


def test_an_older_registration_says_nothing_of_orders(registered: Path) -> None:
    path = registered / "out" / "small" / "registration.json"
    content = json.loads(path.read_text())
    del content["design"]["orders"]
    part = {name: content[name] for name in ("registered", "finished", "design")}
    content["sha256"] = hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content))
    assert changes_after(registered, data_seeds=3) == []


def test_what_is_no_part_of_an_id_is_no_change(registered: Path) -> None:
    assert changes_after(registered, common={"trainer.accelerator": "auto"}) == []


def test_seeds_in_stages_are_no_change_while_they_are_trained(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, seeds={"min": 6, "max": 12, "stages": 2})
    assert main(["register", str(path), "--out", str(tmp_path / "out")]) == 0
    folder = write_manifest(make_plan(load_experiment(path, {})).upto(6), Store(tmp_path / "out"))
    assert json.loads((folder / "experiment.json").read_text())["registration"]["changes"] == []


def test_a_report_says_when_it_was_registered(registered: Path, check_message: CheckMessage) -> None:
    changes_after(registered, seeds=7)
    results = load(registered / "out" / "small")
    code = results.manifest["registration"]["sha256"][:12]
    (line,) = [line for line in notes(results, compare(results)) if code in line]
    check_message(line.partition(f"{code}), ")[2])


def test_it_is_written_once_and_by_the_command_alone(registered: Path, refused_command: RefusedCommand) -> None:
    path, out = registered / "out" / "small" / "registration.json", ["--out", str(registered / "out")]
    before = path.read_bytes()
    refused_command(["register", str(registered / "small.yaml"), *out])
    assert path.read_bytes() == before
    path.write_text(json.dumps({**json.loads(before), "registered": "2020-01-01T00:00:00+00:00"}))
    refused_command(["ablate", str(registered / "small.yaml"), *out])
    refused_command(["ablate", str(registered / "small.yaml"), "--plan", *out])


def test_registering_texts_goes_on_where_it_was_killed(tmp_path: Path, refused_command: RefusedCommand) -> None:
    spec = write_experiment(tmp_path, corpora={"one": {}, "two": {"data.split": [0.7, 0.2, 0.1]}})
    command = ["register", str(spec), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    first, second = (tmp_path / "out" / f"small.{text}" / "registration.json" for text in ("one", "two"))
    before = first.read_bytes()
    second.unlink()
    assert main(command) == 0
    assert first.read_bytes() == before
    assert second.is_file()
    refused_command(command)
    second.unlink()
    refused_command([*command, "optim.lr=0.5"])
    assert not second.exists()


def test_a_text_that_is_left_out_later_is_a_change(tmp_path: Path) -> None:
    texts = {"one": {}, "two": {"data.split": [0.7, 0.2, 0.1]}, "three": {"data.split": [0.6, 0.2, 0.2]}}
    spec, out = write_experiment(tmp_path, corpora=texts), tmp_path / "out"
    assert main(["register", str(spec), "--out", str(out)]) == 0

    def changes(texts: dict[str, Any]) -> list[str]:
        """What has changed of the first of these texts since it was registered."""
        part, *_ = expand_corpora(load_experiment(write_experiment(tmp_path, corpora=texts), {}))
        plan = make_plan(part)
        registration = registration_of(design_of(plan), plan.manifest(Store(out)).with_name("registration.json"))
        assert registration is not None
        return registration["changes"]

    assert changes(texts) == []
    assert changes({"one": {}, "three": texts["three"]}) == ["texts"]
    path = out / "small.one" / "registration.json"
    content = json.loads(path.read_text())
    del content["design"]["texts"]
    signed = {name: content[name] for name in ("registered", "finished", "design")}
    content["sha256"] = hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content))
    assert changes({"one": {}, "three": texts["three"]}) == [], "the oldest registrations do not say"


def test_a_missing_experiment_leaves_nothing(tmp_path: Path, refused_command: RefusedCommand) -> None:
    refused_command(["register", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_registration_without_searched_rates_says_so(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    for tune in (None, "rates"):
        path = write_experiment(tmp_path, name=str(tune), tune=tune)
        assert main(["register", str(path), "--out", str(tmp_path / "out")]) == 0
        check_message(capsys.readouterr().err.splitlines())


def test_a_registration_after_runs_were_finished_says_so(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    path, store = write_experiment(tmp_path, tune="none"), Store(tmp_path / "out")
    for planned in make_plan(load_experiment(path, {})).cells[:3]:
        store.finish(planned.cell.id, record(planned.cell.id, 2.0, planned.seed))
    assert main(["register", str(path), "--out", str(store.out)]) == 0
    check_message(capsys.readouterr().err.splitlines()[0])


DECAY = {
    "class_path": "WarmupStableDecay",
    "init_args": {"warmup": 1, "decay": 11},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"tune": {"rates": {}}, "budgets": [0.25], "common": {"optim.schedule": DECAY}},
        {"tune": {"space": {"model.width": {"choices": [16, 17]}}, "trials": 2}},
        {"tune": {"space": {"trainer.max_steps": {"choices": [3, 4]}}, "trials": 2}, "equal": "flops"},
        {"tune": {"space": {"optim.lr": {"choices": [0.1]}}, "trials": 20000}},
        {"ladder": {"rungs": {"a": {"seeds": [1]}, "b": {"common": {"trainer.max_steps": 20}}}}},
    ],
    ids=["budgets", "search", "equal", "trials", "ladder"],
)
def test_neither_plan_nor_registration_takes_what_training_refuses(
    tmp_path: Path, changes: dict[str, Any], refused_command: RefusedCommand
) -> None:
    arguments = [write_experiment(tmp_path, **changes), "--out", tmp_path / "out"]
    for command in (["register"], ["ablate", "--plan"], ["ablate"]):
        refused_command([*command, *arguments])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["study.json", "ladder.json"])
def test_a_folder_with_the_report_of_something_else_is_refused(
    tmp_path: Path, file: str, refused_command: RefusedCommand
) -> None:
    (tmp_path / "out" / "small").mkdir(parents=True)
    (tmp_path / "out" / "small" / file).write_text("{}")
    for command in (["register"], ["ablate", "--plan"], ["ablate"]):
        refused_command([*command, write_experiment(tmp_path), "--out", tmp_path / "out"])


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": 5},
        {"arms": {**ARMS, "same": {"model.norm": "LayerNorm"}}},
        {"budgets": [0.25, 0.5]},
    ],
    ids=["seeds", "idle", "budgets"],
)
def test_a_registration_warns_as_the_plan_does(
    tmp_path: Path, changes: dict[str, Any], capsys: Capture, check_message: CheckMessage
) -> None:
    path = write_experiment(tmp_path, tune="rates", **changes)
    assert main(["register", str(path), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().err.splitlines()[1:]
    check_message(told)
    assert main(["ablate", str(path), "--plan", "--out", str(tmp_path / "out")]) == 0
    planned = " ".join(capsys.readouterr().out.split())
    assert all(line.replace("warning:", "!") in planned for line in told)
