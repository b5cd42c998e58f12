"""Plans of finished experiments come from the cache; other code, text or seeds, and missing cells, are planned anew."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN

from lm.ablation import stored_plan
from lm.ablation.experiment import Experiment, load_experiment
from lm.ablation.plan import Plan, make_plan
from lm.ablation.stored_plan import plan_experiment
from lm.config.tree import override
from lm.execution.machine import device_files
from lm.store import user_cache
from lm.store.store import Store

Patch = pytest.MonkeyPatch
SMALL = ("trainer.max_steps=4", "trainer.val_check_interval=2", "optim.schedule.warmup=1", "model.layers=1")


class Finished(Store):
    """A store in which every cell is finished, or none."""

    every = True

    def finished(self, cell: str) -> bool:
        """Return True for every cell, or for none."""
        return self.every


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text of some length."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n} of a text\n" for n in range(2000)))
    return path


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    """The names of experiments that were planned anew; the process counts as one without torch."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "SLOW", ())
    monkeypatch.setattr(user_cache, "_versions", [])
    names: list[str] = []

    def count(experiment: Experiment, seconds: Any) -> Plan:
        names.append(experiment.name)
        return make_plan(experiment, seconds)

    monkeypatch.setattr(stored_plan, "make_plan", count)
    return names


def read(text: Path, **changes: Any) -> Experiment:
    """Read a small experiment over a text file."""
    settings = {"data.corpus": {"class_path": "LocalText", "init_args": {"path": str(text), "document": "line"}}}
    small = {name: int(value) for name, _, value in (setting.partition("=") for setting in SMALL)}
    return load_experiment(Path("quickstart"), {**settings, **small, **changes}, [0, 1])


def test_a_finished_plan_is_restored_as_it_was(counted: list[str], text: Path, tmp_path: Path) -> None:
    experiment, store = read(text), Finished(tmp_path / "out")
    announced: list[int] = []
    first, second = (
        plan_experiment(experiment, store, None, stored=True, before_new=lambda: announced.append(len(counted)))
        for _ in range(2)
    )
    assert announced == [0], "only before a plan is made"
    assert counted == ["quickstart"]
    assert second.cells == first.cells
    assert [second.sizes(arm) for arm in second.by_arm] == [first.sizes(arm) for arm in first.by_arm]


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("to_show", [False, True])
def test_what_differs_or_is_missing_is_planned_anew(
    to_show: bool, counted: list[str], text: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    store = Finished(tmp_path / "out")

    def is_planned(experiment: Experiment, stored: bool = True) -> bool:
        counted.clear()
        monkeypatch.setattr("lm.training.cell._prepared", {})  # as in another process, which reads the text anew
        plan = plan_experiment(experiment, store, None, stored, to_show)
        assert plan.cells == make_plan(experiment).cells
        return bool(counted)

    assert is_planned(read(text))
    assert not is_planned(read(text))
    assert is_planned(read(text, **{"model.layers": 2})), "another configuration"
    assert is_planned(read(text), stored=False)
    monkeypatch.setattr(Finished, "every", False)
    assert is_planned(read(text)) == (not to_show), "cells are missing"
    monkeypatch.setattr(Finished, "every", True)
    assert not is_planned(read(text))
    text.write_text(text.read_text().replace("line 7", "LINE 7"))
    assert is_planned(read(text)), "another text under the same name"
    assert not is_planned(read(text))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert is_planned(read(text)), "a setting may not do on other devices"
    monkeypatch.setattr(stored_plan, "device_files", lambda: ["nvidia0"])
    assert is_planned(read(text))
    monkeypatch.setattr(user_cache, "code_version", lambda: "of other code")
    assert is_planned(read(text))
    for path in (user_cache.cache_folder() / "answers").iterdir():
        path.write_text("{")
    assert is_planned(read(text)), "a damaged answer"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_plan_to_show_follows_its_files(counted: list[str], text: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """Missing cells are shown as planned before, unless the experiment, a base of it or a module of its own changed."""
    store, base, path, module = (tmp_path / name for name in ("out", "base.yaml", "small.yaml", "own_part.py"))
    source = {"class_path": "LocalText", "init_args": {"path": str(text), "document": "line"}}
    tree = override(RUN, {"data.corpus": source})
    written = {"base": "base.yaml", "baseline": "a", "arms": {"a": {}, "b": {"optim.lr": 0.5}}, "seeds": 2}

    def is_planned(**changes: Any) -> bool:
        counted.clear()
        base.write_text(yaml.safe_dump(tree))
        path.write_text(yaml.safe_dump({**written, **changes}))
        plan = plan_experiment(load_experiment(path, {}), Store(store), None, stored=True, to_show=True)
        assert plan.cells == make_plan(load_experiment(path, {})).cells
        return bool(counted)

    assert [is_planned(), is_planned()] == [True, False]
    assert is_planned(arms={"a": {}, "b": {"optim.lr": 0.25}})
    assert is_planned(seeds=3)
    assert is_planned(metric="accuracy")
    assert not is_planned(notes="of what is not planned")
    tree["model"]["init_args"]["layers"] = 1
    assert [is_planned(), is_planned()] == [True, False], "its base"
    monkeypatch.syspath_prepend(str(tmp_path))
    module.write_text("from lm.model.norm import RMSNorm\n\n\nclass Own(RMSNorm):\n    pass\n")
    own = {"a": {}, "b": {"model.norm": "own_part.Own"}}
    assert [is_planned(arms=own), is_planned(arms=own)] == [True, True], "a module may have changed"


@pytest.mark.extra
def test_missing_cells_are_planned_and_timed_without_torch(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    code = (
        "import sys; from lm.cli import main; assert main(['ablate', 'quickstart', *sys.argv[1:]]) == 0; "
        "print('imported', *({'torch', 'lightning', 'optuna'} & {*sys.modules}))"
    )
    settings = [*SMALL, "trainer.precision=bf16-mixed"]
    options = ["--out", str(tmp_path / "out"), "--plan", *(f"--set={setting}" for setting in settings)]

    def plans(*more: str) -> tuple[str, str]:
        command = [sys.executable, "-c", code, *options, *more]
        *lines, last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return "\n".join(lines), last

    shown, imported = plans()
    assert "0 done" in shown
    assert "torch" in imported
    assert plans() == (shown, "imported" if not device_files() else imported)
    assert "torch" in plans("--set=model.layers=2")[1]


@pytest.mark.extra
def test_finished_experiments_are_planned_and_reported_without_torch(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    code = (
        "import sys; from lm.cli import main; assert main(['ablate', 'quickstart', *sys.argv[1:]]) == 0; "
        "print('imported', *({'torch', 'lightning', 'optuna'} & {*sys.modules}))"
    )
    options = ["--out", str(tmp_path / "out"), "--seeds", "2", "--underpowered", *SMALL]

    def imports(*more: str) -> str:
        command = [sys.executable, "-c", code, *options, *more]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]

    assert "torch" in imports()
    assert imports("--plan") == imports() == "imported"
