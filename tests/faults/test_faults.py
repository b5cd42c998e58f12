"""Faults: what is compared, what is counted, what the command answers, and a run that survives some of them."""

import json
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Capture, Patch
from messages import CheckMessage, RefusedCommand
from rich.console import Console

from faults import disks, kills, run
from faults.__main__ import main
from faults.faults import FAULTS, Fault
from faults.outcome import Finished, Outcome, differences, outcome
from faults.place import CELLS, EXPERIMENT, Place, StuckError
from faults.rows import Row, show, write
from faults.trial import BETWEEN, CHECKPOINTING, FINISHING, REPORTING, STARTING, TRAINING, WRITING, Trial, phase

WHOLE = Outcome({"a": ({"nll": 1.0}, "step\n"), "b": ({"nll": 2.0}, "step\n")}, [{"arm": "x"}], frozenset({"out/a"}))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "run")


def leave(place: Place, name: str, text: str = "{}") -> Path:
    path = place.out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def finish(place: Place, cell: str, seconds: float = 1.0, nll: float = 2.0) -> None:
    record = {"provenance": {"host": seconds}, "cost": {"parameters": 7, "train_seconds": seconds}, "nll": nll}
    leave(place, f"cells/{cell}/record.json", json.dumps(record))
    leave(place, f"cells/{cell}/history.csv", "step\n")


# what is compared ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": {"a": WHOLE.cells["a"]}},
        {"cells": {**WHOLE.cells, "c": WHOLE.cells["a"]}},
        {"cells": {**WHOLE.cells, "b": ({"nll": 2.0000000000000004}, "step\n")}},
        {"cells": {**WHOLE.cells, "b": ({"nll": 2.0}, "step\n1\n")}},
        {"table": []},
        {"files": frozenset({"out/a", "tmp/1", "tmp/2", "tmp/3", "tmp/4"})},
        {"files": frozenset()},
    ],
    ids=["a cell lost", "a cell more", "another NLL", "another curve", "another table", "files more", "a file lost"],
)
def test_what_differs_is_said(changes: dict[str, Any], check_message: CheckMessage) -> None:
    (said,) = differences(replace(WHOLE, **changes), WHOLE)
    check_message(said)


def test_times_hosts_and_numbers_of_leases_are_no_difference(tmp_path: Path) -> None:
    def ran(name: str, seconds: float, lease: int, nll: float = 2.0) -> Outcome:
        place = Place(tmp_path / name)
        finish(place, "ab", seconds, nll)
        leave(place, f"cells/.leases/ab/{lease}")
        rows = f"arm,metric,value\nx,nll,{nll}\nx,train_seconds,{seconds}\n"
        leave(place, f"{EXPERIMENT}/table.csv", rows)
        return outcome(place)

    assert ran("one", 1.0, 1) == ran("two", 2.0, 5)
    assert ran("one more", 1.0, 1) != ran("other", 1.0, 1, 3.0)


def test_a_cell_whose_record_is_written_again_was_trained_twice(place: Place, check_message: CheckMessage) -> None:
    finished = Finished(place.out / "cells")
    finish(place, "ab")
    finished.look()
    assert finished.twice() == []
    path = place.out / "cells/ab/record.json"
    os.utime(path, ns=(1, 1))
    check_message(finished.twice())
    finished.forget("ab")
    assert finished.twice() == []


# what a run is at ----------------------------------------------------------------------------------------------------


def test_the_phase_is_read_from_the_folder(place: Place) -> None:
    assert phase(place) == STARTING
    leave(place, "cells/.ab.work/config.yaml")
    assert phase(place) == TRAINING
    saving = leave(place, "cells/.ab.work/.writing-1/saving.ckpt")
    assert phase(place) == CHECKPOINTING
    saving.unlink()
    outcome = leave(place, "cells/.ab.work/outcome.json")
    assert phase(place) == FINISHING
    outcome.unlink()
    (place.out / "cells/.ab.work/config.yaml").unlink()
    saving.parent.rmdir()
    (place.out / "cells/.ab.work").rmdir()
    finish(place, "ab")
    assert phase(place) == BETWEEN
    for number in range(CELLS - 1):
        finish(place, f"c{number}")
    assert phase(place) == REPORTING
    leave(place, f"{EXPERIMENT}/report.html")
    assert phase(place) == WRITING
    leave(place, f"{EXPERIMENT}/table.md")
    assert phase(place) == REPORTING
    leave(place, f"{EXPERIMENT}/.table.csv.1-1-0.tmp")
    assert phase(place) == WRITING


# rows ----------------------------------------------------------------------------------------------------------------


def scripted(trial: Trial) -> None:
    """Does nothing, but says so as often as it is told to."""
    for _ in range(min(2, trial.most)):
        trial.hit("nothing")


def stuck(trial: Trial) -> None:
    scripted(trial)
    raise StuckError("it hangs")


@pytest.fixture
def still(monkeypatch: Patch) -> None:
    """Runs that nobody runs."""
    monkeypatch.setattr(run.Chaos, "undisturbed", lambda self, fault: (WHOLE, {}))
    monkeypatch.setattr(run, "outcome", lambda place: WHOLE)


def test_a_fault_is_repeated_until_the_requested_count(still: None, tmp_path: Path) -> None:
    at_work = run.Chaos(tmp_path, 0, lambda line: None)
    row = at_work.row(Fault("many", "", scripted, many=True), 5)
    assert (row.came_to, row.injected, row.runs, row.hits) == (run.SAME, 5, 3, {"nothing": 5})
    assert list(tmp_path.iterdir()) == []
    row = at_work.row(Fault("one", "", scripted), 5)
    assert (row.injected, row.runs) == (2, 1)


def test_a_run_that_differs_is_kept_and_said(still: None, tmp_path: Path) -> None:
    lines = list[str]()
    row = run.Chaos(tmp_path, 0, lines.append).row(Fault("one", "", stuck), 1)
    assert (row.came_to, row.note) == (run.DIFFERS, "it hangs")
    assert lines == [f"one: {tmp_path / '1'}: it hangs"]
    assert (tmp_path / "1" / "out").is_dir()


def test_an_impossible_fault_is_left_out_with_the_reason(
    still: None, tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    row = run.Chaos(tmp_path, 0, lambda line: None).row(FAULTS["full"], 1)
    assert (row.came_to, row.note, row.runs) == (run.LEFT_OUT, disks.no_mounting(), 0)
    check_message(row.note)


def test_resumable_cells_have_a_checkpoint_and_no_outcome(place: Place) -> None:
    leave(place, "cells/.ab.work/config.yaml")
    trial = Trial(place, Finished(place.out / "cells"), random.Random(0), {})
    assert (kills.resumable(place), kills.moment(trial)) == (set(), TRAINING)
    leave(place, "cells/.ab.work/last.ckpt")
    assert (kills.resumable(place), kills.moment(trial)) == ({"ab"}, kills.AFTER)
    leave(place, "cells/.ab.work/outcome.json")
    assert (kills.resumable(place), kills.moment(trial)) == (set(), FINISHING)


def test_rows_are_shown_and_written(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    rows = [Row("kills", "x", run.SAME, 3, 1, 4, 61.0, {"worker, training": 1, "command, starting": 2})]
    rows.append(Row("node", "y", run.LEFT_OUT, note="needs the extra ray"))
    show(rows, Console(width=120))
    check_message(capsys.readouterr().out.splitlines()[-2:])
    write(rows, {"kills": 3, "seed": 0}, tmp_path / "c.json")
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["format"], found["kills"], [row["fault"] for row in found["faults"]]) == (1, 3, ["kills", "node"])
    assert "packages" in found["machine"]


# the command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--faults", "kill"], ["--kills", "0"], ["--seed", "x"], ["--out", "here.txt"], ["--out", "file/c.json"]],
)
def test_what_cannot_be_used_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    refused_command(arguments, main)


@pytest.fixture
def short(monkeypatch: Patch) -> Iterator[Path]:
    """A folder for temporary files whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="lm-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.extra
@pytest.mark.timeout(1800)
def test_kills_and_a_torn_checkpoint_change_nothing(short: Path, capsys: Capture) -> None:
    out = short / "c.json"
    assert main(["--kills", "2", "--faults", "kills,checkpoint", "--out", str(out)]) == 0, capsys.readouterr()
    found = {row["fault"]: row for row in json.loads(out.read_text())["faults"]}
    assert {name: row["came_to"] for name, row in found.items()} == dict.fromkeys(("kills", "checkpoint"), run.SAME)
    assert found["kills"]["injected"] == 2
    assert found["checkpoint"]["hits"].keys() == {"last.ckpt"}
    assert list(short.iterdir()) == [out]


@pytest.mark.extra
@pytest.mark.timeout(1800)
def test_twenty_cells_that_are_resumed_are_those_never_stopped(short: Path, capsys: Capture) -> None:
    out = short / "c.json"
    assert main(["--kills", "20", "--faults", "resumed", "--out", str(out)]) == 0, capsys.readouterr()
    (row,) = json.loads(out.read_text())["faults"]
    assert row["came_to"] == run.SAME
    assert row["injected"] == sum(row["hits"].values()) >= 20
