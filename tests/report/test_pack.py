"""An experiment as one file: nothing but weights is lost, every command reads it as a folder, and it goes back."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import fuzz
import numpy as np
import pandas as pd
import pytest
import references
from conftest import ROOT
from ladders import NAMES, make_ladder
from messages import CheckMessage, Refused, RefusedCommand
from records import MakeExperiment

import lm
from lm.analysis.compare import compare
from lm.analysis.results import curves as curves_of
from lm.analysis.results import load
from lm.analysis.runs import is_experiment_or_search
from lm.cli import main
from lm.report.pack import cells_of, open_results, pack, unpack
from lm.report.tables import as_csv
from lm.report.write import pointer
from lm.store.archive import ENDING, read_archive
from lm.store.documents import packed
from lm.store.locks import process_signature
from lm.store.store import Store
from lm.store.thin_curves import THIN_NAME
from lm.store.validation import curve_checksum

CELLS: dict[str, list[Any]] = {"base": [2.0, 2.1, 1.9, "failed"], "arm": [1.7, 1.85, 1.68, None]}


@pytest.fixture
def folder(experiment: MakeExperiment) -> Path:
    """An experiment whose cells have all that a cell may have."""

    def seal(arm: str, seed: int, record: dict[str, Any]) -> None:
        if record["status"] == "ok":
            lines = [f"{step},{record['metrics']['nll'] + 10 / step},{step / 10}\n" for step in (10, 20, 30)]
            record["curve"] = curve_checksum("step,validation_nll,gradient_norm\n" + "".join(lines))

    folder = experiment(CELLS, seal)
    for place in Store(folder.parent).cells.glob("[a-z]*"):
        (place / "code").mkdir()
        (place / "config.yaml").write_text("seed: 0\n")
        (place / "last.ckpt").write_bytes(b"weights")
        (place / "log.txt").write_text("what was printed\n")
        (place / "code" / "module.own.parts.py").write_text("SCALE = 1.0\n")
        (place / "code" / "changes.diff").write_text("")
        (place / "bleu_test.json").write_text("{}")
        (place / "documents.npz").write_bytes(packed(np.ones(3), np.ones(3)))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def moved(file: Path, folder: Path) -> Path:
    """The pack alone, as a colleague has it."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.move(file, folder / file.name))


def test_a_pack_holds_all_but_weights_logs_and_reports(folder: Path, tmp_path: Path) -> None:
    archive, expected = pack(folder)
    assert archive.path == folder.parent / f"demo{ENDING}"
    assert (expected, len(archive.cells)) == (8, 7)
    wanted = {
        name: content
        for name, content in tree(folder.parent).items()
        if not name.startswith("cells/.") and not name.endswith((".ckpt", ENDING, "log.txt"))
    }
    wanted["cells/base-3/log.txt"] = b"what was printed\n"
    assert dict(read_archive(archive.path).contents()) == wanted
    assert len(archive.members["curves"]) == 6
    shutil.copytree(folder.parent, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("*.lmpack", ".leases"))
    (tmp_path / "elsewhere" / "demo" / "report.html").write_text("a page")
    again = pack(tmp_path / "elsewhere" / "demo", tmp_path / "x.lmpack")[0].path
    assert again.read_bytes() == archive.path.read_bytes(), "the same wherever the folder lies"


def test_a_thin_pack_gives_the_same_table_with_shorter_curves(folder: Path, tmp_path: Path, refused: Refused) -> None:
    archive, _ = pack(folder, tmp_path / f"demo{ENDING}", thin=True)
    curves = [name for name in archive.files if "history" in name]
    assert [Path(name).name for name in curves] == 6 * [THIN_NAME]
    with open_results(archive.path) as place:
        results = load(place.folder)
        assert not results.harmed
        assert as_csv(compare(results)) == as_csv(compare(load(folder)))
        for arm in results.arms:
            pd.testing.assert_frame_equal(
                curves_of(results, arm, "validation_nll"), curves_of(load(folder), arm, "validation_nll")
            )
    again, _ = pack(unpack(archive.path, tmp_path / "put").folder, tmp_path / f"again{ENDING}")
    assert again.files == archive.files
    whole, _ = pack(folder, archive.path)
    assert any(name.endswith("history.csv") for name in whole.files), "a whole one replaces a thin one alone"
    with refused():
        pack(folder, archive.path, thin=True)


@pytest.mark.extra
def test_a_pack_and_its_folder_give_equal_reports(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    check_message: CheckMessage,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert main(["report", str(folder)]) == 0
    assert main(["pack", str(folder)]) == 0
    said = capsys.readouterr()
    check_message(re.findall(r"(.*demo\.lmpack.*), [\d,]+ bytes", said.err))
    file = moved(folder.parent / "demo.lmpack", tmp_path / "colleague")
    for arguments, place in (([], file.with_name("demo")), (["--out", str(tmp_path / "there")], tmp_path / "there")):
        assert main(["report", str(file), *arguments]) == 0
        wanted = {name: content for name, content in tree(folder).items() if name != "experiment.json"}
        assert tree(place) == wanted
        again = capsys.readouterr()
        assert again.out == said.out
        assert again.err == f"{pointer(place)}\n"
    assert list((tmp_path / "temporary").iterdir()) == [], "what was unpacked for it is gone"
    assert sorted(path.name for path in file.parent.iterdir()) == ["demo", "demo.lmpack"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_ladder_is_packed_and_unpacked_with_its_rungs(tmp_path: Path, refused: Refused) -> None:
    folder = make_ladder(tmp_path / "results")
    archive, expected = pack(folder)
    assert expected == len(archive.cells) == 4 * 6 * 2
    rungs = [f"climb.{name}/experiment.json" for name in NAMES]
    assert sorted(archive.members["manifests"]) == sorted(
        (name, (folder.parent / name).stat().st_size) for name in ("climb/ladder.json", *rungs)
    )
    file = moved(archive.path, tmp_path / "colleague")
    there, here = lm.load(file), lm.load(folder)
    assert isinstance(there, lm.Ladder)
    assert isinstance(here, lm.Ladder)
    pd.testing.assert_frame_equal(there.worth, here.worth)
    pd.testing.assert_frame_equal(there.cells, here.cells)
    found = unpack(file, tmp_path / "again")
    assert (found.folder, len(found.added)) == (tmp_path / "again" / "climb", expected)
    assert tree(tmp_path / "again" / "climb") == {"ladder.json": (folder / "ladder.json").read_bytes()}
    assert pack(found.folder)[0].path.read_bytes() == file.read_bytes()
    shutil.move(folder.with_name("climb.m"), tmp_path / "elsewhere")
    folder.with_name("climb.m").symlink_to(tmp_path / "elsewhere")
    with refused():
        pack(folder)


def test_numbers_are_traced_to_a_pack(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused_command: RefusedCommand
) -> None:
    assert main(["trace", str(folder), "arm", "nll"]) == 0
    of_folder = capsys.readouterr().out
    file = moved(pack(folder)[0].path, tmp_path / "colleague")
    assert main(["trace", str(file), "arm", "nll"]) == 0
    text = capsys.readouterr().out
    assert text.partition("\n  lm ")[0] == of_folder.partition("\n  lm ")[0], "the same but for the commands"
    lines = text.splitlines()
    assert f"  lm unpack {file} --out unpacked" in lines
    assert "  lm fit unpacked/cells/arm-0/config.yaml --out again" in lines
    refused_command(["trace", file, "amr", "nll"])


def test_a_folder_with_only_a_report_names_its_pack(folder: Path, tmp_path: Path) -> None:
    file = moved(pack(folder)[0].path, tmp_path / "reference")
    report = tmp_path / "reference" / "demo"
    for given in (report, file):
        with open_results(given) as place:
            assert (place.report, place.pack) == (report, file)
            assert load(place.folder).records["arm", 0] is not None
        report.mkdir(exist_ok=True)
    with open_results(folder) as place:
        assert (place.folder, place.report, place.pack) == (folder, folder, None)


@pytest.mark.slow
def test_damage_is_named_by_its_path_in_the_pack(folder: Path, tmp_path: Path, check_message: CheckMessage) -> None:
    store = Store(folder.parent)
    (store.directory("arm-1") / "record.json").write_text("{")
    store.history("base-0").write_text("step\n1\n")
    file = moved(pack(folder)[0].path, tmp_path / "colleague")
    assert "cells/arm-1/log.txt" in read_archive(file).files
    assert main(["report", str(file)]) == 1
    page = (tmp_path / "colleague" / "demo" / "table.md").read_text()
    damages = [line for line in page.splitlines() if re.search("cells/(arm-1|base-0)/", line)]
    check_message([line.partition(": Expecting")[0] for line in damages])  # what follows is Python's


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\3\4 and so on", None, b"PK\5\6" + bytes(18)],
    ids=["empty", "broken", "missing", "without a list"],
)
def test_what_is_no_pack_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None, refused_command: RefusedCommand
) -> None:
    file = tmp_path / "x.lmpack"
    if content is not None:
        file.write_bytes(content)
    for arguments in (["report"], ["trace", "a", "nll"], ["unpack", "--out", str(tmp_path / "out")]):
        refused_command([arguments[0], file, *arguments[1:]])
    assert {path.name for path in tmp_path.iterdir()} <= {"x.lmpack"}


def test_files_without_the_pack_suffix_and_other_folders_are_refused(
    folder: Path, tmp_path: Path, refused: Refused
) -> None:
    with refused():
        pack(tmp_path)
    with refused(), open_results(folder / "experiment.json"):
        pass
    file = pack(folder)[0].path.rename(folder.parent / "demo2")
    with refused(), open_results(file):
        pass
    with refused():
        unpack(folder, tmp_path)
    with open_results(file, folder.parent / "report") as place:
        assert is_experiment_or_search(place.folder)


def test_a_pack_is_not_replaced_by_one_that_holds_less(folder: Path, refused_command: RefusedCommand) -> None:
    file = pack(folder)[0].path
    before = file.read_bytes()
    Store(folder.parent).history("arm-0").unlink()
    Store(folder.parent).history("arm-1").unlink()
    refused_command(["pack", folder])
    assert file.read_bytes() == before
    file.unlink()
    assert main(["pack", str(folder)]) == 0
    assert "cells/arm-0/history.csv" not in read_archive(file).files
    letter = folder.parent / "letter.txt"
    letter.write_text("dear colleague")
    assert main(["pack", str(folder), "--out", str(letter)]) == 2
    assert letter.read_text() == "dear colleague"


def test_what_is_unpacked_is_what_was_packed(folder: Path, tmp_path: Path) -> None:
    file = pack(folder)[0].path
    found = unpack(file, tmp_path / "new")
    assert found.folder == tmp_path / "new" / "demo"
    assert len(found.added) == 7
    contents = dict(read_archive(file).contents())
    left = {name: content for name, content in tree(tmp_path / "new").items() if "/.leases/" not in name}
    assert left == contents
    assert not list((tmp_path / "new").glob(".unpack*"))
    assert load(found.folder).records["arm", 0] == load(folder).records["arm", 0]
    assert not load(found.folder).corrupt_curves
    again = unpack(file, tmp_path / "new")
    assert (again.added, len(again.already_present), again.conflicting) == ([], 7, [])


def test_a_cell_that_is_there_with_another_record_is_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    file, out = pack(folder)[0].path, tmp_path / "new"
    mine = out / "cells" / "arm-0"
    mine.mkdir(parents=True)
    (mine / "record.json").write_text("{}")
    (mine / "last.ckpt").write_bytes(b"my weights")
    assert main(["unpack", str(file), "--out", str(out)]) == 1
    assert tree(mine) == {"record.json": b"{}", "last.ckpt": b"my weights"}
    check_message(capsys.readouterr().err.splitlines())
    assert (out / "cells" / "arm-1" / "record.json").is_file()


def test_what_was_interrupted_stays_nowhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, store = pack(folder)[0].path, Store(tmp_path / "new")
    store.work("arm-0").mkdir(parents=True)
    (store.work("arm-0") / "last.ckpt").write_bytes(b"half")
    ended = subprocess.Popen(["true"])
    ended.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended.pid)
        killed = store.out / f".unpack-{process_signature()}.abc"
    for path in (killed, store.out / ".unpack-1-1-00000000.abc"):  # the second is of another machine
        path.mkdir()
    unpack(file, store.out)
    assert not store.work("arm-0").exists()
    assert [path.name for path in store.out.glob(".unpack-*")] == [".unpack-1-1-00000000.abc"]


def test_cells_that_another_process_trains_and_other_experiments_are_left(
    folder: Path, tmp_path: Path, refused: Refused
) -> None:
    file, store = pack(folder)[0].path, Store(tmp_path / "new")
    with store.lock("arm-0"):
        found = unpack(file, store.out)
    assert found.busy == ["arm-0"]
    assert not store.finished("arm-0")
    other = tmp_path / "other"
    (other / "demo").mkdir(parents=True)
    (other / "demo" / "experiment.json").write_text("{}")
    with refused():
        unpack(file, other)
    assert tree(other) == {"demo/experiment.json": b"{}"}


@pytest.mark.extra
def test_a_search_goes_into_a_pack_with_its_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out" / "search"
    folder.mkdir(parents=True)
    study = {**fuzz.STUDY, "study": [{**one, "cells": {"0": f"c{n}"}} for n, one in enumerate(fuzz.STUDY["study"])]}
    (folder / "study.json").write_text(json.dumps(study))
    (folder / "study.journal").write_text("{}\n")
    place = tmp_path / "out" / "cells" / "c0"
    place.mkdir(parents=True)
    (place / "record.json").write_text('{"status": "ok"}')
    archive, expected = pack(folder)
    assert expected == len(cells_of(folder)) == len(study["study"])
    assert sorted(archive.files) == ["cells/c0/record.json", "search/study.journal", "search/study.json"]
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    file = moved(archive.path, tmp_path / "colleague")
    assert main(["report", str(file)]) == 0
    assert capsys.readouterr().out == said
    assert tree(file.with_name("search")).keys() == tree(folder).keys() - {"study.json", "study.journal"}


def test_a_tuned_experiment_is_packed_with_searches_and_twin(folder: Path) -> None:
    for place, name in ((folder / "tune" / "arm", "study.json"), (folder / "tune" / "base", "study.json")):
        place.mkdir(parents=True)
        (place / name).write_text(json.dumps(fuzz.STUDY))
    (folder / "tune" / "tuned.json").write_text("{}")
    twin = folder.with_name("demo.tuned")
    manifest = json.loads((folder / "experiment.json").read_text())
    manifest["arms"] = {"base": manifest["arms"]["base"], "arm": manifest["arms"]["base"]}
    twin.mkdir()
    (twin / "experiment.json").write_text(json.dumps(manifest))
    files = read_archive(pack(folder)[0].path).files
    assert {name for name in files if not name.startswith("cells/")} == {
        "demo/experiment.json",
        "demo/tune/tuned.json",
        "demo/tune/arm/study.json",
        "demo/tune/base/study.json",
        "demo.tuned/experiment.json",
    }


def test_the_numbers_that_the_pages_trace_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        line.strip()
        for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("    lm trace results/reference/")
    }
    assert lines
    for line in lines:
        _, _, place, arm, metric = line.split()
        assert main(["trace", str(ROOT / place), arm, metric]) == 0
        assert "not there" not in capsys.readouterr().out


@pytest.mark.slow
def test_every_cell_of_every_reference_is_there() -> None:
    records = references.records()
    for name, text in references.named("experiment.json").items():
        for arm in json.loads(text)["arms"].values():
            assert set(arm["cells"].values()) <= records.keys(), name
