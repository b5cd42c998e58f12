"""`lm status`, `lm ls`, `lm diff`, and commands that take a run by its name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN, Capture, Patch
from messages import CheckMessage, RefusedCommand

from lm.cli import main
from lm.config.tree import override
from lm.store.store import Store
from lm.store.validation import with_checksum


@pytest.fixture
def out(experiment: Callable[..., Path], monkeypatch: Patch) -> Path:
    """A folder of results, which lies in the current one."""
    folder = experiment({"base": [2.0, 2.1], "better": [1.8, "failed", None]}).parent
    for cell in (folder / "cells").iterdir():
        if cell.name[0] != ".":
            arm, seed = cell.name.split("-")
            changes = {"seed": int(seed), "model.norm": "RMSNorm" if arm == "better" else "LayerNorm"}
            (cell / "config.yaml").write_text(yaml.safe_dump(override(RUN, changes)))
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("COLUMNS", "140")
    return folder


def shown(capsys: Capture, *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_status_counts_done_failed_and_missing_cells(out: Path, capsys: Capture, check_message: CheckMessage) -> None:
    text = shown(capsys, "status", "out")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert rows == [["demo", "6", "3", "1", "0", "2"]]
    check_message([line for line in text.splitlines() if line[:1].isalnum()])
    found = json.loads(shown(capsys, "status", "out/demo", "--json"))
    assert found["experiments"]["demo"]["failed"] == 1
    assert found["training"] == []


def test_a_name_selects_an_experiment_an_arm_or_a_run(out: Path, capsys: Capture) -> None:
    out.rename("results")
    assert shown(capsys, "status", "demo") == shown(capsys, "status", "results/demo")
    every = shown(capsys, "ls")
    assert shown(capsys, "ls", "demo") == every
    for name, runs in (("demo/base", 3), ("demo/better/0", 1), ("demo/better/", 3)):
        assert f"\n{runs} run" in shown(capsys, "ls", name)
    assert shown(capsys, "ls", "demo", "--arm", "base") == shown(capsys, "ls", "demo/base")


@pytest.mark.parametrize(
    "command",
    ["ls dem", "ls demo/bas", "ls demo/base/7", "diff demo demo/base"],
)
def test_a_name_that_stands_for_nothing_is_a_line(out: Path, command: str, refused_command: RefusedCommand) -> None:
    out.rename("results")
    refused_command(command.split())


def test_status_names_who_trains_what_and_how_far_it_is(
    out: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    from lm.store.side_files import progress_saver

    store, said = Store(out), []
    store.work("better-2").mkdir()
    report = progress_saver(store.work("better-2"), lambda *told: said.append(told))
    with store.lock("better-2"):
        report(3, 1200, 4.5)
        report(4, 1200, 4.4)  # so soon that it is only handed on
        text = shown(capsys, "status", "out")
    assert said == [(3, 1200, 4.5), (4, 1200, 4.4)]
    (line,) = [line for line in text.splitlines() if line.startswith("demo/better/2")]
    check_message(re.sub(r"\d+ on host .*", "HOLDER", line))


def test_ls_lists_what_is_asked_for(out: Path, capsys: Capture) -> None:
    assert "6 runs" in shown(capsys, "ls", "out")
    found = json.loads(shown(capsys, "ls", "out", "--arm", "base", "--seed", "1", "--json"))
    assert [(run["name"], run["status"], run["nll"]) for run in found] == [("demo/base/1", "ok", 2.1)]
    assert "demo/better/1" in shown(capsys, "ls", "out", "--status", "failed")
    assert "0 runs" in shown(capsys, "ls", "out", "--status", "training")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "out", "--status", "fialed"],
        ["ls", "out", "--experiment", "dmo"],
        ["ls", "out", "--seed", "x"],
        ["ls", "ouf"],
        ["status", "."],
        ["diff", "demo/base/0", "a.yaml", "--out", "out"],
        ["diff", "demo/base/0", "demo/better/2", "--out", "out"],
        ["diff", "demo/base/0", "demo/beter", "--out", "out"],
        ["generate", "demo/better/2", "--prompt", "a", "--out", "out"],
        ["generate", "demo/beter/2", "--prompt", "a", "--out", "out"],
        ["trace", "demo", "--out", "out"],
        ["trace", "demo/better/7", "--out", "out"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_found_is_one_line(out: Path, arguments: list[str], refused_command: RefusedCommand) -> None:
    refused_command(arguments)


@pytest.mark.parametrize(
    "command",
    [
        "status demmo",
        "report demmo",
        "pack demmo",
        "trace demmo base nll",
        "status results/demmo",
        "unpack demmo.lmpack",
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_results(
    out: Path, command: str, refused_command: RefusedCommand
) -> None:
    out.rename("results")
    Path("demmo.yaml").touch()
    Path("nodemo.lmpack").touch()
    refused_command(command.split())


def test_a_pack_takes_the_name_of_an_experiment(out: Path, check_message: CheckMessage, capsys: Capture) -> None:
    out.rename("results")
    assert main(["pack", "demo"]) == 0
    check_message(capsys.readouterr().err.partition("curves")[0])
    assert Path("results/demo.lmpack").is_file()


@pytest.mark.parametrize("command", ["ls", "status"])
@pytest.mark.parametrize("folder", ["gone", "loop", "demo"])
def test_what_holds_no_results_is_one_line(
    tmp_path: Path, monkeypatch: Patch, command: str, folder: str, refused_command: RefusedCommand
) -> None:
    for name in ("gone", "demo"):
        (tmp_path / name).mkdir()
    if folder == "loop":
        (tmp_path / folder).symlink_to(folder)
    monkeypatch.chdir(tmp_path / "gone" if folder == "gone" else tmp_path)
    (tmp_path / "gone").rmdir()
    refused_command([command, "." if folder == "gone" else folder])


def test_a_damaged_manifest_is_told_and_the_rest_is_shown(
    out: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    (out / "broken").mkdir()
    (out / "broken" / "experiment.json").write_text("[]")
    assert main(["status", "out"]) == 1
    said = capsys.readouterr()
    assert "demo" in said.out
    check_message(said.err)


def test_diff_of_two_runs_shows_configuration_and_metrics(
    out: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    found = json.loads(shown(capsys, "diff", "demo/base/0", "demo/better/0", "--out", "out", "--json"))
    assert found["configuration"] == {"model.norm": ["LayerNorm", "RMSNorm"]}
    assert (found["text"], found["circumstances"]) == ({}, {})
    assert found["metrics"]["nll"] == [2.0, 1.8]
    text = shown(capsys, "diff", "demo/base/0", "demo/better/0", "--out", "out")
    check_message([line for line in text.splitlines() if ": " in line])
    assert "-0.2" in text
    found = json.loads(shown(capsys, "diff", "demo/base", "demo/better", "--out", "out", "--json"))
    assert found["seeds"] == [2, 1]
    assert found["metrics"]["nll"] == [pytest.approx(2.05), 1.8], "means of complete runs"


def test_diff_of_code_and_text_is_told(out: Path, capsys: Capture) -> None:
    path = out / "cells" / "better-0" / "record.json"
    record = json.loads(path.read_text())
    record["data"]["fingerprint"] = "other"
    record["provenance"]["git"]["commit"] = "d"
    record["provenance"]["code"] = {"mine.Norm": {"known_by": "hash", "git": None}}
    path.write_text(with_checksum(record))
    found = json.loads(shown(capsys, "diff", "base-0", "better-0", "--out", "out", "--json"))
    assert found["text"] == {"fingerprint": ["f", "other"]}
    assert found["circumstances"] == {"commit": ["c", "d"], "code of mine.Norm": [None, "hash"]}


def test_diff_of_two_files_shows_what_they_resolve_to(out: Path, capsys: Capture, check_message: CheckMessage) -> None:
    Path("a.yaml").write_text(yaml.safe_dump(RUN))
    Path("b.yaml").write_text(yaml.safe_dump(override(RUN, {"model.mlp": "SwiGLU"})))
    found = json.loads(shown(capsys, "diff", "a.yaml", "b.yaml", "--json"))["configuration"]
    assert found["model.mlp"] == ["GELU", "SwiGLU"]
    assert found["model.mlp.approximate"] == ["none", None]
    check_message(shown(capsys, "diff", "a.yaml", "a.yaml"))
    absent = {"data.corpus": {"class_path": "LocalText", "init_args": {"path": "there.txt"}}}
    Path("b.yaml").write_text(yaml.safe_dump(override(RUN, {**absent, "trainer.accelerator": "tpu"})))
    assert "there.txt" in shown(capsys, "diff", "a.yaml", "b.yaml"), "needs no text and no devices"


@pytest.mark.parametrize(
    "changes",
    [
        {"model.heads": 3},
        {"trainer.accelerator": "gpuu"},
        {"optim.schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 99}}},
        {"trainer.callbacks": ["Nope"]},
    ],
)
def test_diff_refuses_a_file_that_could_not_be_trained(
    out: Path, changes: dict[str, Any], refused_command: RefusedCommand
) -> None:
    Path("a.yaml").write_text(yaml.safe_dump(RUN))
    Path("b.yaml").write_text(yaml.safe_dump(override(RUN, changes)))
    refused_command(["diff", "a.yaml", "b.yaml"])


@pytest.mark.parametrize("called", [["demo/better/0"], ["better-0"], ["out/cells/better-0"], ["demo", "better"]])
def test_trace_takes_a_run_or_an_experiment_by_name(
    out: Path, capsys: Capture, called: list[str], check_message: CheckMessage
) -> None:
    text = shown(capsys, "trace", *called, "nll", "--out", "out")
    assert text == shown(capsys, "trace", *called, "--out", "out")
    check_message(text.splitlines()[0])
