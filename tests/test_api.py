"""What `import lm` offers gives what the commands give."""

import gc
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT
from helpers import Patch, cells_line
from ladders import make_ladder
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from messages import CheckMessage, Refused

import lm
from lm.api.training import to_plain
from lm.cli import main
from lm.import_hooks import without_transformers
from lm.stats.power import pairs_needed
from lm.store.store import Store

MakeExperiment = Callable[..., Path]
BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95]
BETTER = [1.7, 1.85, 1.68, 1.8, 1.92, 1.66]
CONFIG = ROOT / "experiments" / "bases" / "char_tiny.yaml"
WRONG: dict[str, Any] = {"optim.lrr": 1}
OWN: dict[str, Any] = {"model.norm": "stranger.Own"}
ODD: Any = 3
SHORT: dict[str, Any] = {
    "trainer.max_steps": 4,
    "trainer.val_check_interval": 2,
    "optim.schedule.warmup": 1,
    "model.layers": 1,
    "model.width": 16,
    "data.corpus": {"class_path": "StdlibText", "init_args": {"size": 600000}},
}


def test_results_show_a_short_table(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    results = lm.load(experiment({"base": BASE, "arm": BETTER}))
    lines = repr(results).splitlines()
    assert lines[0] == "A demonstration"
    assert len(lines) == 4
    assert lines[2].split()[0] == "arm"
    assert "better" in lines[2]
    assert results.name == "demo"
    many = lm.load(experiment({f"arm{n}": BASE[:2] for n in range(25)}))
    check_message(repr(many).splitlines()[-1])


def test_results_are_frames_texts_and_figures(experiment: MakeExperiment) -> None:
    results = lm.load(experiment({"base": BASE, "arm": BETTER, "none": ["diverged"] * 6}, confirmatory=["none"]))
    assert isinstance(results, lm.Results)
    assert results.table.arm.tolist() == ["arm", "base", "none"]
    assert results.table.verdict.tolist()[0] == "better (exploratory, q=.031)"
    best = results.comparisons.query("metric == 'nll' and arm == 'arm'").iloc[0]
    assert (
        results.table.iloc[0][["mean", "difference", "low", "high"]].tolist()
        == best[["mean", "difference", "low", "high"]].tolist()
    )
    head, _, first, *others = results.to_markdown().splitlines()
    assert head == "| arm | n | validation NLL ↓ | difference [95 % CI] | verdict |"
    assert first.startswith("| arm | 6 | 1.7683 ± 0.1048 | -0.2650 [")
    assert len(others) == 2
    assert r"\label{tab:demo}" in results.to_latex()
    assert "accuracy" in results.to_latex(["accuracy"])
    assert [axes.get_xlabel() for axes in results.plot().axes] == [
        axes.get_xlabel() for axes in lm.figure(results, "differences").axes
    ]


def test_a_notebook_shows_five_columns_and_escapes_them(experiment: MakeExperiment) -> None:
    results = lm.load(experiment({"base": BASE, "arm": BETTER}, title="<b>a title</b>"))
    html = results._repr_html_()
    assert "&lt;b&gt;a title" in html
    assert re.findall(r'<th scope="col">([^<]*)</th>', html) == [
        "arm", "n", "validation NLL ↓", "difference [95 % CI]", "verdict"
    ]  # fmt: skip


def test_a_run_is_shown_in_five_lines(experiment: MakeExperiment) -> None:
    store = Store(experiment({"base": BASE, "arm": [1.7, "diverged"]}).parent)
    for cell, status in (("arm-0", "ok"), ("arm-1", "diverged")):
        run = lm.Run(store.record(cell), store.directory(cell))
        first, *lines = repr(run).splitlines()
        assert first.startswith(f"run {cell}: {status}")
        assert len(lines) == 4
        assert lines[-1].strip() == str(run.folder)
    assert "validation NLL 1.7000 nats/token" in repr(lm.Run(store.record("arm-0"), store.directory("arm-0")))


def test_tables_are_those_of_the_report(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "arm": [*BETTER[:5], "diverged"]})
    results = lm.load(str(folder))
    main(["report", str(folder), "--format", "md,csv"])
    for name, table in (("table.csv", results.comparisons), ("cells.csv", results.cells)):
        written = pd.read_csv(folder / name, keep_default_na=False, na_values={"value": [""]})
        assert list(written.columns) == list(table.columns)
        assert len(written) == len(table)
    assert set(results.curves.arm) == {"base", "arm"}


def test_seeds_for_a_difference_are_those_of_the_spread_at_each_arms_share_of_5_percent() -> None:
    results = lm.load(ROOT / "results" / "reference" / "activation.lmpack")
    assert isinstance(results, lm.Results)
    needed, shares = results.seeds_for(0.05), len(results.records.manifest["confirmatory"])
    assert list(needed.index) == results.arms[1:]
    for arm in needed.index:
        losses = results.cells[results.cells.metric == "nll"].pivot_table(index="seed", columns="arm", values="value")
        spread = float((losses[arm] - losses[results.arms[0]]).std())
        assert needed[arm] == pairs_needed(0.05, spread, len(losses), 0.05 / shares)


def test_a_pack_stays_readable_while_its_results_are_held() -> None:
    results = lm.load(ROOT / "results" / "reference" / "quickstart.lmpack")
    assert not results.curves.empty
    assert isinstance(results, lm.Results)
    place = results.records.store.cells
    assert place.is_dir()
    del results
    assert not place.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_rung_keeps_the_pack_of_its_ladder() -> None:
    pack = ROOT / "results" / "reference" / "ladder_swiglu.lmpack"
    ladder = lm.load(pack)
    assert isinstance(ladder, lm.Ladder)
    assert ladder.folder == pack
    rung = ladder.rungs["s50k"]
    del ladder
    gc.collect()
    assert set(rung.comparisons.query("metric == 'nll' and difference.notna()").interval) == {"seeds-and-text"}
    assert len(rung.curves)


@pytest.mark.slow
def test_figures_are_those_of_the_report_and_unknown_to_pyplot(experiment: MakeExperiment, refused: Refused) -> None:
    folder = experiment({"base": BASE, "arm": BETTER})
    results = lm.load(folder)
    for name, source in (("learning_curve", results), ("gradient_norm", folder), ("reliability", str(folder))):
        figure = lm.figure(source, name)
        assert isinstance(figure, Figure)
        figure.savefig(io.BytesIO(), format="svg")
    assert plt.get_fignums() == []
    with refused(ValueError):
        lm.figure(results, "reliabilty")
    with refused(ValueError):
        lm.figure(results, "nll_by_length")


def test_experiments_in_the_results_folder_are_called_by_name(experiment: MakeExperiment, refused: Refused) -> None:
    out = experiment({"base": BASE, "arm": BETTER}).parent
    assert lm.load("demo", out=out).arms == ["base", "arm"]
    with refused():
        lm.load("dmeo", out=out)


def test_a_ladder_has_its_rungs_tables_and_its_arms_worth(tmp_path: Path) -> None:
    ladder = lm.load(make_ladder(tmp_path, seeds=(3, 2)))
    assert isinstance(ladder, lm.Ladder)
    assert (ladder.name, ladder.arms, list(ladder.rungs)) == ("climb", ["base", "arm"], ["s", "m"])
    assert ladder.cells.columns[0] == "rung"
    assert len(ladder.cells.query("metric == 'nll'")) == 2 * (3 + 2)
    assert ladder.cells.query("rung == 'm' and metric == 'nll'").value.notna().all()
    one = ladder.comparisons.query("rung == 'm'").drop(columns="rung").reset_index(drop=True)
    pd.testing.assert_frame_equal(one, ladder.rungs["m"].comparisons, check_dtype=False)
    assert list(ladder.curves.columns[:4]) == ["rung", "experiment", "arm", "seed"], "no curve was kept"
    assert ladder.worth[["rung", "arm"]].values.tolist() == [[rung, arm] for rung in "sm" for arm in ("base", "arm")]
    assert ladder.trends["of"].tolist() == ["difference", "log gain"]
    assert repr(ladder).splitlines()[0] == "A climb"
    assert len(repr(ladder).splitlines()) == 4


def test_a_ladder_has_its_figure_and_says_where_others_are(tmp_path: Path, refused: Refused) -> None:
    ladder = lm.load(make_ladder(tmp_path, seeds=(2, 2)))
    assert len(lm.figure(ladder, "ladder").axes) == 2
    with refused(ValueError):
        lm.figure(ladder, "learning_curve")


def test_settings_from_a_program_equal_those_from_a_file() -> None:
    given = {
        "a": np.float64(0.5),
        "b": [np.int64(3), (True, None)],
        "c": {"d": np.arange(2)},
        "e": Path("x/y"),
        "f": "0",
    }
    plain = to_plain(given)
    assert plain == {"a": 0.5, "b": [3, [True, None]], "c": {"d": [0, 1]}, "e": "x/y", "f": "0"}
    assert (type(plain["a"]), type(plain["b"][0]), to_plain(range(2))) == (float, int, [0, 1])


QUICKSTART: list[dict[str, Any]] = [
    {"seeds": 2},
    {"seed": 1},
    {"workers": 0},
    {"loggers": "csw"},
    {"trusted_only": True, **OWN},
    {"executor": "rya"},
    {"executor": ODD},
    {"executor": "local:n=2"},
    {"hang_minutes": -1},
    {"seeds": "some"},
    {"tier": "../G"},
    {"name": "x"},
]
CHAR_TINY: list[dict[str, Any]] = [
    WRONG,
    {"checkpoint_seconds": -1},
    {"loggers": ["csv", "wandbb"]},
    {"loggers": ODD},
    {"patience": 3},
    {"trusted_only": True, **OWN},
]
CALLS: list[tuple[Callable[..., object], object, dict[str, Any]]] = [
    *((lm.ablate, "quickstart", options) for options in QUICKSTART),
    *((lm.fit, "char_tiny", options) for options in CHAR_TINY),
    (lm.ablate, "quickstrat", {}),
    (lm.ablate, ODD, {}),
    (lm.ablate, {"arms": {}}, {}),
    (lm.ablate, {"basse": "char_tiny"}, {}),
    (
        lm.ablate,
        {"base": "char_tiny", "seeds": 6, "arms": {"a": {}}, "baseline": "a", "corpora": {"one": {}, "two": {}}},
        {},
    ),
    (lm.ablate, {}, {"name": "../x"}),
    (lm.fit, "nothing.yaml", {}),
    (lm.fit, "char_tinny", {}),
    (lm.fit, {"base": "char_tinny"}, {}),
    (lm.fit, {"base": "char_tiny", "optim": {"lrr": 1}}, {}),
    (lm.fit, ODD, {}),
    (lm.load, "dmeo", {}),
    (lm.load_model, "abc", {}),
    (lm.generate, "abc", {"prompt": "def"}),
    (lm.generate, "abc", {"prompt": "def", "greedy": True, "top_k": 3}),
]


@pytest.mark.parametrize(("call", "argument", "options"), CALLS)
def test_what_cannot_be_done_is_an_error_of_one_line(
    call: Callable[..., object], argument: object, options: dict[str, Any], tmp_path: Path, refused: Refused
) -> None:
    with refused():
        call(argument, out=tmp_path, **options)
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize(("spec", "way"), [("quickstart", "ablate"), ("ladder_swiglu", "run_ladder")])
def test_the_chosen_executor_carries_out_each_kind_of_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, way: str
) -> None:
    done: list[tuple[str, str, str]] = []
    for module, name in (("ablate", "ablate"), ("ladder.run_ladder", "run_ladder")):
        keeps = lambda experiment, manner, name=name: done.append((name, experiment.name, manner.executor))  # noqa: E731
        monkeypatch.setattr(f"lm.ablation.{module}.{name}", keeps)
    monkeypatch.setattr("lm.api.training.load", str)
    monkeypatch.setattr("lm.execution.on_slurm.Slurm.package", None)
    assert str(lm.ablate(spec, out=tmp_path, executor="slurm:executor=local")) == str(tmp_path / spec)
    assert done == [(way, spec, "slurm:executor=local")]


def test_a_call_leaves_the_places_of_modules_as_they_were(tmp_path: Path, refused: Refused) -> None:
    before = list(sys.path)
    (tmp_path / "placed.py").write_text("from lm.model.norm import RMSNorm\n\n\nclass Mine(RMSNorm): ...\n")
    (tmp_path / "run.yaml").write_text("base: char_tiny\nmodel.norm: placed.Mine\noptim.lrr: 1\n")
    with refused():
        lm.fit(tmp_path / "run.yaml", out=tmp_path)
    assert sys.path == before


def test_modules_of_one_name_in_two_folders_are_distinguished(tmp_path: Path, refused: Refused) -> None:
    for name, base in (("first", "RMSNorm"), ("second", "LayerNorm")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twofold.py").write_text(f"from lm.model.norm import {base}\n\n\nclass Mine({base}): ...\n")
        (tmp_path / name / "run.yaml").write_text("base: char_tiny\nmodel.norm: twofold.Mine\noptim.lrr: 1\n")
    for name in ("first", "second"):
        with refused():
            lm.fit(tmp_path / name / "run.yaml", out=tmp_path)


def test_a_run_is_called_as_on_the_command_line(experiment: MakeExperiment, refused: Refused) -> None:
    folder = experiment({"base": BASE, "arm": BETTER})
    with refused():
        lm.load_model("demo/arm/9", out=folder.parent)
    with refused():  # found; invented cells have no model
        lm.load_model("demo/arm/1", out=folder.parent)


@pytest.mark.slow
def test_runs_are_trained_once_and_keep_the_measured_model(tmp_path: Path) -> None:
    first = lm.fit(CONFIG, out=tmp_path, progress=False, loggers="csv", **SHORT)
    assert list((tmp_path / "logs" / "csv" / "char_tiny").rglob("*.csv"))
    assert first.record["status"] == "ok"
    assert first.record["steps"] == 4
    again = lm.fit(str(CONFIG), out=str(tmp_path), **{**SHORT, "trainer.max_steps": np.int64(4)})
    assert again == first
    trained = lm.load_model(first.folder.name[:12], out=tmp_path)
    tokens = trained.encode("def f(x):")
    assert trained.decode(tokens) == "def f(x):"
    text = lm.generate(first, "def ", tokens=5, seed=1)
    assert text.startswith("def ")
    assert len(trained.encode(text)) == len(trained.encode("def ")) + 5
    assert text == lm.generate(first.folder, "def ", tokens=5, seed=1)
    model, tokenizer = trained
    assert tokenizer.encode("def f(x):").ids == tokens
    tokens_bt = torch.tensor([tokens])
    with torch.no_grad():
        logits_btv = model(tokens_bt)
    assert logits_btv.shape == (1, 9, tokenizer.get_vocab_size())
    assert not model.training


def test_an_experiment_may_be_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr("lm.ablation.ablate.ablate", lambda experiment, options: done.append((experiment, options)))
    monkeypatch.setattr("lm.api.training.load", str)
    arms = {"relu": {"model.mlp": "ReLU"}, "gelu": {"model.mlp": "GELU"}}
    spec = {"base": "char_tiny", "seeds": np.arange(6), "arms": arms, "baseline": "relu"}
    faster: dict[str, Any] = {"optim.lr": 0.5}
    assert str(lm.ablate(spec, out=tmp_path, name="mine", **faster)) == str(tmp_path / "mine")
    assert str(lm.ablate(spec, out=tmp_path)) == str(tmp_path / "ablation")
    experiment, options = done[0]
    assert (experiment.name, experiment.title, experiment.seeds) == ("mine", "mine", list(range(6)))
    assert list(experiment.arms) == ["relu", "gelu"]
    assert experiment.tree["optim"]["lr"] == 0.5
    assert options.command == ()


@pytest.mark.extra
def test_an_ablation_gives_the_results_that_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    spec = ROOT / "experiments" / "quickstart.yaml"
    results = lm.ablate(spec, out=tmp_path, seeds=range(1), underpowered=True, workers=1, hang_minutes=5, **SHORT)
    assert results.arms == ["gelu", "swiglu"]
    assert results.cells.query("metric == 'nll'").status.tolist() == ["ok", "ok"]
    assert (tmp_path / "quickstart" / "table.md").is_file()
    assert type(lm.load_model("quickstart/swiglu/0", out=tmp_path).model).__name__ == "Decoder"
    assert isinstance(results, lm.Results)
    command = results.records.manifest["command"]
    assert command is not None
    capsys.readouterr()
    assert main([*command, "--plan"]) == 0
    check_message(cells_line(capsys.readouterr().out))


def test_bertscore_finds_transformers_when_it_is_used(monkeypatch: Patch) -> None:
    import transformers

    def execute(module: ModuleType) -> None:
        exec("from transformers import AutoTokenizer", module.__dict__)

    module = ModuleType("bert")
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "transformers")
        without_transformers(execute, module)
        assert "transformers" not in sys.modules
    assert not hasattr(module.AutoTokenizer, "__wrapped__")
    assert module.AutoTokenizer is not transformers.AutoTokenizer
    assert module.AutoTokenizer.from_pretrained == transformers.AutoTokenizer.from_pretrained


def test_bertscore_that_needs_more_of_transformers_is_imported_again(monkeypatch: Patch) -> None:
    stand_ins: list[ModuleType | None] = []

    def execute(module: ModuleType) -> None:
        stand_ins.append(sys.modules.get("transformers"))
        if stand_ins[-1] is not None:
            exec("from transformers.utils import logging", module.__dict__)

    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.delitem(sys.modules, "transformers.utils", raising=False)
    without_transformers(execute, ModuleType("bert"))
    assert [stand_in is None for stand_in in stand_ins] == [False, True]


@pytest.mark.slow
def test_answers_of_a_script_are_kept_for_the_user(tmp_path: Path) -> None:
    code = (
        "import lm; from lm.store import user_cache\n"
        "try: lm.fit('no-such-file')\n"
        "except lm.InputError: pass\n"
        "import torch\n"
        "print(user_cache.remember('test', ['question'], lambda: 'answer'))\n"
    )
    environment = {**os.environ, "LM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "answer\n"), done.stderr
    assert list((tmp_path / "cache" / "answers").glob("test-*.json"))
