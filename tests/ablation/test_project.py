"""What one begins with: a project that runs, copies of what ships, and components found where they lie."""

import itertools
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN, Capture, Patch
from messages import Refused, RefusedCommand

from lm.ablation.experiment import check_power, load_experiment
from lm.ablation.project import copies, put, starter
from lm.cli import main
from lm.config import reading as shipping
from lm.config.imported import add_module_folder, current_folder_modules
from lm.config.reading import SHIPPED_FOLDERS, load_config, resolve_file, shipped_files
from lm.config.tree import load_yaml, override
from lm.search.spec import load_sweep

ROOT = Path(__file__).resolve().parents[2]


def test_shipped_files_are_those_at_the_top_of_the_clone() -> None:
    for kind, folder in SHIPPED_FOLDERS.items():
        folders = [folder, f"{folder}/studies", *(["experiments/families"] if kind == "configuration" else [])]
        paths = [path for place in folders for path in (ROOT / place).glob("*.yaml")]
        assert sorted(shipped_files(kind).values()) == sorted(paths)


def test_an_installed_package_has_them_within(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "lm/shipped/experiments/bases").mkdir(parents=True)
    (tmp_path / "lm/shipped/experiments/one.yaml").touch()
    monkeypatch.setattr(shipping, "PACKAGE", tmp_path / "lm")
    assert set(shipped_files("experiment")) == {"one"}
    monkeypatch.setattr(shipping, "PACKAGE", tmp_path / "other")
    assert shipped_files("experiment") == {}


def test_a_local_file_hides_the_shipped_one_of_its_name(tmp_path: Path, monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_file(Path("quickstart"), "experiment") == ROOT / "experiments/quickstart.yaml"
    for given in ("quickstart.yaml", "bases/quickstart", "none.yaml"):
        assert resolve_file(Path(given), "experiment") == Path(given)
    Path("quickstart").touch()
    assert resolve_file(Path("quickstart"), "experiment") == Path("quickstart")
    with refused():
        resolve_file(Path("quikstart"), "experiment")


@pytest.mark.extra
@pytest.mark.parametrize("arguments", [["ablate", "quickstart", "--plan"], ["sweep", "learning_rate", "--plan"]])
def test_a_command_takes_what_ships_by_name(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--data.corpus.size", "60000", "--data.corpus.longest", "3000", "--workers", "1"]
    assert main([*arguments, *small]) == 0
    assert "about " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_copy_stands_by_itself_and_is_the_same_experiment(tmp_path: Path) -> None:
    for name in ("quickstart", "learning_rate", "char_tiny"):
        put(copies(name), tmp_path, "DIR")
    assert (tmp_path / "bases/char_tiny.yaml").is_file()
    assert not [path for path in tmp_path.rglob("*.yaml") if "yaml-language-server" in path.read_text()]
    copied, ours = (load_experiment(path, {}) for path in (tmp_path / "quickstart.yaml", Path("quickstart")))
    assert copied == ours
    trees = [load_sweep(path, {}).tree for path in (tmp_path / "learning_rate.yaml", Path("learning_rate"))]
    assert trees[0] == trees[1]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in SHIPPED_FOLDERS for name in shipped_files(kind)])
def test_every_copy_names_bases_that_were_copied(tmp_path: Path, kind: str, name: str) -> None:
    put(copies(name), tmp_path, "DIR")
    for path in tmp_path.glob("*.yaml"):
        tree = load_yaml(path)
        tiers: dict[str, Any] = tree.get("tiers") or {}
        for one in [tree, *tiers.values()]:
            assert "base" not in one or (tmp_path / one["base"]).is_file()


def test_nothing_that_is_there_is_overwritten(tmp_path: Path, refused: Refused) -> None:
    assert len(put(copies("quickstart"), tmp_path, "DIR")) == 2
    assert put(copies("quickstart"), tmp_path, "DIR") == []
    (tmp_path / "bases/char_tiny.yaml").unlink()
    (tmp_path / "quickstart.yaml").write_text("mine: 1\n")
    with refused():
        put(copies("quickstart"), tmp_path, "DIR")
    assert not (tmp_path / "bases/char_tiny.yaml").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["cp", "quikstart"],
        ["cp", "quickstart", "file"],
        ["init", "file"],
        ["init"],
        ["ablate", "quikstart"],
        ["fit", "char_tinny"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_copied_is_one_line(
    tmp_path: Path, monkeypatch: Patch, arguments: list[str], refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    refused_command(arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# components ----------------------------------------------------------------------------------------------------------


def own(folder: Path, name: str) -> None:
    """A module with a norm of one's own."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text("from lm.model.norm import LayerNorm\n\n\nclass Mine(LayerNorm): ...\n")


def test_components_are_found_beside_the_file_and_here(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    own(tmp_path / "beside", "beside_the_file")
    own(tmp_path, "where_we_are")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for name in ("beside_the_file", "where_we_are"):
        config = override(RUN, {"model.norm": f"{name}.Mine"})
        (tmp_path / "beside" / "run.yaml").write_text(yaml.safe_dump(config))
        assert main(["count", "beside/run.yaml"]) == 0, capsys.readouterr().err
    assert sys.path == before


def test_a_module_of_ones_own_hides_none_that_is_installed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    with current_folder_modules():
        add_module_folder(tmp_path / "more")
        assert sys.path[-2:] == [str(tmp_path), str(tmp_path / "more")]
    assert str(tmp_path) not in sys.path


# from an empty folder to a table -------------------------------------------------------------------------------------


def test_the_starter_can_be_planned_and_its_seeds_suffice(tmp_path: Path) -> None:
    put(starter(), tmp_path, "DIR")
    experiment = load_experiment(tmp_path / "mine.yaml", {})
    check_power(experiment)
    assert set(starter()) == {"README.md", "bases/tiny.yaml", "mine.yaml", "parts.py"}
    assert len(starter()["README.md"].splitlines()) <= 12
    assert load_config(tmp_path / "bases/tiny.yaml")["seed"] == 0


def done(command: list[str | Path], folder: Path) -> str:
    """What a command prints, in a folder and an environment that know nothing of this clone."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    found = subprocess.run([*map(str, command)], cwd=folder, env=kept, capture_output=True, text=True)
    assert found.returncode == 0, f"{command}\n{found.stdout}{found.stderr}"
    return found.stdout + found.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds the wheel, and reads what the wheel needs from this one."""
    pytest.importorskip("setuptools", minversion="77")
    root = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("what belongs to the source is known to git alone")
    for name in listed.stdout.splitlines():
        wanted = name.startswith(("lm/", "experiments/", "sweeps/")) or "/" not in name
        if wanted and (ROOT / name).is_file():
            (root / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "source" / name).write_bytes((ROOT / name).read_bytes())
    offline: list[str | Path] = ["--no-deps", "--no-index"]
    build: list[str | Path] = [sys.executable, "-m", "pip", "wheel", *offline, "--no-build-isolation", "-w", root]
    done([*build, root / "source"], root)
    done([sys.executable, "-m", "venv", "--without-pip", root / "venv"], root)
    (library,) = (root / "venv").glob("lib/*/site-packages")
    (library / "needed.pth").write_text("\n".join({sysconfig.get_paths()[name] for name in ("purelib", "platlib")}))
    (wheel,) = root.glob("*.whl")
    python = root / "venv/bin/python"
    done([sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel], root)
    return root / "venv/bin"


@pytest.mark.extra
def test_from_the_wheel_to_a_table_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = done([installed / "python", "-c", "import lm; print(lm.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    lm = installed / "lm"
    done([lm, "init", "demo"], tmp_path)
    small = ["--seeds", "1", "--underpowered", "--workers", "1", "--set", "trainer.max_steps=12"]
    done([lm, "ablate", "demo/mine.yaml", *small], tmp_path)  # not from where parts.py lies
    table = (tmp_path / "results/mine/table.md").read_text()
    assert "| soft_clip | 1 |" in table
    (cell,) = [path.parent.parent.name for path in (tmp_path / "results/cells").glob("*/code/module.parts.py")]
    assert cell[:12] in done([lm, "ls", "--arm", "soft_clip"], tmp_path)
    generate: list[str | Path] = [lm, "generate", "mine/soft_clip/0", "--prompt", "a", "--tokens", "5"]
    assert len(done([*generate, "--out", "../results"], tmp_path / "demo")) > 1
    done([lm, "cp", "quickstart"], tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.yaml") if "results" not in path.parts) == [
        "char_tiny.yaml",
        "mine.yaml",
        "quickstart.yaml",
        "tiny.yaml",
    ]


@pytest.mark.extra
def test_the_wheel_carries_every_experiment_base_and_sweep(installed: Path, tmp_path: Path) -> None:
    said = "from lm.config.reading import *; [print(k, name) for k in SHIPPED_FOLDERS for name in shipped_files(k)]"
    found = done([installed / "python", "-c", said], tmp_path).split()
    expected = [[kind, name] for kind in SHIPPED_FOLDERS for name in shipped_files(kind)]
    assert found == [*itertools.chain(*expected)]
