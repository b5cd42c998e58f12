"""Experiments made from one: on each text, over learning rates or orders of the data, with each arm's winner."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from experiment_files import write_experiment
from helpers import RUN, Capture, known
from messages import CheckMessage, Refused, RefusedCommand

from lm.ablation.before_training import searches_of
from lm.ablation.derived import expand_corpora, expand_orders, expand_rates, grid_rates, with_winners
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import make_plan
from lm.analysis.effects import orders
from lm.analysis.results import arm_at_rate, load
from lm.cli import main
from lm.config.tree import override
from lm.model.mlp import GELU
from lm.report.figures.comparison import envelope
from lm.report.sections import CAUSES, all_sections, orders_section
from lm.report.study import load_study
from lm.report.tuning import rates_of, rates_section
from lm.store.files import to_json, write_atomic
from lm.store.store import Store
from lm.training.cell import check, with_seed

# learning rates

RATES = [0.1, 0.001, 0.01]
SPACE = {"optim.lr": {"low": 1.0e-4, "high": 1.0e-1, "log": True}}


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("lr_curve", {"rates": [0.1, 0.2]}),
        ("lr_curve", {"rates": [0.1, 0.2, 0.2, 0.3]}),
        ("lr_curve", {"rates": [0.1, 0.2, 0]}),
        ("lr_curve", {"rates": {"low": 0.1, "high": 1.0, "n": 2}}),
        ("lr_curve", {"rates": {"low": 2.0, "high": 1.0, "n": 3}}),
        ("lr_curve", {"rates": RATES, "seeds": [4, 99]}),
        ("tune", {"space": SPACE, "trials": 0}),
        ("tune", {"space": SPACE, "trials": 3, "seeds": [4, 99]}),
        ("tune", {"space": SPACE, "trials": 3, "sampler": "tpee"}),
        ("", {"lr_curve": {"rates": RATES}, "tune": {"space": SPACE, "trials": 2}}),
        ("", {"lr_curve": {"rates": RATES}, "metric": "attention_entropy"}),
        ("", {"corpora": {"one": {}}}),
        ("", {"corpora": {"one": {}, "../two": {}}}),
        ("", {"data_seeds": 1}),
        ("", {"data_seeds": 2, "seeds": 1}),
        ("", {"seeds": {"init": 3}}),
        ("", {"seeds": {"init": 3, "data": 1}}),
        ("", {"seeds": {"init": 3, "datta": 2}}),
        ("", {"seeds": {"init": 3, "data": 2}, "data_seeds": 2}),
        ("", {"data_seeds": 2, "seeds": {"min": 6, "max": 8}}),
        ("", {"data_seeds": "x"}),
        ("", {"arms": {"layer": {}, "other": {"data_seed": 1}}}),
        ("", {"common": {"seed": 3}}),
        ("", {"corpora": {"one": {}, "two": {"seed": 3}}}),
        ("", {"corpora": ["one", "two"]}),
        ("", {"corpora": {}}),
    ],
)
def test_a_wrong_grid_search_or_order_is_one_line(tmp_path: Path, section: str, changes: Any, refused: Refused) -> None:
    with refused():
        load_experiment(write_experiment(tmp_path, **({section: changes} if section else changes)), {})


# texts

CHAIN = {"data.corpus": {"class_path": "MarkovText", "init_args": {"size": 40_000}}}


def test_each_text_is_an_experiment_of_equal_arms_and_seeds(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, corpora={"same": {}, "chain": CHAIN})
    same, chain = map(make_plan, expand_corpora(load_experiment(path, {"optim.lr": 0.5})))
    assert [plan.experiment.name for plan in (same, chain)] == ["small.same", "small.chain"]
    alone = make_plan(load_experiment(write_experiment(tmp_path), {"optim.lr": 0.5}))
    assert [planned.cell.id for planned in same.cells] == [planned.cell.id for planned in alone.cells]
    assert [planned.name for planned in chain.cells] == [planned.name for planned in same.cells]
    for planned in chain.cells:
        assert planned.cell.config["data"]["init_args"]["corpus"]["class_path"] == "MarkovText"
        assert planned.cell.config["optim"]["lr"] == 0.5


def test_settings_of_the_command_override_those_of_a_text(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, corpora={"same": {}, "faster": {"optim.lr": 0.25}})
    trees = [part.tree for part in expand_corpora(load_experiment(path, {"optim.lr": 0.5}))]
    assert [tree["optim"]["lr"] for tree in trees] == [0.5, 0.5]


def test_a_plan_adds_up_the_cells_of_all_texts(tmp_path: Path, capsys: Capture) -> None:
    path = write_experiment(tmp_path, corpora={"one": {}, "chain": CHAIN})
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("12 cells: 0 done, 12 to train") for line in told) == 2
    assert told[-1].startswith("in all 24 cells to train; about ")


@pytest.mark.parametrize("command", [["ablate", "--plan"], ["ablate"], ["register"]], ids=" ".join)
def test_one_text_under_two_names_is_refused(
    tmp_path: Path, refused_command: RefusedCommand, command: list[str]
) -> None:
    path = write_experiment(tmp_path, corpora={"one": {}, "chain": CHAIN, "again": {"optim.lr": 0.25}})
    refused_command([*command, str(path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_mistakes_in_the_last_text_are_found_before_training(tmp_path: Path, refused_command: RefusedCommand) -> None:
    path = write_experiment(tmp_path, corpora={"one": {}, "two": {"data.corpus": "MarkovTex"}})
    refused_command(["ablate", str(path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out" / "cells").exists()


def test_a_class_of_a_script_is_refused_before_other_processes_lack_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_command: RefusedCommand
) -> None:
    monkeypatch.setattr(
        sys.modules["__main__"], "Mine", type("Mine", (GELU,), {"__module__": "__main__"}), raising=False
    )
    spec = write_experiment(tmp_path, arms={"layer": {}, "mine": {"model.mlp": "__main__.Mine"}})
    for more in ([], ["--plan"]):
        refused_command(["ablate", str(spec), "--out", str(tmp_path / "out"), *more])
    assert not (tmp_path / "out" / "cells").exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_a_script_without_a_guard_trains_its_cells_once(tmp_path: Path, way: str) -> None:
    spec = write_experiment(tmp_path, seeds=2)
    script = f"import lm\nprint('begun')\nlm.ablate({str(spec)!r}, out={str(tmp_path / 'out')!r}, underpowered=True)\n"
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py") if way == "file" else "-"]
    done = subprocess.run(command, input=script if way == "stdin" else None, capture_output=True, text=True, check=True)
    assert done.stdout.count("begun") == 1
    records = [record for arm in ("layer", "rms") for record in load(tmp_path / "out" / "small").of(arm)]
    assert [record["status"] for record in records] == ["ok"] * 4


@pytest.mark.parametrize(
    "named", [{"corpora": {"one": {}, "shared": {}}}, {"tiers": {"budget_25": {}}}, {"tiers": {"lr_curve": {}}}]
)
def test_a_text_or_a_tier_is_not_called_as_what_is_made_of_an_experiment(
    named: dict[str, Any], tmp_path: Path, refused: Refused
) -> None:
    with refused():
        load_experiment(write_experiment(tmp_path, **named), {})


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_arms_are_trained_on_each_text_and_summarised(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    path = write_experiment(tmp_path, corpora={"same": {}, "chain": CHAIN}, seeds=2)
    command = ["ablate", str(path), "--out", str(out), "--workers", "2", "--underpowered"]
    assert main(["register", *command[1:4]]) == 0
    assert main(command) == 0
    assert "Over texts" in capsys.readouterr().out
    for text in ("same", "chain"):
        records = load(out / f"small.{text}").of("rms")
        assert [record["status"] for record in records] == ["ok", "ok"]
        assert "Registered" in (out / f"small.{text}" / "table.md").read_text()
    page = (out / "small" / "table.md").read_text()
    assert "| rms - layer |" in page
    before = {path.name for path in Store(out).cells.iterdir()}
    assert len(before - {".leases"}) == 8
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before, "nothing is trained again"
    assert (out / "small" / "table.md").read_text() == page


# learning rates of a grid


def test_rates_between_two_ends_are_even_in_their_logarithm(tmp_path: Path) -> None:
    experiment = load_experiment(write_experiment(tmp_path, lr_curve={"rates": {"low": 1e-3, "high": 1, "n": 4}}), {})
    assert experiment.grid is not None
    assert experiment.grid.rates == (0.001, 0.01, 0.1, 1.0)
    assert experiment.grid.seeds == [1000, 1001, 1002]


def test_grid_has_an_arm_for_each_arm_and_rate(tmp_path: Path) -> None:
    experiment = load_experiment(write_experiment(tmp_path, lr_curve={"rates": RATES, "seeds": [70, 71]}), {})
    grid = make_plan(expand_rates(experiment, grid_rates(experiment)))
    assert list(grid.by_arm) == [arm_at_rate(arm, rate) for arm in ("layer", "rms") for rate in (0.001, 0.01, 0.1)]
    assert len(grid.distinct) == 12
    plain = load_experiment(write_experiment(tmp_path, lr_curve={"rates": RATES}, seeds=[70, 71]), {"optim.lr": 0.01})
    same = {planned.cell.id for planned in make_plan(plain).by_arm["rms"]}
    assert {planned.cell.id for planned in grid.by_arm["rms.lr0.01"]} == same


@pytest.mark.extra
def test_the_plan_shows_the_cells_of_the_grid(tmp_path: Path, capsys: Capture) -> None:
    path = write_experiment(tmp_path, lr_curve={"rates": RATES, "seeds": [70]})
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    line = next(line for line in told.splitlines() if line.startswith("rms.lr0.1: "))
    assert "-> RMSNorm" in line
    assert "optim.lr: 0.001 -> 0.1" in line
    assert "6 cells: 0 done" in told
    assert "12 cells: 0 done" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_arms_are_trained_over_rates_and_compared_at_their_best(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write_experiment(tmp_path, lr_curve={"rates": [1e-5, 1e-3, 1e-2], "seeds": [70, 71]}, seeds=[0, 1])
    command = ["ablate", str(path), "--out", str(out), "--workers", "2", "--underpowered"]
    assert main(command) == 0
    results = load(out / "small")
    rates = rates_of(results, out / "small")
    assert rates is not None
    for arm, curve in rates.curves.items():
        assert curve.values_rs.shape == (3, 2)
        assert curve.best is not None
        for record in rates.twin.of(arm):
            config = yaml.safe_load((rates.twin.store.directory(record["id"]) / "config.yaml").read_text())
            assert config["optim"]["lr"] == curve.rates[curve.best]
            assert config["seed"] in (0, 1)
    page = (out / "small" / "table.md").read_text()
    assert "## Learning rates" in page
    assert "(lr_curve.png)" in page
    assert [row[0] for row in rates_section(results, rates).rows] == ["layer", "rms"]
    before = {path.name for path in Store(out).cells.iterdir()}
    described = json.loads((out / "small" / "lr_curve.json").read_text())
    assert set(described["arms"]) == {"layer", "rms"}
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before, "nothing is trained again"
    assert main(["pack", str(out / "small"), "--out", str(tmp_path / "small.lmpack")]) == 0
    assert main(["unpack", str(tmp_path / "small.lmpack"), "--out", str(tmp_path / "there")]) == 0
    assert main(["report", str(tmp_path / "there" / "small")]) == 0
    assert "## Learning rates" in (tmp_path / "there" / "small" / "table.md").read_text()


# orders of the data


def test_data_seed_changes_the_cell_unless_it_equals_the_seed() -> None:
    plain = check(override(RUN, {"seed": 3}))
    assert "data_seed" not in plain.config
    assert check(override(RUN, {"seed": 3, "data_seed": 3})).id == plain.id
    other = check(override(RUN, {"seed": 3, "data_seed": 4}))
    assert other.id != plain.id
    ids = [with_seed(other, seed).id for seed in (3, 4)]
    assert ids == [other.id, check(override(RUN, {"seed": 4})).id]


def test_data_seed_sets_the_order_and_seed_the_initialisation() -> None:
    def drawn(**seeds: int) -> tuple[list[int], float]:
        opened = check(override(RUN, seeds)).open()
        rows = next(iter(opened.data.training_batches(0, 1))).rows_b.tolist()
        return rows, float(next(opened.model().parameters()).detach().double().sum())

    plain, order, values = drawn(seed=3), drawn(seed=3, data_seed=4), drawn(seed=4, data_seed=3)
    assert plain[0] == values[0] != order[0]
    assert plain[1] == order[1] != values[1]
    assert drawn(seed=4)[0] == order[0]


def test_grid_of_orders_shares_cells_with_the_baseline(tmp_path: Path) -> None:
    experiment = load_experiment(write_experiment(tmp_path, seeds=3, data_seeds=[0, 2]), {})
    grid, plain = make_plan(expand_orders(experiment)), make_plan(experiment)
    assert list(grid.by_arm) == ["order_0", "order_2"]
    assert expand_orders(experiment).inference.confirmatory == []
    own = {planned.seed: planned.cell.id for planned in plain.by_arm["layer"]}
    assert [one.cell.id == own[one.seed] for one in grid.by_arm["order_0"]] == [True, False, False]
    assert len({one.cell.id for one in (*grid.cells, *plain.by_arm["layer"])}) == 3 + 4


@pytest.fixture
def crossed(experiment: Callable[..., Path]) -> Callable[..., Path]:
    """Makes an experiment whose baseline was trained in three orders."""

    def make(cells: dict[str, list[Any]]) -> Path:
        folder = experiment({"base": [2.0, 2.1], "arm": [1.9, 2.0], **cells})
        whole = json.loads((folder / "experiment.json").read_text())
        for name, arms in (("demo", ("base", "arm")), ("demo.orders", tuple(cells))):
            part = {**whole, "name": name, "arms": {arm: whole["arms"][arm] for arm in arms}, "baseline": arms[0]}
            write_atomic(folder.with_name(name) / "experiment.json", to_json(part))
        return folder

    return make


def test_report_splits_the_variance_over_seeds_that_ended_well(crossed: Callable[..., Path]) -> None:
    values = {"order_0": [2.0, 2.2, 2.1], "order_1": [2.01, 2.21, 2.1], "order_2": [2.0, 2.19, "diverged"]}
    results = load(crossed(values))
    found = orders(results)
    assert found is not None
    ((arm, of_base),) = found.items()
    assert (arm, of_base.seeds, of_base.left_out) == ("base", [0, 1], [2])
    assert of_base.values_ij.tolist() == np.array([[2.0, 2.01, 2.0], [2.2, 2.21, 2.19]]).tolist()
    first = orders_section(results, found).rows[0]
    assert first[:2] == ["base", "initial values"]
    assert float(first[3].split()[0]) > 0.95
    assert "seed 2" in " ".join(orders_section(results, found).notes)
    assert any(section.title.startswith("Initial values") for section in all_sections(results, []))


def test_every_arm_is_crossed_if_seeds_say_so(tmp_path: Path) -> None:
    experiment = load_experiment(write_experiment(tmp_path, seeds={"init": 3, "data": [0, 7]}), {})
    assert (experiment.seeds, experiment.data_seeds) == ([0, 1, 2], (0, 7))
    grid = make_plan(expand_orders(experiment))
    assert list(grid.by_arm) == ["order_0", "order_7", "rms.order_0", "rms.order_7"]
    assert len(grid.distinct) == 2 * 3 * 2
    configs = [planned.cell.config for planned in grid.by_arm["rms.order_7"]]
    assert [(config["seed"], config["data_seed"]) for config in configs] == [(0, 7), (1, 7), (2, 7)]
    plain = load_experiment(write_experiment(tmp_path, seeds=3), {})
    assert [one.cell.id for one in make_plan(experiment).cells] == [one.cell.id for one in make_plan(plain).cells]


CLAIM = {"claim": "rms is better", "kind": "ours", "relation": "less", "arm": "rms", "metric": "nll"}


def test_claims_are_about_the_files_seeds_even_if_crossed(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, seeds={"init": 6, "data": 2}, claims=[CLAIM])
    for given in (None, 8, {"init": 7, "data": 3}):
        (claim,) = load_experiment(path, {}, given).claims
        assert claim.seeds == list(range(6))


@pytest.mark.parametrize("given", [None, {"init": 3, "data": 2}])
def test_a_ladder_has_no_orders_of_the_data(tmp_path: Path, given: Any, refused: Refused) -> None:
    ladder = {"rungs": {"small": {}, "large": {"common": {"model.layers": 3}}}}
    path = write_experiment(tmp_path, ladder=ladder, seeds=given or 3)
    with refused():
        load_experiment(path, {}, None if given else {"init": 3, "data": 2})


def test_differences_are_split_too_and_say_which_seeds_pay(
    crossed: Callable[..., Path], check_message: CheckMessage
) -> None:
    base, by_order = np.array([2.0, 2.2, 2.1, 2.05]), np.array([0.0, 0.01, -0.01])
    off = np.array([-0.3, -0.1, -0.2, -0.25])
    noise = np.random.default_rng(0).normal(0, 1e-4, (4, 3))
    cells = {f"order_{j}": list(base + by_order[j]) for j in range(3)}
    cells |= {f"arm.order_{j}": list(base + by_order[j] + off + noise[:, j]) for j in range(3)}
    results = load(crossed(cells))
    found = orders(results)
    assert found is not None
    assert list(found) == ["base", "arm"]
    np.testing.assert_allclose(found["arm"].values_ij, off[:, None] + noise, atol=1e-12)
    parts = found["arm"].parts
    assert parts is not None
    assert parts.first == pytest.approx(off.var(ddof=1), rel=0.01)
    by_formula = np.sqrt(parts.first / 8 + parts.second / 3 + parts.rest / 24)
    assert found["arm"].error(seeds=2) == pytest.approx(by_formula, rel=1e-12)
    section = orders_section(results, found)
    assert [row[0] for row in section.rows] == ["base"] * 3 + ["arm - base"] * 3
    check_message(section.notes[0])


def test_too_few_cells_of_orders_are_reported(
    crossed: Callable[..., Path], experiment: Callable[..., Path], check_message: CheckMessage
) -> None:
    results = load(crossed({"order_0": [2.0, None], "order_1": [2.0, 2.1]}))
    found = orders(results)
    assert found is not None
    assert orders_section(results, found).rows == []
    check_message(orders_section(results, found).notes[-1])
    assert orders(load(experiment({"alone": [2.0, 2.1]}).with_name("demo.orders"))) is None


@pytest.mark.extra
def test_orders_of_all_arms_are_trained_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write_experiment(tmp_path, seeds={"init": [0, 1], "data": [0, 1]})
    assert main(["ablate", str(path), "--out", str(out), "--workers", "1", "--underpowered"]) == 0
    grid = load(out / "small.orders")
    seen = {key: record["pairing"]["order"] for key, record in grid.records.items() if record and record["pairing"]}
    assert seen["order_0", 0] == seen["order_0", 1] != seen["order_1", 0] == seen["order_1", 1]
    assert grid.records["order_1", 1] == load(out / "small").records["layer", 1]
    page = (out / "small" / "table.md").read_text()
    assert all(f"| {cause} |" in page for cause in CAUSES)
    pack = str(tmp_path / "small.lmpack")
    assert main(["pack", str(out / "small"), "--out", pack]) == 0
    assert main(["unpack", pack, "--out", str(tmp_path / "again")]) == 0
    assert orders(load(tmp_path / "again" / "small")) is not None


# a search for every arm


@pytest.mark.parametrize(
    "tune",
    [
        {"space": {"optim.lrr": {"low": 1, "high": 2}}, "trials": 3},
        {"space": SPACE, "trials": 10**9},
        {"space": SPACE, "trials": 3, "sampler": {"name": "tpe", "n_startup_trials": "x"}},
        {"space": SPACE, "trials": 3, "sampler": "grid"},
    ],
)
def test_plan_refuses_a_search_that_cannot_run(tmp_path: Path, tune: Any, refused_command: RefusedCommand) -> None:
    refused_command(["ablate", write_experiment(tmp_path, tune=tune), "--plan", "--out", tmp_path / "out"])


def test_winners_are_added_to_what_each_arm_declares(tmp_path: Path) -> None:
    experiment = load_experiment(write_experiment(tmp_path, tune={"space": SPACE, "trials": 3}), {})
    winners = {"layer": {"changes": {"optim.lr": 0.5}}, "rms": {"changes": None}}
    twin = with_winners(experiment, winners)
    assert twin.arms == {"layer": {"optim.lr": 0.5}, "rms": {"model.norm": "RMSNorm"}}
    assert (twin.name, twin.baseline, twin.seeds) == ("small.tuned", "layer", experiment.seeds)


def test_envelope_is_the_lowest_trial_of_each_bin() -> None:
    x, y = envelope([1.0, 1.1, 10.0, 100.0], [3.0, 2.0, 1.0, 4.0], log=True)
    assert list(zip(x, y, strict=True)) == [(1.1, 2.0), (10.0, 1.0), (100.0, 4.0)]


def test_a_grid_has_no_more_trials_than_points(tmp_path: Path) -> None:
    tune = {"space": {"optim.lr": {"choices": [0.1, 0.2]}}, "trials": 5, "sampler": "grid"}
    tuning = load_experiment(write_experiment(tmp_path, tune=tune), {}).tuning
    assert known(tuning).trials == 2


def test_a_search_trains_as_long_as_its_arm(tmp_path: Path) -> None:
    arms = {"layer": {}, "deep": {"model.layers": 4}}
    path = write_experiment(tmp_path, arms=arms, tune={"space": SPACE, "trials": 3}, equal="flops")
    plan = make_plan(load_experiment(path, {}))
    steps = {
        job.spec.name: job.spec.tree["trainer"]["max_steps"] for job in searches_of(plan.experiment, plan, tmp_path)
    }
    assert steps == {arm: plan.first(arm).config["trainer"]["max_steps"] for arm in arms}
    assert steps["deep"] < steps["layer"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_every_arm_is_tuned_alike_and_confirmed_on_fresh_seeds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune = {"space": SPACE, "trials": 3, "seeds": [70], "sampler": {"name": "random", "seed": 3}}
    path = write_experiment(tmp_path, tune=tune, seeds=[0, 1])
    command = ["ablate", str(path), "--out", str(out), "--workers", "2", "--underpowered"]
    assert main(command) == 0
    described = json.loads((out / "small" / "tune" / "tuned.json").read_text())
    studies = {arm: load_study(out / "small" / "tune" / arm) for arm in ("layer", "rms")}
    for arm, study in studies.items():
        assert list(study.trials.state) == ["complete"] * 3
        best = study.complete.sort_values("nll").iloc[0]
        assert described["arms"][arm]["changes"] == {"optim.lr": best["optim.lr"]}
        assert described["arms"][arm]["value"] == best.nll
    assert list(studies["layer"].trials["optim.lr"]) == list(studies["rms"].trials["optim.lr"]), "the same budget"
    twin = load(out / "small.tuned")
    for (arm, seed), record in twin.records.items():
        assert record is not None
        assert seed != 70
        config = yaml.safe_load((twin.store.directory(record["id"]) / "config.yaml").read_text())
        assert config["optim"]["lr"] == described["arms"][arm]["changes"]["optim.lr"]
    page = (out / "small" / "table.md").read_text()
    assert "## Tuning" in page
    assert "3 complete" in page
    before = {path.name for path in Store(out).cells.iterdir()}
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before, "nothing is trained again"
