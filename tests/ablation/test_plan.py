"""What an experiment file asks for, and how a wrong one is answered."""

import functools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from experiment_files import write_experiment
from helpers import RUN, Capture, Patch
from messages import CheckMessage, Refused
from records import blank

from lm.ablation.ablate import RunOptions, num_workers
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import make_plan, remaining_work, write_manifest
from lm.analysis.claims import Claim, fingerprint
from lm.cli import main
from lm.config.components import build
from lm.config.reading import read_seeds, shipped_files
from lm.config.tree import InputError, override, parse_value
from lm.execution import estimate
from lm.execution.estimate import steps_evaluated, wall_seconds
from lm.execution.scheduler import Planned
from lm.report.status import duration
from lm.store.record import GitState, Record, Status
from lm.store.store import Store
from lm.training import cell as cells
from lm.training.identified import Cell
from lm.training.provenance import source_hash

ARMS = {"post": {"model.block": "PostNorm"}, "pre": {"model.block": "PreNorm"}, "rms": {"model.norm": "RMSNorm"}}


write = functools.partial(write_experiment, baseline="post", arms=ARMS, seeds=[3, 5])


def test_cells_are_arms_times_seeds_in_pairs(tmp_path: Path) -> None:
    plan = make_plan(load_experiment(write(tmp_path), {}))
    assert [(p.seed, p.arm) for p in plan.cells] == [(s, a) for s in (3, 5) for a in ("post", "pre", "rms")]
    assert len({p.cell.id for p in plan.cells}) == 6
    assert all(p.cell.config["seed"] == p.seed for p in plan.cells)


def test_arms_may_have_names_that_yaml_reads_as_values(tmp_path: Path) -> None:
    claims = [{"claim": "a", "kind": "ours", "metric": "nll", "relation": "less", "arm": "ON", "against": "OFF"}]
    arms = {"OFF": {}, "ON": {"model.norm": "RMSNorm"}, "RATE": {"optim.lr": 0.001}}
    path = write_experiment(tmp_path, arms=arms, baseline="OFF", confirmatory=["ON", "RATE"], claims=claims)
    path.write_text(path.read_text().replace("OFF", "off").replace("ON", "on").replace("RATE", "1.0e-3"))
    experiment = load_experiment(path, {})
    assert (experiment.baseline, experiment.inference.confirmatory) == ("off", ["on", "1.0e-3"])
    assert experiment.claims[0].contrast == {"on": 1.0, "off": -1.0}


def test_an_arm_differs_from_the_baseline_by_what_it_declares(tmp_path: Path) -> None:
    plan = make_plan(load_experiment(write(tmp_path), {}))
    assert plan.changes["post"] == {}
    assert plan.changes["pre"] == {"model.block": ("PostNorm", "PreNorm")}
    changed = plan.changes["rms"]  # the base is pre-norm, and so is this arm
    assert changed["model.norm"] == ("LayerNorm", "RMSNorm")
    assert set(changed) == {"model.block", "model.norm", "model.norm.eps", "model.norm.bias"}


def test_arms_that_compute_the_same_share_their_cells(tmp_path: Path) -> None:
    arms = {"post": {"model.block": "PostNorm"}, "again": {"model.block": {"class_path": "PostNorm"}}}
    plan = make_plan(load_experiment(write(tmp_path, arms=arms), {}))
    assert len(plan.cells) == 4
    assert len(plan.missing(Store(tmp_path))) == 2


def test_settings_reach_every_arm_and_seeds_can_be_replaced(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, common={"optim.lr": 0.5}), {"trainer.max_steps": 7}, [9])
    plan = make_plan(experiment)
    assert [p.cell.config["trainer"]["max_steps"] for p in plan.cells] == [7, 7, 7]
    assert [p.cell.config["optim"]["lr"] for p in plan.cells] == [0.5] * 3
    assert [p.seed for p in plan.cells] == [9] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"basline": "post"},
        {"baseline": "posst"},
        {"baseline": None},
        {"base": "bse.yaml"},
        {"seeds": []},
        {"seeds": [1, 1]},
        {"seeds": [0.5]},
        {"seeds": True},
        {"arms": ["post"]},
        {"arms": {"post": {}, "../up": {}}},
        {"arms": {"post": {"seed": 3}}},
        {"arms": {"post": {"model.blok": "PreNorm"}}},
        {"arms": {"post": {"model.block": "PreNrom"}}},
        {"arms": {"post": {"model.norm": {"class_path": "RMSNorm", "eps": 1}}}},
        {"common": 0},
        {"margin": 0},
        {"metric": "nll@\u0665\u0661\u0662"},
        {"arms": {"post": {"model.norm": {"class_path": "RMSNorm", "init_args": 0}}}},
        {"arms": {"post": {"model.heads": 3}}},
    ],
)
def test_a_wrong_experiment_is_answered_before_anything_is_trained(
    tmp_path: Path, changes: dict[str, Any], refused: Refused
) -> None:
    path = write(tmp_path, **changes)
    with refused():
        make_plan(load_experiment(path, {}))


def test_null_says_nothing_wherever_something_may_be_left_out(tmp_path: Path) -> None:
    left_out = ("common", "tiers", "axes", "declared", "margin", "secondary", "claims")
    tree = yaml.safe_load(write(tmp_path).read_text()) | dict.fromkeys(left_out) | {"arms": {"post": None, "b": None}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(tree))
    experiment = load_experiment(tmp_path / "small.yaml", {})
    assert experiment.arms == {"post": {}, "b": {}}
    assert experiment.inference.margin == {}


def test_each_arm_is_checked_once_for_all_its_seeds(tmp_path: Path, monkeypatch: Patch) -> None:
    calls: dict[str, int] = {}

    def counted(name: str, real: Any) -> Any:
        return lambda *arguments: calls.update({name: calls.get(name, 0) + 1}) or real(*arguments)

    for name in ("build", "dry_run", "Recorder"):  # a recorder is made for each trainer
        monkeypatch.setattr(cells, name, counted(name, getattr(cells, name)))
    monkeypatch.setattr("lm.training.run.build", counted("build", build))
    for name in ("_model_sizes_of", "_processes_of"):
        monkeypatch.setattr(cells, name, {})
    arms = {**ARMS, "slow": {"optim.lr": 0.5}, "slower": {"optim.lr": 0.25}}
    plan = make_plan(load_experiment(write(tmp_path, arms=arms, seeds=30), {}))
    assert len(plan.cells) == 150
    assert calls == {"build": 5, "dry_run": 3, "Recorder": 1}
    write_manifest(plan, Store(tmp_path / "out"))
    assert calls == {"build": 10, "dry_run": 3, "Recorder": 1}


def test_few_arms_are_timed_and_others_estimated_by_flops(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(estimate, "TIMED", 3)
    arms = {f"layers_{n}": {"model.layers": n} for n in range(1, 6)}
    plan = make_plan(load_experiment(write(tmp_path, arms=arms, baseline="layers_1"), {}))
    timed = []

    def seconds(cell: Cell, threads: int) -> float:
        timed.append(cell.config["model"]["init_args"]["layers"])
        return 3.0 + 2.0 * timed[-1]

    monkeypatch.setattr(estimate, "measured_seconds", seconds)
    store = Store(tmp_path / "out")
    found = estimate.seconds_per_cell(plan.by_arm, plan.missing(store), store, threads=1)
    assert found == pytest.approx({f"layers_{n}": 3.0 + 2.0 * n for n in range(1, 6)})
    assert sorted(timed) == [1, 3, 5]
    timed.clear()
    few = [planned for planned in plan.missing(store) if planned.arm in ("layers_2", "layers_4")]
    assert estimate.seconds_per_cell(plan.by_arm, few, store, threads=1) == {"layers_2": 7.0, "layers_4": 11.0}
    assert sorted(timed) == [2, 4]


def test_retry_failed_adds_failed_cells_to_the_missing(tmp_path: Path) -> None:
    plan, store = make_plan(load_experiment(write(tmp_path), {})), Store(tmp_path / "out")
    endings: tuple[Status, ...] = ("ok", "failed", "diverged")
    for planned, status in zip(plan.cells, endings, strict=False):
        store.work(planned.cell.id).mkdir(parents=True)
        store.finish(planned.cell.id, blank(planned.cell.id, status))
    missing = [(p.arm, p.seed) for p in plan.cells[3:]]
    assert [(p.arm, p.seed) for p in remaining_work(plan, store).missing] == missing
    again = [(p.arm, p.seed) for p in remaining_work(plan, store, retry_failed=True).missing]
    assert again == [(plan.cells[1].arm, plan.cells[1].seed), *missing]


def planned(path: Path, capsys: Capture, monkeypatch: Patch, *more: str) -> str:
    """What `--plan` prints of an experiment, without a step timed."""
    monkeypatch.setattr("lm.ablation.plan_tables.seconds_per_cell", lambda by_arm, *_: dict.fromkeys(by_arm, 1.0))
    assert main(["ablate", str(path), "--plan", "--out", str(path.parent / "out"), *more]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "seeds"),
    [
        ({}, "3"),
        ({}, "1"),
        ({"secondary": ["ece"]}, "7"),
        ({"confirmatory": False}, "5"),
        ({}, "7"),
        ({"confirmatory": False}, "6"),
        ({"arms": {"post": {}}}, "2"),
    ],
)
def test_a_plan_says_where_its_seeds_bear_out_no_verdict(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: Patch,
    changes: dict[str, Any],
    seeds: str,
    check_message: CheckMessage,
) -> None:
    said = planned(write(tmp_path, **changes), capsys, monkeypatch, "--seeds", seeds)
    check_message([line for line in said.splitlines() if line.startswith("! ")])


def test_arm_with_the_cells_of_the_baseline_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    arms = {
        "base": {},
        "empty": None,
        "same": {"model.block": "PreNorm", "model.norm": "LayerNorm"},
        "silent": {"trainer.log_every_n_steps": 1},
        "other": {"model.block": "PostNorm"},
    }
    path = write(tmp_path, arms=arms, baseline="base")
    said = planned(path, capsys, monkeypatch, "--seeds", "8").splitlines()
    lines = [line.removeprefix("! ") for line in said if line.startswith("! ")]
    check_message(lines)

    def stop(*_: object) -> None:
        raise InputError("nothing is trained here")

    monkeypatch.setattr("lm.ablation.ablate.train_experiment", stop)
    assert main(["ablate", str(path), "--seeds", "8", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines()[:3] == [f"warning: {line}" for line in lines]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_reused_cells_of_other_code_are_reported(tmp_path: Path, check_message: CheckMessage) -> None:
    plan, store = make_plan(load_experiment(write(tmp_path), {})), Store(tmp_path / "out")
    clean, changed = GitState(commit="c" * 40, dirty=False), GitState(commit="c" * 40, dirty=True)
    origins: list[dict[str, Any]] = [
        {"git": changed, "source": source_hash()},
        {"git": clean, "source": "0" * 64},
        {"git": changed},  # of a version that kept no hash
        {"git": GitState(commit=None, dirty=None), "lm": "0.1"},
    ]
    for planned, origin in zip(plan.cells, origins, strict=False):
        record = blank(planned.cell.id)
        record["provenance"] |= origin  # type: ignore[typeddict-item]
        store.work(planned.cell.id).mkdir(parents=True)
        store.finish(planned.cell.id, record)
    work = remaining_work(plan, store)
    check_message(work.reused())
    check_message(replace(work, missing=plan.cells[:3]).reused())
    assert replace(work, missing=plan.cells[1:]).reused() == []


@pytest.mark.parametrize("more", [[], ["--retry-failed"], ["--plan"], ["--plan", "--retry-failed"]])
def test_shared_cell_is_trained_once_and_its_record_read_once(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, more: list[str]
) -> None:
    path = write(tmp_path, arms={**ARMS, "twin": {"model.block": "PostNorm"}})
    plan, store = make_plan(load_experiment(path, {})), Store(tmp_path / "out")
    for planned in plan.cells[:3]:  # the first seed
        store.work(planned.cell.id).mkdir(parents=True)
        store.finish(planned.cell.id, blank(planned.cell.id, "failed"))
    reads: Counter[str] = Counter()
    queued: list[str] = []
    read = Store.record

    def counted(store: Store, cell: str, *more: Any) -> Record:
        reads.update([cell])
        return read(store, cell, *more)

    def queue(cells: list[Planned], *_: Any) -> int:
        queued.extend(planned.cell.id for planned in cells)
        return 0

    monkeypatch.setattr(Store, "record", counted)
    monkeypatch.setattr("lm.ablation.ablate.train_cells", queue)
    monkeypatch.setattr("lm.ablation.ablate.update_report", lambda *_: SimpleNamespace(damaged=False))
    monkeypatch.setattr("lm.ablation.plan_tables.seconds_per_cell", lambda by_arm, *_: dict.fromkeys(by_arm, 1.0))
    assert main(["ablate", str(path), "--underpowered", "--out", str(store.out), *more]) == 0
    assert max(reads.values()) == 1
    said = capsys.readouterr()
    wanted = [p.cell.id for p in plan.distinct[0 if "--retry-failed" in more else 3 :]]
    assert f"6 cells: {6 - len(wanted)} done, {len(wanted)} to train" in " ".join((said.out + said.err).split())
    other = (
        "" if more[-1:] == ["--retry-failed"] else "3 finished cells were trained by other code: commit c; they are "
    )
    assert other in " ".join((said.out + said.err).split())
    assert ("other code" in said.out + said.err) is bool(other)
    if "--plan" not in more:
        assert queued == wanted
        assert ("3 failed earlier" in said.err) is (not more)


@pytest.mark.extra
def test_the_manifest_keeps_the_command_with_paths_as_seen_from_the_working_folder(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    monkeypatch.setattr("lm.ablation.ablate.train_missing", lambda *_: 1)  # as if every cell were interrupted
    given = ["ablate", "small.yaml", "--seeds", "0-1", "--optim.lr", "3e-3", "--underpowered", "--out", "results"]
    for path in ("results", str(tmp_path / "results")):
        assert main([*given[:-1], path]) == 1
        assert json.loads(Path("results/small/experiment.json").read_text())["command"] == given
    monkeypatch.undo()
    plan = make_plan(load_experiment(tmp_path / "small.yaml", {}))
    for command in ((), ("ablate", "caf\udce9.yaml")):  # a name that is no UTF-8
        folder = write_manifest(plan, Store(tmp_path / "results"), command)
        assert json.loads((folder / "experiment.json").read_text())["command"] is None


# the file ------------------------------------------------------------------------------------------------------------


def test_a_seed_count_means_the_first_seeds(tmp_path: Path) -> None:
    assert load_experiment(write(tmp_path, seeds=4), {}).seeds == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        ("6", [0, 1, 2, 3, 4, 5]),
        ("1", [0]),
        ("[6]", [6]),
        ("6,", [6]),
        ("0,1,2", [0, 1, 2]),
        ("[4, 2]", [4, 2]),
        ("0-5", [0, 1, 2, 3, 4, 5]),
        ("7-7", [7]),
        ("0-2, 9", [0, 1, 2, 9]),
        ("{min: 6, max: 6, stages: 1}", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_seeds_mean_the_same_in_files_and_options(
    tmp_path: Path, monkeypatch: Patch, given: str, seeds: list[int]
) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text() + f"tiers:\n  G:\n    seeds: {given}\n")
    assert load_experiment(path, {}, tier="G").seeds == seeds
    asked: list[Any] = []

    def keep(experiment: Any, *_: Any) -> int:
        asked.append(experiment.seeds)
        return 0

    monkeypatch.setattr("lm.ablation.ablate.ablate", keep)
    assert main(["ablate", str(path), "--seeds", given]) == 0
    assert asked == [seeds]


@pytest.mark.parametrize(
    "given", ["0", "6,,7", ",", "5-0", "0-", "-3", "a", "[a]", "0-5-9", "1.5", "true", "null", "{}x"]
)
def test_what_gives_no_seeds_is_answered_with_the_grammar(tmp_path: Path, given: str, refused: Refused) -> None:
    with refused():
        read_seeds(parse_value(given), "--seeds")


@pytest.mark.parametrize(
    "given",
    ["0-99999999999999999999", "0-500,600-1200", "1001", "1," * 1001],
    ids=["range", "ranges", "number", "list"],
)
def test_too_many_seeds_are_refused_before_they_are_counted_out(given: str, refused: Refused) -> None:
    with refused():
        read_seeds(parse_value(given), "--seeds")


def test_wall_time_is_that_of_the_busiest_worker() -> None:
    assert wall_seconds([3, 3, 3], 1) == 9
    assert wall_seconds([3, 3, 3], 2) == 6
    assert wall_seconds([5, 1, 1, 1], 2) == 5


@pytest.mark.parametrize(("seconds", "text"), [(8.2, "8 s"), (80, "1 min 20 s"), (7500, "2 h 5 min")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_evaluation_batches_of_a_run_are_counted(tmp_path: Path) -> None:
    cell = make_plan(load_experiment(write(tmp_path), {})).cells[0].cell
    # 12 steps validate every 4 on 2 batches each; the full split is 11 batches, once.
    assert steps_evaluated(cell, training=12, full=11) == 3 * 2 + 11


def test_the_headline_metric_is_the_nll_unless_named(tmp_path: Path) -> None:
    assert load_experiment(write(tmp_path), {}).inference.metric == "nll"
    plan = make_plan(load_experiment(write(tmp_path, metric="bits_per_byte"), {}))
    folder = write_manifest(plan, Store(tmp_path / "out"))
    assert json.loads((folder / "experiment.json").read_text())["metric"] == "bits_per_byte"


@pytest.mark.parametrize(
    "metric",
    ["bits_per_bite", "nlll", "loss"],
)
def test_a_metric_that_is_not_measured_is_refused(tmp_path: Path, metric: object, refused: Refused) -> None:
    with refused():
        load_experiment(write(tmp_path, metric=metric), {})


@pytest.mark.parametrize(
    "common",
    [{"trainer.strategy": "ddp_fork", "trainer.devices": 2}, {"trainer.strategy": "ddp", "trainer.num_nodes": 2}],
)
def test_strategies_that_would_wait_forever_are_refused(
    tmp_path: Path, common: dict[str, Any], refused: Refused
) -> None:
    with refused():
        make_plan(load_experiment(write(tmp_path, common=common), {}))


def test_headline_at_a_length_not_evaluated_is_refused(tmp_path: Path, refused: Refused) -> None:
    common = {"evaluate": {"lengths": [8, 32]}}
    make_plan(load_experiment(write(tmp_path, metric="nll@32", common=common), {}))
    with refused():
        make_plan(load_experiment(write(tmp_path, metric="nll@64", common=common), {}))


@pytest.mark.parametrize(
    "asked",
    [
        {"metric": "nll_ema"},
        {"secondary": ["nll_ema~2"]},
        {"metric": "excess_nll"},
        {"metric": "nll_on_prose"},
        {"metric": "test_nll", "common": {"data.split": [0.8, 0.2, 0]}},
        {"secondary": ["clipped_share"], "common": {"trainer.gradient_clip_val": None}},
        {"claims": [{"claim": "a", "kind": "ours", "relation": "less", "arm": "pre", "metric": "nll@64"}]},
        {"claims": [{"claim": "a", "kind": "ours", "relation": "less", "arm": "pre", "metric": "nll_ema - nll"}]},
        {"claims": [{"claim": "a", "kind": "ours", "relation": "less", "arm": "pre", "metric": "acc@hellaswag"}]},
    ],
    ids=[
        "averaged weights",
        "mean of those",
        "entropy",
        "corpus",
        "no test split",
        "no clipping",
        "length",
        "part",
        "task",
    ],
)
def test_what_no_run_measures_is_refused_before_any_is_trained(
    tmp_path: Path, asked: dict[str, Any], refused: Refused
) -> None:
    with refused():
        make_plan(load_experiment(write(tmp_path, tune="none", **asked), {}))


def test_a_claim_at_another_size_needs_no_measurement_here(tmp_path: Path) -> None:
    claim = {"claim": "a", "kind": "ours", "relation": "less", "arm": "pre", "metric": "nll@64", "tier": "G"}
    assert make_plan(load_experiment(write(tmp_path, claims=[claim]), {})).cells


TIERED = [
    (path, tier)
    for path in shipped_files("experiment").values()
    for tier, changes in (yaml.safe_load(path.read_text()).get("tiers") or {}).items()
    if "base" in changes
]


@pytest.mark.parametrize(("path", "tier"), TIERED, ids=lambda x: x.stem if isinstance(x, Path) else x)
def test_a_shipped_tier_keeps_nothing_of_the_size_of_another(path: Path, tier: str) -> None:
    changes = yaml.safe_load(path.read_text())["tiers"][tier]
    base = yaml.safe_load((path.parent / changes["base"]).read_text())
    found = load_experiment(path, {}, tier=tier).tree
    named = changes.get("common", {})
    for key in ("data.context", "data.batch_size", "model.width", "model.layers", "optim.lr", "trainer.max_steps"):
        assert value_at(found, key) == named.get(key, value_at(base, key)), key


def value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get("init_args", tree)[part]
    return tree


CLAIM = {"claim": "pre is better", "kind": "ours", "metric": "nll", "relation": "less", "arm": "pre"}


def test_claim_is_registered_with_the_seeds_trained_by_then(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")

    def registered(**changes: Any) -> dict[str, list[int]]:
        plan = make_plan(load_experiment(write(tmp_path, seeds=[3, 5, 7], **changes), {}))
        folder = write_manifest(plan, store)
        manifest = json.loads((folder / "experiment.json").read_text())
        return {
            each["claim"]: manifest["registered"][fingerprint(Claim(**each))]["seen"] for each in manifest["claims"]
        }

    assert registered(claims=[CLAIM]) == {"pre is better": []}
    for planned in make_plan(load_experiment(write(tmp_path, seeds=[3, 5]), {})).cells:
        if (planned.arm, planned.seed) != ("rms", 5):
            (store.directory(planned.cell.id)).mkdir(parents=True)
            (store.directory(planned.cell.id) / "record.json").write_text("{}")
    later = [{**CLAIM, "claim": "pre is much better"}, {**CLAIM, "claim": "rms is better", "arm": "rms"}]
    expected = {"pre is better": [], "pre is much better": [3, 5], "rms is better": [3]}
    assert registered(claims=[CLAIM, *later]) == expected
    assert registered(claims=[CLAIM, *later]) == expected
    (tmp_path / "out" / "small" / "experiment.json").write_text("{")
    assert registered(claims=[CLAIM]) == {"pre is better": [3, 5]}


def test_warmup_as_a_share_is_the_cell_with_those_steps() -> None:
    of_steps, of_share = (cells.check(override(RUN, {"optim.schedule.warmup": one})) for one in (3, 0.25))
    assert of_share == of_steps
    longer = cells.check(override(RUN, {"optim.schedule.warmup": 0.25, "trainer.max_steps": 20}))
    assert longer.config["optim"]["schedule"]["init_args"]["warmup"] == 5
    assert cells.check(override(RUN, {"optim.schedule.warmup": 3.0})).id == of_steps.id


def test_a_cell_has_as_many_threads_however_many_are_missing(tmp_path: Path, monkeypatch: Patch) -> None:
    plan, store = make_plan(load_experiment(write_experiment(tmp_path), {})), Store(tmp_path / "out")
    monkeypatch.setattr("lm.execution.machine.cores", lambda: 2)
    work = remaining_work(plan, store, False)
    assert len(work.missing) > 2
    for missing in (work.missing, work.missing[-1:]):
        assert num_workers(replace(work, missing=missing), RunOptions(tmp_path)) == 2


def test_the_largest_arms_flops_decide_how_cells_share_devices(tmp_path: Path, monkeypatch: Patch) -> None:
    plan, store = make_plan(load_experiment(write_experiment(tmp_path), {})), Store(tmp_path / "out")
    work = remaining_work(plan, store, False)
    monkeypatch.setattr("lm.execution.machine.cores", lambda: 16)
    for module in ("lm.execution.machine", "lm.ablation.ablate"):
        monkeypatch.setattr(f"{module}.accelerators", lambda: 1)
    monkeypatch.setattr("lm.execution.machine.device_memory", lambda: 8 * 2**30)
    assert num_workers(work, RunOptions(tmp_path)) == 8
    largest = max((plan.sizes(arm).flops_per_token or 0.0) * plan.sizes(arm).tokens_per_step for arm in plan.by_arm)
    monkeypatch.setattr("lm.execution.machine.SMALL_STEP", 0.99 * largest)
    assert num_workers(work, RunOptions(tmp_path)) == 1
