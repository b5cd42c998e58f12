"""`lm doctor`: what is there, what would be chosen, and what is wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lm.cli import doctor, main
from lm.cli.doctor import choices, compiler, examined
from lm.cli.findings import lines
from lm.cli.installed import ADDS, CORE, canonical, modules_of, packages, requirements
from lm.config.reading import PACKAGE
from lm.execution.factory import EXECUTORS
from lm.store.side_files import WAYS_FILE, write_cached

Said = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

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
    monkeypatch.setattr(doctor, "modules_of", lambda: {"numpy": ["numpy"]})
    monkeypatch.setattr("lm.execution.precisions.measure_products", lambda: {"bf16-mixed": 16.2})
    return tmp_path


def test_all_is_well_and_every_part_is_told_of(sound: Path, capsys: Said) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr()
    text = " ".join(said.out.split())
    assert said.err == ""
    assert [line for line in said.out.splitlines() if re.fullmatch(r"[a-z]+", line)] == [
        "installed", "extras", "devices", "compiler", "places", "choices",
    ]  # fmt: skip
    assert f"search would add {ADDS['search']}; lacks no-such-package: pip install '.[search]'" in text
    assert "results results: not there yet, can be written to" in text
    assert "nothing has been measured for this folder" in text
    assert (
        "bf16-mixed does not pay: bf16 is 16 times slower than fp32, timed by products of matrices; use 32-true" in text
    )
    assert text.endswith("nothing is wrong")


def test_for_machines_it_is_json(sound: Path, capsys: Said) -> None:
    assert main(["doctor", "--json", "--out", "elsewhere"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["wrong"]) == (True, [])
    assert found["packages"][0]["name"] == "numpy"
    assert found["places"][0]["path"] == "elsewhere"
    assert found["choices"]["executor"] in EXECUTORS
    assert found["choices"]["precisions"] == {"bf16-mixed": 16.2}
    assert found["devices"]["cores"] >= 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("no-such-package>=1", "no-such-package: is not installed; pip install '.' puts it right"),
        ("numpy>=999", "is installed, expected >=999"),
        ("seaborn", "seaborn: cannot be imported (ImportError: half of it"),
        ("gone", "but its files are gone (no_such_module)"),
    ],
)
def test_what_the_core_lacks_is_told_and_the_exit_code_is_1(
    sound: Path, monkeypatch: Patch, capsys: Said, asked: str, words: str
) -> None:
    monkeypatch.setattr(doctor, "requirements", lambda: {CORE: [asked]})
    monkeypatch.setattr(doctor, "modules_of", lambda: {"seaborn": ["seaborn"], "gone": ["no_such_module"]})
    version: Callable[[str], str] = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1" if name == "gone" else version(name))

    def half(name: str) -> Any:
        raise ImportError("half of it\nis missing")

    if asked == "seaborn":
        monkeypatch.setattr("lm.cli.doctor.importlib.import_module", half)
    assert main(["doctor", "--imports"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("lm: ")
    assert said.err.count("\n") == 1
    assert words in said.err
    assert said.out.endswith("wrong: 1, told below\n")


def test_a_place_that_cannot_be_written_to_is_wrong(sound: Path, monkeypatch: Patch, capsys: Said) -> None:
    (sound / "file").write_text("")
    assert main(["doctor", "--out", "file"]) == 1
    assert "the results folder file: file is no folder; expected a folder; give another" in capsys.readouterr().err
    monkeypatch.setenv("LM_CACHE", str(sound / "file" / "cache"))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err.endswith("set LM_CACHE to another folder\n")


def test_what_was_measured_for_the_folder_is_told(sound: Path, capsys: Said) -> None:
    write_cached(sound / "results" / WAYS_FILE, "decisions", {"a": DECISION})
    write_cached(sound / "results" / WAYS_FILE, "workers", {"b": {"1": 3.0, "2": 4.0}})
    assert main(["doctor"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "auto precision bf16-mixed. A step takes 12.5 ms bf16-mixed (a processor, threads: 1)." in text
    assert "fastest here for experiments: 2" in text


@pytest.mark.parametrize(
    "content",
    ["[]", '{"format": 1, "workers": {"a": {"1": null}}}', '{"format": 1, "decisions": {"a": {"chosen": {}}}}', "{"],
)
def test_a_damaged_file_of_measurements_is_one_line(sound: Path, capsys: Said, content: str) -> None:
    (sound / "results").mkdir()
    (sound / "results" / WAYS_FILE).write_text(content)
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"lm: results/{WAYS_FILE}: ")
    assert said.err.count("\n") == 1


def test_workers_and_threads_are_those_that_an_experiment_gets(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "accelerators", lambda: 0)
    monkeypatch.setattr("lm.execution.machine.accelerators", lambda: 0)
    monkeypatch.setattr("lm.execution.machine.cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = choices(tmp_path)
    assert (found["workers"], found["threads_each"]) == (6, 3)
    assert "OMP_NUM_THREADS=3" in found["why"]


def test_cuda_devices_are_listed(sound: Path) -> None:
    found = examined(sound / "results")
    found["devices"]["cuda"] = [{"name": "Quick <1>", "memory_gib": 79.1, "capability": "9.0"}]
    found["devices"]["torch_cuda"] = "13.0"
    text = " ".join(" ".join(lines(found)).split())
    assert "CUDA 0 Quick <1>, 79.1 GiB, capability 9.0; torch is built for CUDA 13.0" in text


def test_a_machine_without_torch_is_told_of(sound: Path, monkeypatch: Patch, capsys: Said) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "requirements", lambda: {CORE: ["torch>=2.9"]})
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "torch: cannot be imported" in said.err
    assert "torch does not load" in said.out


def test_every_extra_is_described() -> None:
    assert set(ADDS) == requirements().keys() - {CORE}


def test_an_installed_package_says_what_it_needs_itself(tmp_path: Path, monkeypatch: Patch) -> None:
    here = tmp_path / "lm_ablations-9.dist-info"
    here.mkdir()
    (here / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: lm-ablations\nVersion: 9\nProvides-Extra: search\nProvides-Extra: none\n"
        'Requires-Dist: torch>=2.9\nRequires-Dist: cmaes>=0.11; extra == "search"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert requirements(tmp_path) == {CORE: ["torch>=2.9"], "search": ["cmaes>=0.11"], "none": []}


def test_names_of_packages_have_one_spelling() -> None:
    assert canonical("Jinja2_Extra.x") == "jinja2-extra-x"
    (found,) = packages(["PyYAML>=6.0"], {})
    assert (found.name, found.asked, found.wrong) == ("PyYAML", ">=6.0", "")


@pytest.mark.slow
def test_it_looks_at_this_machine_without_loading_lightning(tmp_path: Path) -> None:
    code = "import sys; from lm.cli import main; main(['doctor']); print('lightning' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert "\ninstalled\n" in done.stdout
    assert done.stdout.endswith("\nFalse\n")
    assert "yaml" in modules_of()["pyyaml"]
    assert set(compiler()) == {"path", "version", "python_headers"}
