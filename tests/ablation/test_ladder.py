"""A ladder in an experiment's file: what it asks for, how a wrong one is answered, and that it is carried out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from experiment_files import write_experiment
from helpers import Capture, Patch, known
from messages import CheckMessage, Refused, RefusedCommand
from records import record

import lm
from lm.ablation.ablate import RunOptions
from lm.ablation.derived import best_rates, expand_rates, grid_rates, write_rates
from lm.ablation.experiment import Experiment, load_experiment
from lm.ablation.ladder.plan import (
    expand_rungs,
    merge_plans,
    plan_ladder,
    rates_at,
    setting_of,
    trained_curves,
    write_ladder_manifest,
)
from lm.ablation.ladder.run_ladder import run_ladder
from lm.ablation.plan import Plan, make_plan, write_manifest
from lm.ablation.reproduce import TITLE
from lm.cli import main
from lm.config.reading import shipped_files
from lm.config.tree import override
from lm.store.files import write_atomic
from lm.store.leases import LostError
from lm.store.store import Store
from lm.training.cell import check, sizes

pytestmark = pytest.mark.slow

RUNGS = {name: {"common": {"model.width": width}} for name, width in (("s", 8), ("m", 16), ("l", 24), ("xl", 32))}
LADDER: dict[str, Any] = {"tokens_per_parameter": 0.4, "warmup": 0.25, "rungs": RUNGS}

SHORT = {**LADDER, "rungs": {name: RUNGS[name] for name in ("s", "m")}}


def write(folder: Path, ladder: Any = LADDER, **changes: Any) -> Path:
    return write_experiment(folder, **{"seeds": 3, "ladder": ladder, **changes})


def test_every_rung_is_an_experiment_with_its_own_text(tmp_path: Path) -> None:
    ladder = {**LADDER, "rungs": {**RUNGS, "xl": {**RUNGS["xl"], "seeds": [7, 8], "tokens": 25600}}}
    plans = plan_ladder(load_experiment(write(tmp_path, ladder), {}), tmp_path, None)
    assert [plan.experiment.name for plan in plans] == ["small.s", "small.m", "small.l", "small.xl"]
    assert [plan.experiment.seeds for plan in plans] == [[0, 1, 2]] * 3 + [[7, 8]]
    for plan in plans[:3]:
        cell = plan.first("layer").config
        assert cell["optim"]["schedule"]["init_args"]["warmup"] == round(0.25 * cell["trainer"]["max_steps"])
    assert plans[3].first("rms").config["trainer"]["max_steps"] == 25600 // 128
    whole = merge_plans(load_experiment(write(tmp_path, ladder), {}), plans)
    assert whole.cells[0].called == plans[0].cells[0].called, "the name of its run in loggers"
    assert whole.cells[0].arm == "s.layer"
    assert len(whole.distinct) == 3 * 6 + 4


def test_tokens_are_those_of_the_baseline(tmp_path: Path) -> None:
    one = expand_rungs(load_experiment(write(tmp_path), {}))[1]
    of = sizes(check(one.tree))
    steps = round(0.4 * of.parameters / of.tokens_per_step)
    assert one.tree["trainer"]["max_steps"] == steps
    assert one.tree["trainer"]["val_check_interval"] == round(4 * steps / 12)


def test_what_the_command_gives_goes_before_the_rungs(tmp_path: Path) -> None:
    settings = {"trainer.max_steps": 8, "optim.schedule.warmup": 2}
    experiment = load_experiment(write(tmp_path), settings, seeds="0-1")
    for one in expand_rungs(experiment):
        assert one.tree["trainer"]["max_steps"] == 8
        assert one.seeds == [0, 1]


def test_a_rung_may_give_arms_rates_of_its_own(tmp_path: Path) -> None:
    rungs = {**RUNGS, "l": {**RUNGS["l"], "rates": {"rms": "2e-3"}}}
    path = write(tmp_path, {**LADDER, "rungs": rungs})
    found = [one.arms for one in expand_rungs(load_experiment(path, {}))]
    plain, own = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}, {"model.norm": "RMSNorm", "optim.lr": 0.002}
    assert found == [plain, plain, {**plain, "rms": own}, plain]
    given = expand_rungs(load_experiment(path, {"optim.lr": 0.5}))
    assert all(one.arms == plain for one in given)


def test_auto_is_decided_on_the_top_rung_for_all(tmp_path: Path, refused: Refused) -> None:
    autotuned: list[str] = []

    def autotune(rung: Experiment) -> Experiment:
        autotuned.append(rung.name)
        tree = override(rung.tree, {"trainer.precision": "bf16-mixed"})
        return replace(rung, tree=tree, autotuned={"chosen": {"precision": "bf16-mixed"}})

    path = write(tmp_path, common={"trainer.precision": "auto"})
    expanded = expand_rungs(load_experiment(path, {}), autotune)
    assert autotuned == ["small.xl"]
    assert [rung.name for rung in expanded] == ["small.s", "small.m", "small.l", "small.xl"]
    assert {rung.tree["trainer"]["precision"] for rung in expanded} == {"bf16-mixed"}
    assert all(rung.autotuned == expanded[-1].autotuned for rung in expanded)
    rungs = {**RUNGS, "m": {"common": {"model.width": 16, "trainer.attention": "auto"}}}
    path = write(tmp_path, {**LADDER, "rungs": rungs})
    with refused():
        expand_rungs(load_experiment(path, {}))


def test_the_same_baseline_has_the_same_cells_in_every_ladder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", SHORT, arms={"layer": {}, "relu": {"model.mlp": "ReLU"}})
    ids = []
    for path in (write(tmp_path, SHORT), other):
        plans = plan_ladder(load_experiment(path, {}), tmp_path, None)
        ids.append([cell.cell.id for plan in plans for cell in plan.by_arm["layer"]])
    assert ids[0] == ids[1]


LENGTHS = {**SHORT, "tokens_per_parameter": [0.1, 0.2, 0.4], "rungs": {**SHORT["rungs"]}}


def test_a_list_of_lengths_is_a_rung_each(tmp_path: Path) -> None:
    rungs = {**LENGTHS["rungs"], "l": {**RUNGS["l"], "tokens_per_parameter": 0.2}}
    plans = plan_ladder(load_experiment(write(tmp_path, {**LENGTHS, "rungs": rungs}), {}), tmp_path, None)
    names = [plan.experiment.name for plan in plans]
    assert names == ["small.s", "small.s.x0.2", "small.s.x0.4", "small.m", "small.m.x0.2", "small.m.x0.4", "small.l"]
    steps = [plan.first("layer").config["trainer"]["max_steps"] for plan in plans]
    of = sizes(plans[2].first("layer"))
    assert steps[2] == round(0.4 * of.parameters / of.tokens_per_step)
    assert steps[:3] == sorted(set(steps[:3]))
    mixed = {
        "tokens_per_parameter": 0.1,
        "rungs": {"s": {**RUNGS["s"], "tokens_per_parameter": [0.1, 0.2]}, "m": RUNGS["m"]},
    }
    ladder = known(load_experiment(write(tmp_path, {**LADDER, **mixed}), {}).ladder)
    assert [(rung.size, rung.tokens_per_parameter) for rung in ladder.rungs.values()] == [
        ("s", 0.1),
        ("s", 0.2),
        ("m", 0.1),
    ]


def test_each_length_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    ladder = {**LENGTHS, "rungs": {"s": {**RUNGS["s"], "seeds_by_length": [3, [7, 8], 1]}, "m": RUNGS["m"]}}
    path = write(tmp_path, ladder, seeds=2)
    rungs = known(load_experiment(path, {}).ladder).rungs
    seeds = {"s": [0, 1, 2], "s.x0.2": [7, 8], "s.x0.4": [0], "m": [0, 1], "m.x0.2": [0, 1], "m.x0.4": [0, 1]}
    assert {name: rung.seeds for name, rung in rungs.items()} == seeds
    given = known(load_experiment(path, {}, seeds=[5]).ladder).rungs  # a command's go first
    assert {tuple(rung.seeds) for rung in given.values()} == {(5,)}


def test_lengths_share_the_cells_of_ladders_with_one(tmp_path: Path) -> None:
    several = plan_ladder(load_experiment(write(tmp_path, LENGTHS), {}), tmp_path, None)
    ids = {plan.experiment.name: [cell.cell.id for cell in plan.cells] for plan in several}
    for ratio, suffix in ((0.1, ""), (0.2, ".x0.2"), (0.4, ".x0.4")):
        one = plan_ladder(
            load_experiment(write(tmp_path, {**SHORT, "tokens_per_parameter": ratio}), {}), tmp_path, None
        )
        for plan in one:
            assert [cell.cell.id for cell in plan.cells] == ids[f"{plan.experiment.name}{suffix}"]


def test_only_ladders_of_lengths_write_them_down(tmp_path: Path) -> None:
    for ladder, keys in ((SHORT, set()), (LENGTHS, {"size", "tokens_per_parameter", "sizes"})):
        experiment = load_experiment(write(tmp_path, ladder, arms={"layer": {}, "gated": {"model.mlp": "SwiGLU"}}), {})
        plans = plan_ladder(experiment, tmp_path, None)
        folder = write_ladder_manifest(experiment, plans, Store(tmp_path / "out"))
        rungs = json.loads((folder / "ladder.json").read_text())["rungs"]
        assert all(rung.keys() & {"size", "tokens_per_parameter", "sizes"} == keys for rung in rungs)
    assert [(rung["size"], rung["tokens_per_parameter"]) for rung in rungs[2:4]] == [("s", 0.4), ("m", 0.1)]
    for rung, plan in zip(rungs, plans, strict=True):
        assert rung["sizes"]["layer"] == {key: rung[key] for key in ("parameters", "tokens")}
        assert rung["sizes"]["gated"]["parameters"] == sizes(plan.first("gated")).parameters != rung["parameters"]


def test_plan_shows_every_size_and_length(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    path = write(tmp_path, {**LENGTHS, "tokens_per_parameter": [0.1, 0.4]}, seeds=2)
    assert main(["ablate", str(path), "--out", str(tmp_path / "out"), "--plan"]) == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines() if line.startswith("│")]
    assert [row[1] for row in rows] == ["s", "s.x0.4", "m", "m.x0.4"]
    assert len({(row[2], row[3]) for row in rows}) == 4
    check_message([line.partition(";")[0].rstrip() for line in shown.splitlines() if line[:1].isalnum()])


@pytest.mark.parametrize(
    ("ladder", "changes"),
    [
        ([], {}),
        ({"rungs": {"s": {}}}, {}),
        ({"rungs": {"s": {"model.width": 8}, "m": {}}}, {}),
        ({"rungs": {"s": {"common": {"seed": 1}}, "m": {}}}, {}),
        ({"rungs": {"../s": {}, "m": {}}}, {}),
        ({"rungs": RUNGS, "tokens": 0}, {}),
        ({"rungs": RUNGS, "tokens": 1e30}, {}),
        ({"rungs": {"s": {"rates": {"rms": 0}}, "m": {}}}, {}),
        ({"rungs": RUNGS, "tokens": 9, "tokens_per_parameter": 1}, {}),
        ({"rungs": {"s": {"common": {"trainer.max_steps": 3}}, "m": {}}, "tokens": 9}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": "ten"}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": ["ten", 20]}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": []}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": [10]}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": [-5, 10]}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": [10, 5]}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": [5, 5]}, {}),
        ({"rungs": RUNGS, "tokens_per_parameter": [1, 5, 5.0000001]}, {}),
        ({"rungs": {"s": {"tokens_per_parameter": [1, 2]}, "s.x2": {}}, "tokens_per_parameter": 1}, {}),
        ({"rungs": {"s": {"tokens_per_parameter": [1, 2]}, "m": {}}}, {}),
        ({"rungs": {"s": {"seeds_by_length": [6, 3]}, "m": {}}, "tokens_per_parameter": [1, 2, 4]}, {}),
        ({"rungs": {"s": {"seeds_by_length": [6, 3], "seeds": 2}, "m": {}}, "tokens_per_parameter": [1, 2]}, {}),
        ({"rungs": {"s": {"seeds_by_length": [6, 0]}, "m": {}}, "tokens_per_parameter": [1, 2]}, {}),
        ({"rungs": RUNGS, "warmup": 1.5}, {}),
        ({"rungs": RUNGS, "margin": {"gain": 0.9}}, {}),
        ({"rungs": {"s": {"seeds": {"min": 3, "max": 6}}, "m": {}}}, {}),
        (LADDER, {"tiers": {"G": {}}}),
        (LADDER, {"tune": {"space": {}, "trials": 3}}),
        (LADDER, {"seeds": {"min": 6, "max": 8}}),
        (LADDER, {"metric": "accuracy"}),
    ],
)
def test_a_wrong_ladder_is_one_line(tmp_path: Path, ladder: Any, changes: dict[str, Any], refused: Refused) -> None:
    path = write(tmp_path, **changes)
    tree = {**yaml.safe_load(path.read_text()), "ladder": ladder}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    with refused():
        load_experiment(path, {})


@pytest.mark.parametrize(
    "rungs",
    [
        {"m": RUNGS["m"], "s": RUNGS["s"]},
        {"s": RUNGS["s"], "m": {"common": {"model.widht": 3}}},
        {"s": {**RUNGS["s"], "seeds": 1}, "m": RUNGS["m"]},
        {"s": {**RUNGS["s"], "rates": {"rsm": 0.1}}, "m": RUNGS["m"]},
    ],
)
def test_plan_refuses_a_ladder_that_cannot_run(tmp_path: Path, rungs: Any, refused_command: RefusedCommand) -> None:
    path = write(tmp_path, {**LADDER, "rungs": rungs})
    refused_command(["ablate", path, "--plan", "--out", tmp_path / "out"])


def test_lengths_of_one_size_must_grow_in_compute(tmp_path: Path, refused_command: RefusedCommand) -> None:
    command = ["ablate", write(tmp_path, LENGTHS), "--plan", "--out", tmp_path / "out", "--set", "trainer.max_steps=8"]
    refused_command(command)
    refused_command(["ablate", write(tmp_path, {**SHORT, "tokens_per_parameter": []}), "--plan"])


def test_the_shipped_ladders_share_the_cells_of_their_baseline() -> None:
    files = [path for name, path in shipped_files("experiment").items() if name.startswith("ladder_")]
    family = [one for path in files if (one := load_experiment(path, {})).ladder is not None]
    assert len(family) == 7
    seen: dict[str, Any] = {}
    for one in family:
        assert one.ladder is not None
        whole = (one.tree, one.ladder.warmup, one.arms[one.baseline])
        for name, rung in one.ladder.rungs.items():
            rate = rung.rates.get(one.baseline)
            found = (whole, rung.changes, rung.seeds, rung.tokens, rung.tokens_per_parameter, rate)
            assert found == seen.setdefault(name, found), f"{one.name}: {name}"
    small = [f"{size}{length}" for size in ("s50k", "s120k") for length in ("", ".x20", ".x40")]
    assert list(seen) == [*small, "s200k", "s450k", "s800k"]


def test_ladders_are_planned_together_and_a_bad_one_is_named(
    tmp_path: Path, capsys: Capture, refused_command: RefusedCommand, check_message: CheckMessage
) -> None:
    ladder = {**SHORT, "tokens_per_parameter": 0.1}
    first = write(tmp_path, ladder, seeds=2)
    tree = yaml.safe_load(first.read_text())
    (tmp_path / "swiglu.yaml").write_text(
        yaml.safe_dump({**tree, "arms": {"layer": {}, "gated": {"model.mlp": "SwiGLU"}}}, sort_keys=False)
    )
    command = ["reproduce", "--tier", "L", "--experiments", str(tmp_path), "--out", str(tmp_path / "out"), "--plan"]
    assert main(command) == 0
    small, swiglu, _ = capsys.readouterr().out.splitlines()
    check_message([line.rpartition(",")[0] for line in (small, swiglu)])
    refused_command([*command, "smal"])
    (tmp_path / "swiglu.yaml").write_text(yaml.safe_dump({**tree, "arms": {"layer": {"model.norm": "None"}}}))
    refused_command(command)


def test_cell_of_two_rungs_is_timed_in_the_first(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    """The wide arm of the first rung is the baseline of the second."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("lm.execution.estimate.measured_seconds", lambda *_: 60.0)
    ladder = {"rungs": {"s": {}, "m": {"common": {"model.width": 32}}}}
    path = write(tmp_path, ladder, arms={"layer": {}, "wide": {"model.width": 32}}, seeds=2)
    assert main(["ablate", str(path), "--out", str(tmp_path / "out"), "--workers", "1", "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")] for line in lines if line.startswith("│")]
    rows = {row[1]: row[-4:-1] for row in cells}
    assert (rows["s"], rows["m"]) == (["4", "0", "4 min 0 s"], ["2", "0", "-"])
    check_message(lines[-2:])


def test_a_ladder_lives_as_long_as_its_own_file(tmp_path: Path, monkeypatch: Patch) -> None:
    manifests: list[Path] = []

    def stopped(plan: Plan, store: Store, options: RunOptions, manifest: Path) -> int:
        assert manifest.is_file()
        manifests.append(manifest)
        raise LostError("taken away")

    monkeypatch.setattr("lm.ablation.ladder.run_ladder.train_missing", stopped)
    with pytest.raises(LostError):
        run_ladder(load_experiment(write(tmp_path, SHORT), {}), RunOptions(tmp_path / "out"))
    assert manifests == [tmp_path / "out" / "small" / "ladder.json"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_a_ladder_is_planned_carried_out_and_not_trained_twice(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    out = tmp_path / "out"
    path = write(tmp_path, {**LADDER, "tokens_per_parameter": 0.1, "margin": {"gain": 1.2}}, seeds=2)
    command = ["ablate", str(path), "--out", str(out), "--workers", "2"]
    assert main([*command, "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    check_message([line.partition(";")[0].rstrip() for line in lines if line[:1].isalnum()])
    assert main(command) == 0
    for name in RUNGS:
        assert (out / f"small.{name}" / "table.md").is_file()
    assert "| a decade of compute |" in (out / "small" / "table.md").read_text()
    content = json.loads((out / "small" / "ladder.json").read_text())
    compute = [rung["compute"]["layer"] for rung in content["rungs"]]
    assert compute == sorted(compute)
    for rung in content["rungs"]:
        (cell, *_) = json.loads((out / rung["experiment"] / "experiment.json").read_text())["arms"]["layer"][
            "cells"
        ].values()
        cost = Store(out).record(cell)["cost"]
        assert rung["compute"]["layer"] == pytest.approx(known(cost["flops_per_token"]) * known(cost["tokens"]))
    before = {path.name for path in Store(out).cells.iterdir()}
    found = lm.ablate(path, out=out, workers=2)
    assert isinstance(found, lm.Ladder)
    assert found.cells.query("metric == 'nll'").status.tolist() == ["ok"] * 16
    capsys.readouterr()
    assert main(["reproduce", "--tier", "L", "--experiments", str(tmp_path), "--out", str(out), "--workers", "2"]) == 0
    assert TITLE in capsys.readouterr().out
    assert "| small | rms, layer |" in (out / "reproduce.L" / "table.md").read_text()
    assert len((out / "reproduce.L" / "table.csv").read_text().splitlines()) == 1 + 4 * 2
    assert {path.name for path in Store(out).cells.iterdir()} == before


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_a_ladder_of_lengths_is_trained_packed_and_loaded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ladder = {**LENGTHS, "tokens_per_parameter": [0.05, 0.1, 0.2]}
    assert main(["ablate", str(write(tmp_path, ladder, seeds=2)), "--out", str(out), "--workers", "1"]) == 0
    assert (out / "small.s.x0.1" / "table.md").is_file()
    assert main(["pack", str(out / "small")]) == 0
    found = lm.load(out / "small.lmpack")
    assert isinstance(found, lm.Ladder)
    assert list(found.rungs) == ["s", "s.x0.1", "s.x0.2", "m", "m.x0.1", "m.x0.2"]
    assert found.worth.tokens_per_parameter.tolist() == [
        ratio for _ in "sm" for ratio in (0.05, 0.1, 0.2) for _ in "ab"
    ]
    assert found.worth.gain_data.isna().all(), "two sizes give no law"


# learning rates that a curve brackets

RATES = (0.004, 0.008, 0.016)


def plan_of(folder: Path, name: str, **changes: Any) -> Plan:
    return make_plan(load_experiment(write_experiment(folder, name, seeds=3, confirmatory=False, **changes), {}))


def train_curve(
    folder: Path, losses: dict[str, list[float]], seeds: int = 1, name: str = "rates", **changes: Any
) -> None:
    """Make up a finished curve of learning rates, with the loss of each arm at each rate."""
    grid = {"rates": list(RATES), "seeds": list(range(100, 100 + seeds))}
    plan, store = plan_of(folder, name, lr_curve=grid, **changes), Store(folder / "out")
    of_grid = make_plan(expand_rates(plan.experiment, grid_rates(plan.experiment)))
    for planned in of_grid.cells:
        arm, rate = planned.arm.split(".lr")
        stored = record(planned.cell.id, losses[arm][RATES.index(float(rate))], planned.seed)
        store.finish(planned.cell.id, stored)
        write_atomic(store.directory(planned.cell.id) / "config.yaml", yaml.safe_dump(planned.cell.config))
    write_manifest(plan, store)
    write_manifest(of_grid, store)
    rates = grid_rates(plan.experiment)
    write_rates(best_rates(plan, rates, store), rates, plan, store)


VALLEY, FALLING = [2.0, 1.8, 1.9], [2.0, 1.9, 1.8]


def test_curve_brackets_a_rate_between_two_worse_ones(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": FALLING}, seeds=2)
    rung = plan_of(tmp_path, "rung", common={"optim.lr": 0.008})
    rates = rates_at(rung, trained_curves(tmp_path / "out"))
    assert rates["layer"] == {"rate": 0.008, "curve": "rates", "lower": 0.004, "higher": 0.016, "seeds": 2}
    assert rates["rms"]["curve"] is None  # best at the end of the grid
    other = plan_of(tmp_path, "rung", common={"optim.lr": 0.004})
    assert rates_at(other, trained_curves(tmp_path / "out"))["layer"]["curve"] is None


def test_a_curve_of_another_size_or_length_brackets_nothing(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": VALLEY})
    curves = trained_curves(tmp_path / "out")
    same: list[dict[str, Any]] = [{"trainer.limit_val_batches": 1}]
    other: list[dict[str, Any]] = [{"trainer.max_steps": 9}, {"model.layers": 1}, {"optim.schedule.warmup": 1}]
    for changes in (*same, *other):
        rung = plan_of(tmp_path, "rung", common={"optim.lr": 0.008, **changes})
        assert (rates_at(rung, curves)["layer"]["curve"] == "rates") is (changes in same), changes
    config = rung.first("layer").config
    assert setting_of({**config, "seed": 7}) == setting_of(config)


def test_of_several_curves_that_with_most_seeds_decides(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": VALLEY}, seeds=1, name="first")
    train_curve(tmp_path, {"layer": FALLING, "rms": VALLEY}, seeds=2, name="second")
    rates = rates_at(plan_of(tmp_path, "rung", common={"optim.lr": 0.008}), trained_curves(tmp_path / "out"))
    assert (rates["layer"]["curve"], rates["rms"]["curve"]) == (None, "second")


def test_a_damaged_curve_is_none(tmp_path: Path) -> None:
    train_curve(tmp_path, {"layer": VALLEY, "rms": VALLEY})
    path = tmp_path / "out" / "rates" / "lr_curve.json"
    for content in ("{", '{"format": 1}', '{"format": 1, "arms": {"layer": {"names": {"x": "y"}}}}'):
        path.write_text(content)
        assert trained_curves(tmp_path / "out") == []
