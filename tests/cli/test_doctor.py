"""`lm doctor`: what is installed, what would be chosen, and which problems prevent training."""

import json
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Capture, Patch
from messages import CheckMessage

from lm.cli import main
from lm.cli.commands import doctor
from lm.cli.commands.doctor import CORE, choices, devices, extras, folders, requirements
from lm.store.side_files import WAYS_FILE, measure_once, read_cached

DECISION = {
    "chosen": {"precision": "bf16-mixed"},
    "measured": [{"way": {"precision": "bf16-mixed"}, "milliseconds": 12.5}],
    "device": "a processor",
    "threads": 1,
}


@pytest.fixture
def sound(monkeypatch: Patch, tmp_path: Path) -> Path:
    """A machine on which all is well, without a compiler; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "requirements", lambda: {CORE: ["numpy>=2.0"], "search": ["no-such-package>=1"]})
    monkeypatch.setattr("lm.execution.machine.measure_products", lambda: {"bf16-mixed": 16.2})
    return tmp_path


def test_a_sound_machine_has_every_part_and_no_problems(
    sound: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr()
    text = " ".join(said.out.split())
    assert said.err == ""
    assert [line for line in said.out.splitlines() if re.fullmatch(r"[a-z]+", line)] == [
        "installed", "extras", "devices", "places", "choices",
    ]  # fmt: skip
    for label, line, _ in (*extras(), *folders(Path("results")), *choices(Path("results"))):
        assert f" {label} {line} " in text
    check_message(said.out.splitlines()[-1])


def test_the_report_is_printed_as_json(sound: Path, capsys: Capture, check_message: CheckMessage) -> None:
    assert main(["doctor", "--json", "--out", "elsewhere"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["wrong"]) == (True, [])
    assert report["installed"][-1] == ["numpy", metadata.version("numpy")]
    check_message([report["extras"][0][1], report["places"][0][1], dict(report["choices"])["bf16-mixed"]])
    assert "cores" in dict(report["devices"])["processor"]


@pytest.mark.parametrize("asked", ["no-such-package>=1", "numpy>=999", "tokenizers"])
def test_a_missing_or_broken_package_is_one_problem(
    sound: Path, monkeypatch: Patch, capsys: Capture, asked: str, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(doctor, "requirements", lambda: {CORE: [asked]})

    def half(name: str) -> Any:
        raise ImportError("half of it\nis missing")

    if asked == "tokenizers":
        monkeypatch.setattr(doctor, "import_module", half)
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    check_message(said.err.replace(metadata.version("numpy"), "VERSION"))
    check_message(said.out.splitlines()[-1])


def test_a_folder_that_cannot_be_written_is_a_problem(
    sound: Path, monkeypatch: Patch, capsys: Capture, check_message: CheckMessage
) -> None:
    (sound / "file").write_text("")
    assert main(["doctor", "--out", "file"]) == 1
    check_message(capsys.readouterr().err)
    monkeypatch.setenv("LM_CACHE", str(sound / "file" / "cache"))
    assert main(["doctor"]) == 1
    check_message(capsys.readouterr().err)


def test_choices_of_auto_are_shown_unless_their_file_is_damaged(
    sound: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    path = sound / "results" / WAYS_FILE
    measure_once(path, read_cached, "decisions", "a", lambda: DECISION)
    assert main(["doctor"]) == 0
    auto = capsys.readouterr().out.partition("\n  auto ")[2].partition("\n\n")[0]
    check_message(" ".join(auto.split()))
    for content in ("[]", '{"format": 1, "decisions": {"a": {"chosen": {}}}}', "{"):
        path.write_text(content)
        assert main(["doctor"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"lm: results/{WAYS_FILE}: ")


def test_workers_and_threads_are_those_of_an_experiment(
    monkeypatch: Patch, tmp_path: Path, check_message: CheckMessage
) -> None:
    monkeypatch.setattr("lm.execution.machine.accelerators", lambda: 0)
    monkeypatch.setattr("lm.execution.machine.cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    check_message({label: text for label, text, _ in choices(tmp_path)}["workers"])


def test_cuda_devices_are_listed(monkeypatch: Patch, check_message: CheckMessage) -> None:
    gpu = SimpleNamespace(name="Quick <1>", total_memory=79.1 * 2**30, major=9, minor=0)
    monkeypatch.setattr("lm.execution.machine.accelerators", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: gpu)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    (text,) = [text for label, text, problem in devices() if (label, problem) == ("CUDA 0", "")]
    check_message(text)


def test_a_machine_without_torch_is_reported(
    sound: Path, monkeypatch: Patch, capsys: Capture, check_message: CheckMessage
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "requirements", lambda: {CORE: ["torch>=2.9"]})
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    check_message([*said.err.splitlines(), *(line for line in said.out.splitlines() if "unknown" in line)])


def test_requirements_are_sorted_by_extra(monkeypatch: Patch) -> None:
    lines = ["torch>=2.9", 'cmaes>=0.11; extra == "search"', 'ray>=2; extra == "ray" and python_version < "3"']
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert requirements() == {CORE: ["torch>=2.9"], "search": ["cmaes>=0.11"], "ray": []}


def test_a_package_that_is_not_installed_is_a_problem(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(doctor, "NAME", "no-such-package")
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "lm: installed: No package metadata was found for no-such-package\n"
