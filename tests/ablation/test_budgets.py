"""Smaller budgets: each is a training of its own, and the differences after all of them are tested together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiment_files import write_experiment
from helpers import RUN, Capture
from messages import CheckMessage, Refused
from records import record

from lm.ablation import ablate
from lm.ablation.ablate import RunOptions
from lm.ablation.derived import (
    at_best_rates,
    at_shared_rate,
    expand_budgets,
    expand_orders,
    expand_rates,
    expand_rivals,
)
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import Plan, design_of, make_plan, write_manifest
from lm.analysis.budgets import AtBudget, over_budget, verdict_over_budget
from lm.analysis.compare import compare
from lm.analysis.results import Records, is_part, load
from lm.cli import main
from lm.config.tree import flatten
from lm.report.notes import LONGEST, brief_notes
from lm.report.render import TableCell
from lm.report.sections import all_sections, budget_section
from lm.stats.tests import ALPHA, sign_flip_interval
from lm.stats.verdicts import Comparison, Verdict
from lm.store.record import ArmRate
from lm.store.store import Store

pytestmark = pytest.mark.slow

BUDGETS = [0.5, 0.25]


@pytest.mark.parametrize(
    "changes",
    [
        {"budgets": [0.5, 1]},
        {"budgets": [0.5, 0.5]},
        {"budgets": [0.125]},
        {"budgets": 0.5},
        {"budgets": [0.5], "seeds": {"min": 6, "max": 8}},
        {"budgets": [0.5], "ladder": {"rungs": {"a": None, "b": None}}},
    ],
)
def test_wrong_budgets_are_one_line(tmp_path: Path, changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        load_experiment(write_experiment(tmp_path, **changes), {})


def test_a_budget_gives_all_arms_fewer_steps(tmp_path: Path) -> None:
    arms = {"layer": {}, "longer": {"trainer.max_steps": 20, "trainer.val_check_interval": 10}}
    experiment = load_experiment(write_experiment(tmp_path, budgets=BUDGETS, arms=arms), {})
    quarter, half = map(make_plan, expand_budgets(experiment))
    assert [plan.experiment.name for plan in (quarter, half)] == ["small.budget_25", "small.budget_50"]
    for plan, steps in ((quarter, (3, 5)), (half, (6, 10))):
        assert tuple(plan.first(arm).config["trainer"]["max_steps"] for arm in arms) == steps
    assert half.first("longer").config["trainer"]["val_check_interval"] == 5
    alone = load_experiment(
        write_experiment(tmp_path, arms=arms, baseline="layer"),
        {"trainer.max_steps": 6, "trainer.val_check_interval": 2, "optim.schedule.warmup": 2},
    )
    assert half.first("layer").id == make_plan(alone).first("layer").id, "the schedule ends with the budget"
    assert not half.experiment.claims
    assert not half.experiment.budgets
    assert [planned.seed for planned in half.by_arm["layer"]] == experiment.seeds
    assert design_of(make_plan(experiment))["budgets"] == [25, 50]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trainer": {"max_steps": 20}}, {"trainer.max_steps": 10}),
        ({"optim.schedule.init_args.warmup": 6}, {"optim.schedule.warmup": 3}),
        ({"optim.schedule": {"class_path": "WarmupLinear", "init_args": {"warmup": 6}}}, {"optim.schedule.warmup": 3}),
        ({"optim.schedule": "WarmupLinear", "trainer.max_steps": 200}, {"optim.schedule.warmup": 50}),
        (
            {"optim.schedule": {"class_path": "WarmupStableDecay", "init_args": {"warmup": 2, "decay": 8}}},
            {"optim.schedule.warmup": 2, "optim.schedule.decay": 4, "trainer.val_check_interval": 4},
        ),
        ({"data.context_warmup": {"start": 4, "batches": 6}}, {"data.context_warmup.batches": 3}),
        ({"optim.schedule.warmup": 0.5}, {"optim.schedule.warmup": 3}),
    ],
)
def test_steps_of_an_arm_shrink_however_they_are_written(
    changes: dict[str, Any], expected: dict[str, int], tmp_path: Path
) -> None:
    experiment = load_experiment(write_experiment(tmp_path, budgets=[0.5], arms={"layer": {}, "other": changes}), {})
    (half,) = map(make_plan, expand_budgets(experiment))
    assert half.first("layer").config["trainer"]["max_steps"] == 6
    of_arm = flatten(half.first("other").config)
    assert {path: of_arm[path] for path in expected} == expected


def comparison(kind: Any) -> Comparison:
    return Comparison([0.0], verdict=Verdict(kind))


@pytest.mark.parametrize(
    "kinds",
    [
        ("better", "better", "better"),
        ("inconclusive", "better", "better"),
        ("worse", "better", "better"),
        ("better", "inconclusive", "better"),
        ("better", "better", "inconclusive"),
        ("better", "worse", "inconclusive"),
        ("better", "worse", "worse"),
        ("inconclusive", "seeds only", "too few"),
    ],
    ids=", ".join,
)
def test_a_verdict_names_the_budget_from_which_it_holds(kinds: tuple[Any, ...], check_message: CheckMessage) -> None:
    of_arm = [AtBudget(percent, comparison(kind), "") for percent, kind in zip((25, 50, 100), kinds, strict=True)]
    check_message(verdict_over_budget(of_arm))


def test_an_unfit_arm_has_no_verdict_at_a_budget(check_message: CheckMessage) -> None:
    of_arm = [AtBudget(25, comparison("better"), "rms unhealthy"), AtBudget(100, comparison("better"), "")]
    check_message(verdict_over_budget(of_arm))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Runs the command; cells end at once, with a lead of rms in hundredths for each number of steps."""

    def run(lead: dict[int, float], **changes: Any) -> Path:
        def train_missing(plan: Plan, store: Store, *_: object) -> int:
            for planned in plan.missing(store):
                steps = planned.cell.config["trainer"]["max_steps"]
                noise = 0.001 * ((7 * planned.seed) % 5) * (planned.arm == "rms")
                loss = 2 - 0.01 * lead[steps] * (planned.arm == "rms") + noise
                store.finish(planned.cell.id, record(planned.cell.id, loss, planned.seed))
            return 0

        monkeypatch.setattr(ablate, "train_missing", train_missing)
        path = write_experiment(tmp_path, budgets=BUDGETS, **{"seeds": 8, **changes})
        assert ablate.ablate(load_experiment(path, {}), RunOptions(tmp_path / "out", 1, underpowered=True)) == 0
        return tmp_path / "out" / "small"

    return run


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_all_budgets_share_the_five_percent(trained: Callable[..., Path], check_message: CheckMessage) -> None:
    steps = RUN["trainer"]["max_steps"]
    folder = trained({steps // 4: 0, steps // 2: 5, steps: 10})
    results = load(folder)
    (of_arm,) = over_budget(results).values()
    assert [at.percent for at in of_arm] == [25, 50, 100]
    for at in of_arm:
        ends = sign_flip_interval(at.comparison.differences, ALPHA / 3)
        assert [at.comparison.low, at.comparison.high] == pytest.approx(list(ends))
    section = budget_section(results, over_budget(results))
    assert section in all_sections(results, ())
    assert list(section.columns) == ["arm", "25 %", "50 %", "100 %", "verdict"]
    (row,) = section.rows
    check_message(str(row[-1]))
    assert f"## {section.title}\n" in (folder / "table.md").read_text()
    manifest = json.loads((folder / "experiment.json").read_text())
    assert manifest["budgets"] == [25, 50]


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_six_seeds_are_too_few_for_three_budgets(trained: Callable[..., Path]) -> None:
    steps = RUN["trainer"]["max_steps"]
    (of_arm,) = over_budget(load(trained(dict.fromkeys((steps // 4, steps // 2, steps), 10), seeds=6))).values()
    assert verdict_over_budget(of_arm) == "open"


BASE = [2.0 + 0.01 * seed for seed in range(8)]
WINS = [loss - 0.1 - 0.003 * seed for seed, loss in enumerate(BASE)]


def test_untrained_shares_use_their_part_of_the_five_percent(
    budgeted: Callable[..., Path], check_message: CheckMessage
) -> None:
    """Else a report in the middle of the training would test at more than its share, and the last one again."""
    cells = {"base": BASE, "rms": WINS}
    (of_arm,) = over_budget(load(budgeted({25: cells, 100: cells}, (25, 50)))).values()
    assert [(at.percent, bool(at.unfit)) for at in of_arm] == [(25, False), (50, True), (100, False)]
    check_message(of_arm[1].unfit)
    for at in (of_arm[0], of_arm[2]):
        ends = sign_flip_interval(at.comparison.differences, ALPHA / 3)
        assert [at.comparison.low, at.comparison.high] == pytest.approx(list(ends))
        assert at.comparison.p_adjusted == pytest.approx(3 * at.comparison.p)
    check_message(verdict_over_budget(of_arm))


def test_all_shares_pay_for_a_look_before_seeds_were_added(budgeted: Callable[..., Path]) -> None:
    cells = {"base": BASE, "rms": WINS}
    folder = budgeted({25: cells, 100: cells}, (25,))
    path = folder / "experiment.json"
    look = {"seeds": [0, 1, 2, 3, 4, 5], "comparisons": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), "earlier_looks": [look]}))
    (of_arm,) = over_budget(load(folder)).values()
    assert {at.comparison.interval for at in of_arm} == {"repeated"}


def test_arms_that_a_share_lacks_still_have_its_column(
    budgeted: Callable[..., Path], check_message: CheckMessage
) -> None:
    old, new = {"base": BASE, "rms": WINS}, {"base": BASE, "rms": WINS, "new": BASE}
    results = load(budgeted({25: old, 100: new}, (25,)))
    section = budget_section(results, over_budget(results))
    assert [row[0] for row in section.rows] == ["rms", "new"]
    assert {len(row) for row in section.rows} == {len(section.columns)}
    assert section.rows[1][1] == TableCell("-", False)
    check_message([*section.notes])


def test_the_terminal_has_the_verdicts_of_as_many_arms_as_fit(
    budgeted: Callable[..., Path], check_message: CheckMessage
) -> None:
    cells = {"base": BASE, "rms": WINS, **{f"another_arm_with_a_long_name_{number}": BASE for number in range(3)}}
    results = load(budgeted({25: cells, 100: cells}, (25,)))
    (line,) = [line for line in brief_notes(results, compare(results)) if line.startswith("Over the budget")]
    check_message(line)
    assert len(line) <= LONGEST


def test_without_any_share_nothing_is_said(budgeted: Callable[..., Path]) -> None:
    results = load(budgeted({100: {"base": BASE, "rms": WINS}}, (25, 50)))
    assert over_budget(results) == {}
    assert "budget" not in " ".join(brief_notes(results, compare(results)))


def test_the_plan_shows_each_budget(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    path = write_experiment(tmp_path, budgets=[0.5])
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    check_message([line.strip().partition(";")[0] for line in lines if "50 %" in line or "12 cells" in line])


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_budgets_are_trained_packed_and_not_repeated(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    path = write_experiment(tmp_path, budgets=[0.5], seeds=[0, 1])
    command = ["ablate", str(path), "--out", str(out), "--workers", "2", "--underpowered"]
    assert main(command) == 0
    before = {path.name for path in Store(out).cells.iterdir()}
    assert len([name for name in before if not name.startswith(".")]) == 8
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before
    assert main(["pack", str(out / "small"), "--out", str(tmp_path / "small.lmpack")]) == 0
    assert main(["unpack", str(tmp_path / "small.lmpack"), "--out", str(tmp_path / "there")]) == 0
    assert main(["report", str(tmp_path / "there" / "small")]) == 0
    assert "| arm | 50 % | 100 % | verdict |" in (tmp_path / "there" / "small" / "table.md").read_text()


def test_reports_leave_out_what_was_made_before_settings_changed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"budgets": [0.5], "data_seeds": [0, 1], "tune": {"rates": {"seeds": [100, 101]}}}
    spec, store = write_experiment(tmp_path, **options), Store(tmp_path / "out")

    def written(**settings: Any) -> Records:
        experiment = load_experiment(spec, settings)
        return load(write_manifest(make_plan(experiment), store))

    experiment = load_experiment(spec, {})
    rates = {arm: ArmRate(best=0.01, shared=0.001, end="", rivals=[0.02]) for arm in experiment.arms}
    own = at_best_rates(experiment, rates)
    rivals = expand_rivals(make_plan(own), experiment.seeds)
    assert rivals is not None
    over_rates = expand_rates(experiment, {arm: [0.01, 0.02] for arm in experiment.arms})
    made = [
        expand_orders(own),
        *expand_budgets(own),
        over_rates,
        at_shared_rate(make_plan(experiment)).experiment,
        rivals,
    ]
    folders = [write_manifest(make_plan(part), store) for part in made]
    assert len({*folders}) == 5
    assert all(is_part(written(), folder) for folder in folders)
    assert not any(is_part(written(**{"optim.lr": 0.1}), folder) for folder in folders)
    assert not is_part(written(), store.out / "another")
    for folder in folders:  # as older versions wrote them
        path = folder / "experiment.json"
        path.write_text(json.dumps({name: of for name, of in json.loads(path.read_text()).items() if name != "origin"}))
    assert all(is_part(written(**{"optim.lr": 0.1}), folder) for folder in folders)
