"""Learning rates of arms: searched around the shared one until the best lies between two others, then judged there."""

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from experiment_files import write_experiment
from helpers import Capture, Patch
from messages import CheckMessage, Refused
from records import record

import lm
from lm.ablation import ablate
from lm.ablation.ablate import RunOptions, find_rates
from lm.ablation.derived import expand_rivals
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import Plan, design_of, make_plan
from lm.ablation.registration import write_registrations
from lm.analysis.answers import answer_claim
from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.cli import main
from lm.report.experiment import ExperimentReport
from lm.report.tables import AT_ONE_RATE
from lm.report.write import page_of
from lm.store.store import Store

pytestmark = pytest.mark.slow

SHARED = 0.01  # the learning rate of the tests' base
CLAIM = {"claim": "rms is better", "arm": "rms", "kind": "ours", "metric": "nll", "relation": "less", "margin": 0}


@pytest.mark.parametrize(
    "tune",
    [
        "rats",
        3,
        {"rates": {"factor": 1}},
        {"rates": {"at_most": 2}},
        {"rates": {"seeds": [4, 99]}},
        {"rates": {"seeds": [99]}},
        {"rates": {"most": 3}},
        {"rates": 3},
        {"rates": {}, "trials": 3},
        {},
    ],
)
def test_a_wrong_search_for_rates_is_one_line(tmp_path: Path, tune: Any, refused: Refused) -> None:
    with refused():
        load_experiment(write_experiment(tmp_path, tune=tune), {})


@pytest.mark.parametrize(
    ("changes", "searched"),
    [
        ({}, False),
        ({"claims": [CLAIM]}, True),
        ({"claims": [CLAIM], "tune": "none"}, False),
        ({"claims": [{**CLAIM, "kind": "identity"}]}, False),
        ({"claims": [{**CLAIM, "exact": True}]}, False),
        ({"claims": [{**CLAIM, "exact": True}, {**CLAIM, "claim": "tested"}]}, True),
        ({"claims": [{**CLAIM, "metric": "log initial/entropy/0/1"}]}, False),
        ({"claims": [{**CLAIM, "metric": "initial/entropy/0/1 / final/entropy/0/1"}]}, True),
        ({"claims": [CLAIM], "metric": "gradient_norm"}, False),
        ({"claims": [CLAIM], "lr_curve": {"rates": [0.005, 0.01, 0.02]}}, False),
        ({"claims": [CLAIM], "arms": {"layer": {}, "rms": {"optim.lr": 0.02}}}, False),
        ({"claims": [CLAIM], "tune": {"space": {"optim.lr": {"low": 0.001, "high": 0.1}}, "trials": 3}}, False),
    ],
)
def test_experiments_with_tested_claims_search_rates_by_themselves(
    tmp_path: Path, changes: dict[str, Any], searched: bool
) -> None:
    assert (load_experiment(write_experiment(tmp_path, **changes), {}).bracket is not None) == searched


def test_no_search_goes_with_a_curve(tmp_path: Path, refused: Refused) -> None:
    curve = {"rates": [0.005, 0.01, 0.02]}
    assert load_experiment(write_experiment(tmp_path, tune="none", lr_curve=curve), {}).grid is not None
    with refused():
        load_experiment(write_experiment(tmp_path, tune="rates", lr_curve=curve), {})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The rate at which each arm is best; cells then end at once, the worse the farther theirs is; NaN: all diverge.

    `noise`: of the seeds that rank the rates, which leaves their means. `lead`: of layer at twice the rate on others;
    where infinite these diverge.
    """
    best = {"layer": SHARED, "rms": SHARED}

    def train_missing(plan: Plan, store: Store, *_: object) -> int:
        for planned in plan.missing(store):
            rate, seed = planned.cell.config["optim"]["lr"], planned.seed
            arm = planned.arm.split(".lr")[0]
            far, bonus = math.log2(rate / best[arm]), (0.5 + 0.001 * seed) * (arm == "rms")
            apart = best.get("noise", 0) * (-1) ** (seed + round(math.log2(rate / SHARED))) if seed >= 1000 else 0
            lead = best.get("lead", 0.0) if arm == "layer" and rate == SHARED * 2 and seed < 1000 else 0.0
            lost = math.isnan(far) or math.isinf(lead)
            outcome = "diverged" if lost else 2 + 0.1 * far**2 - bonus + apart - lead
            store.finish(planned.cell.id, record(planned.cell.id, outcome, seed))
        return 0

    monkeypatch.setattr(ablate, "train_missing", train_missing)
    return best


def found(folder: Path, tune: Any = "rates", name: str = "small", **changes: Any) -> Plan:
    plan = make_plan(load_experiment(write_experiment(folder, name, tune=tune, **changes), {}))
    options = RunOptions(folder / "out", 1)
    at_own = find_rates(plan, Store(options.out), options)
    assert isinstance(at_own, Plan)
    ablate.train_experiment(at_own, Store(options.out), options)
    return at_own


def rates_of(plan: Plan) -> Mapping[str, Any]:
    return plan.experiment.rates


def steps(folder: Path) -> list[float]:
    """The rates that every arm was trained at, in factors of the shared one."""
    arms = json.loads((folder / "out" / "small" / "lr_curve.json").read_text())["arms"]
    (names,) = {tuple(arm["names"]) for arm in arms.values()}
    return [float(rate) / SHARED for rate in names]


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_rates_are_added_until_each_best_is_between_two(tmp_path: Path, trained: dict[str, float]) -> None:
    trained |= {"layer": SHARED * 2, "rms": SHARED / 4}
    plan = found(tmp_path)
    assert steps(tmp_path) == [1 / 8, 1 / 4, 1 / 2, 1, 2, 4]
    assert rates_of(plan) == {
        "layer": {"shared": SHARED, "best": SHARED * 2, "end": "", "regret": 0, "rivals": []},
        "rms": {"shared": SHARED, "best": SHARED / 4, "end": "", "regret": 0, "rivals": []},
    }
    for planned in plan.cells:
        assert planned.cell.config["optim"]["lr"] == rates_of(plan)[planned.arm]["best"]
    manifest = json.loads((tmp_path / "out" / "small" / "experiment.json").read_text())
    assert manifest["axes"]["optim.lr"] == "nuisance"


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_a_best_rate_in_the_middle_takes_three(tmp_path: Path, trained: dict[str, float]) -> None:
    plan = found(tmp_path, {"rates": {"factor": 4, "seeds": [50, 51]}})
    assert steps(tmp_path) == [1 / 4, 1, 4]
    assert {rate["best"] for rate in rates_of(plan).values()} == {SHARED}
    assert set(trained) == set(plan.by_arm)


@pytest.mark.extra
def test_rates_come_from_the_cells_the_file_now_names(tmp_path: Path, trained: dict[str, float]) -> None:
    assert rates_of(found(tmp_path))["rms"]["best"] == SHARED
    trained["rms"] = SHARED * 2
    found(tmp_path, name="other", common={"model.layers": 1})
    again = found(tmp_path, common={"model.layers": 1})  # nothing is left to train, and the manifest has other cells
    assert rates_of(again)["rms"]["best"] == SHARED * 2


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("best", "end"), [(SHARED / 1000, "lowest"), pytest.param(SHARED * 1000, "highest", marks=pytest.mark.extra)]
)
def test_arms_whose_best_rate_stays_outermost_are_not_judged(
    tmp_path: Path, trained: dict[str, float], best: float, end: str, check_message: CheckMessage
) -> None:
    trained["rms"] = best
    plan = found(tmp_path, {"rates": {"at_most": 4}}, claims=[CLAIM])
    assert len(steps(tmp_path)) == 4
    assert rates_of(plan)["rms"]["end"] == end
    results = load(tmp_path / "out" / "small")
    table = compare(results)
    (row,) = table[(table.arm == "rms") & (table.metric == "nll")].itertuples()
    assert not row.significant
    assert math.isnan(row.p)
    (answer,) = answers_of(results)
    assert answer.verdict == "inconclusive"
    check_message([row.verdict, answer.note])


def answers_of(results: Any) -> list[Any]:
    claims = load_experiment(Path(results.store.out.parent / "small.yaml"), {}).claims
    return [answer_claim(results, claim) for claim in claims]


def test_a_baseline_without_a_best_rate_withholds_all_verdicts(
    tmp_path: Path, trained: dict[str, float], check_message: CheckMessage
) -> None:
    trained["layer"] = math.nan
    plan = found(tmp_path, {"rates": {"at_most": 3}})
    assert rates_of(plan)["layer"] == {"shared": SHARED, "best": None, "end": "", "regret": 0, "rivals": []}
    table = compare(load(tmp_path / "out" / "small"))
    (row,) = table[(table.arm == "rms") & (table.metric == "nll")].itertuples()
    check_message(row.verdict)


@pytest.mark.usefixtures("undrawn")
def test_verdicts_use_own_rates_with_the_shared_one_beside(tmp_path: Path, trained: dict[str, float]) -> None:
    trained["rms"] = SHARED * 4
    found(tmp_path, claims=[CLAIM])
    report = ExperimentReport.load(tmp_path / "out" / "small")
    (row,) = report.table[(report.table.arm == "rms") & (report.table.metric == "nll")].itertuples()
    assert row.difference == pytest.approx(-0.5025)
    assert row.verdict == "better"
    first = report.main_table()
    beside = {str(cells[0]): str(cells[first.columns.index(AT_ONE_RATE)]) for cells in first.rows}
    assert beside["layer"] == "baseline"
    assert beside["rms"].startswith("-0.1025 [")
    assert beside["rms"].endswith("better")
    short = report.main_table(short=True)
    assert "n" not in short.columns
    assert str(short.rows[0][short.columns.index(AT_ONE_RATE)]) == "-0.1025, better"
    assert f">{AT_ONE_RATE}<" in page_of([report])
    (answer,) = answers_of(report.results)
    assert (answer.verdict, answer.estimate) == ("reproduced", pytest.approx(-0.5025))


@pytest.mark.usefixtures("undrawn")
def test_a_claim_has_its_answer_at_the_shared_rate_beside(
    tmp_path: Path, trained: dict[str, float], monkeypatch: Patch
) -> None:
    trained["rms"] = SHARED * 4
    much = {**CLAIM, "claim": "rms is better by .2", "margin": -0.2}
    found(tmp_path, claims=[CLAIM, much])
    report = ExperimentReport.load(tmp_path / "out" / "small")
    (section,) = [section for section in report.sections() if section.title == "Claims"]
    column = section.columns.index(AT_ONE_RATE)
    assert [str(row[column]) for row in section.rows] == ["reproduced, -0.1025", "not reproduced, -0.1025"]
    assert [str(row[column - 1]) for row in section.rows] == ["reproduced", "reproduced"]
    assert main(["reproduce", str(tmp_path / "out" / "small"), "--out", str(tmp_path / "all")]) == 0
    with (tmp_path / "all" / "claims.C" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict_at_one_rate"] for row in rows] == ["reproduced", "not reproduced"]
    assert [float(row["estimate_at_one_rate"]) for row in rows] == pytest.approx([-0.1025, -0.1025])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("noise", "answer"), [(0.01, "reproduced"), (0.4, "inconclusive")])
def test_rates_few_seeds_cannot_rank_withhold_dependent_verdicts(
    tmp_path: Path, trained: dict[str, float], noise: float, answer: str, check_message: CheckMessage
) -> None:
    trained["noise"] = noise
    plan = found(tmp_path, claims=[CLAIM])
    results = load(tmp_path / "out" / "small")
    table = compare(results)
    (row,) = table[(table.arm == "rms") & (table.metric == "nll")].itertuples()
    rates = rates_of(plan)
    assert {rate["best"] for rate in rates.values()} == {SHARED}
    check_message(row.verdict)
    assert not answers_of(results)[0].post_hoc, (
        "the claim was there before the cells that arms at the shared rate have too"
    )
    assert row.significant == row.bold == (answer == "reproduced")
    (found_answer,) = answers_of(results)
    assert found_answer.verdict == answer
    twin = compare(load(tmp_path / "out" / "small.shared"))
    (shared,) = twin[(twin.arm == "rms") & (twin.metric == "nll")].itertuples()
    assert shared.verdict == "better", "the choice of rates is nothing to arms at one rate"
    if answer == "inconclusive":
        assert row.low == pytest.approx(row.plain_low - rates["rms"]["regret"], abs=0.05)
        assert row.high == pytest.approx(row.plain_high + rates["layer"]["regret"], abs=0.05)
        first, *_ = ExperimentReport.load(tmp_path / "out" / "small").sections()
        regrets = [note for note in first.notes if all(f" {arm} " in note for arm in rates)]
        check_message([re.sub(r"\d+\.\d+", "REGRET", note) for note in regrets])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("lead", "answer"), [(0.0, "reproduced"), (0.7, "inconclusive")])
def test_rates_that_may_be_as_good_are_trained_and_a_verdict_holds_at_each(
    tmp_path: Path, trained: dict[str, float], lead: float, answer: str, check_message: CheckMessage
) -> None:
    """`lead`: of the baseline at twice its rate, on the seeds of the table alone; the arm leads by .5 at one rate."""
    trained |= {"noise": 0.4, "lead": lead}
    experiment = load_experiment(write_experiment(tmp_path, tune="rates", claims=[CLAIM]), {})
    assert ablate.ablate(experiment, RunOptions(tmp_path / "out", 1)) == 0
    results = load(tmp_path / "out" / "small")
    rivals = {arm: rate["rivals"] for arm, rate in results.manifest["rates"].items()}
    assert rivals == {"layer": [SHARED / 2, SHARED * 2], "rms": [SHARED / 2, SHARED * 2]}
    assert {arm: len(of) for arm, of in results.rivals.items()} == {"layer": 2, "rms": 2}
    table = compare(results)
    (row,) = table[(table.arm == "rms") & (table.metric == "nll")].itertuples()
    assert row.significant == (answer == "reproduced")
    assert row.low == pytest.approx(-0.5, abs=0.01), "an arm at a rival is .1 worse, which lowers nothing"
    assert row.high == pytest.approx(-0.5 + max(0, lead - 0.1), abs=0.01)
    (found_answer,) = answers_of(results)
    assert found_answer.verdict == answer
    assert (found_answer.low, found_answer.high) == pytest.approx((row.low, row.high), abs=1e-9)
    first, *_ = ExperimentReport.load(tmp_path / "out" / "small").sections()
    check_message([row.verdict, *(note for note in first.notes if "rates" in note)])


@pytest.mark.usefixtures("undrawn")
def test_rivals_are_those_of_the_cells_of_the_table_and_whole(
    tmp_path: Path, trained: dict[str, float], monkeypatch: Patch
) -> None:
    trained["noise"] = 0.4
    experiment = load_experiment(write_experiment(tmp_path, tune="rates"), {})
    options, folder = RunOptions(tmp_path / "out", 1), tmp_path / "out" / "small"
    assert ablate.ablate(experiment, options) == 0
    with monkeypatch.context() as inside:
        inside.chdir(folder)
        assert {*load(Path()).rivals} == {"layer", "rms"}
    plan = make_plan(experiment)
    at_own = find_rates(plan, Store(options.out), options)
    assert isinstance(at_own, Plan)
    rivals = expand_rivals(at_own, [3, 4])
    assert rivals is not None
    (cell,) = (p.cell.id for p in make_plan(rivals).cells if (p.arm, p.seed) == (f"rms.lr{SHARED * 2}", 3))
    path = Store(options.out).directory(cell) / "record.json"
    whole = path.read_text()
    path.write_text("{")
    assert {*load(folder).rivals} == {"layer"}, "of an arm of which a cell is damaged none is used"
    path.write_text(json.dumps(record(cell, "failed", 3)))
    assert {*load(folder).rivals} == {"layer"}, "what a run that failed would have come to is not known"
    path.write_text(whole)
    other = load_experiment(write_experiment(tmp_path, tune="rates", common={"model.layers": 1}), {})
    train = ablate.train_missing
    monkeypatch.setattr(
        ablate, "train_missing", lambda part, *rest: 1 if part.experiment.name == "small" else train(part, *rest)
    )
    assert ablate.ablate(other, options) == 1
    assert load(folder).rivals == {}, "those of cells that the file no longer names are none"
    folder.with_name("small.rivals").joinpath("experiment.json").write_text("{")
    assert load(folder).rivals == {}


@pytest.mark.usefixtures("undrawn")
def test_a_rival_is_trained_for_as_long_as_its_arm(tmp_path: Path, trained: dict[str, float]) -> None:
    trained["noise"] = 0.4
    plan = found(tmp_path, equal="flops", arms={"layer": {}, "rms": {"model.layers": 3}})
    rivals = expand_rivals(plan, plan.experiment.seeds)
    assert rivals is not None
    steps_of = {name: cell.cell.config["trainer"]["max_steps"] for name, (cell, *_) in make_plan(rivals).by_arm.items()}
    own = {arm: plan.first(arm).config["trainer"]["max_steps"] for arm in plan.by_arm}
    assert own["rms"] < own["layer"]
    assert steps_of == {f"{arm}.lr{rate}": own[arm] for arm in own for rate in (SHARED / 2, SHARED * 2)}


@pytest.mark.usefixtures("undrawn")
def test_in_stages_rivals_have_the_seeds_that_were_enough(tmp_path: Path, trained: dict[str, float]) -> None:
    trained["noise"] = 0.4
    experiment = load_experiment(write_experiment(tmp_path, tune="rates", seeds={"min": 6, "max": 12}), {})
    assert ablate.ablate(experiment, RunOptions(tmp_path / "out", 1)) == 0
    results = load(tmp_path / "out" / "small")
    (of_arm, *_) = results.rivals["rms"].values()
    assert [seed for _, seed in of_arm] == [
        seed for (arm, seed), cell in results.records.items() if arm == "rms" and cell
    ]
    assert len(of_arm) < 12
    table = compare(results)
    (row,) = table[(table.arm == "rms") & (table.metric == "nll")].itertuples()
    assert row.verdict.startswith("better")


@pytest.mark.usefixtures("undrawn")
def test_arms_without_verdict_have_no_rivals(tmp_path: Path, trained: dict[str, float]) -> None:
    trained |= {"noise": 0.4, "layer": SHARED * 1000}
    plan = found(tmp_path, {"rates": {"at_most": 3}})
    assert rates_of(plan)["rms"]["rivals"]
    assert expand_rivals(plan, plan.experiment.seeds) is None


@pytest.mark.usefixtures("undrawn")
def test_claims_reproduced_together_hold_at_rivals_too(
    tmp_path: Path, trained: dict[str, float], monkeypatch: Patch
) -> None:
    trained["noise"] = 0.4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    write_experiment(tmp_path / "experiments", tune="rates", claims=[CLAIM])
    assert main(["reproduce", "small", "--workers", "1"]) == 0
    assert {*load(tmp_path / "results" / "small").rivals} == {"layer", "rms"}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("relation", ["less", "greater"])
def test_p_is_the_largest_that_an_answer_has_to_hold_against(
    tmp_path: Path, trained: dict[str, float], relation: str
) -> None:
    """On one of eight seeds a rival of the baseline is ahead of the arm, by less than the arm is on any other."""
    trained["noise"] = 0.4
    claim = {**CLAIM, "relation": relation}
    experiment = load_experiment(write_experiment(tmp_path, tune="rates", claims=[claim], seeds=8), {})
    assert ablate.ablate(experiment, RunOptions(tmp_path / "out", 1)) == 0
    results = load(tmp_path / "out" / "small")
    rival: Any = results.rivals["layer"][SHARED / 2]["layer", 3]
    rival["metrics"]["nll"] = 1.49
    of_arm: Any = results.rivals["rms"][SHARED / 2]
    for cell in of_arm.values():
        cell["metrics"]["nll"] -= 0.3  # is .2 better there, and may be so in truth
    (answer,) = answers_of(results)
    assert answer.low == pytest.approx(-0.7035, abs=0.004)
    assert answer.verdict == ("reproduced" if relation == "less" else "not reproduced")
    assert answer.p == pytest.approx(4 / 2**8)


@pytest.mark.usefixtures("undrawn")
def test_a_rate_at_which_a_run_was_lost_is_no_rival(tmp_path: Path, trained: dict[str, float]) -> None:
    trained |= {"noise": 0.4, "lead": math.inf}
    experiment = load_experiment(write_experiment(tmp_path, tune="rates"), {})
    assert ablate.ablate(experiment, RunOptions(tmp_path / "out", 1)) == 0
    results = load(tmp_path / "out" / "small")
    assert {arm: len(of) for arm, of in results.rivals.items()} == {"layer": 1, "rms": 2}
    manifest = json.loads((tmp_path / "out" / "small" / "experiment.json").read_text())
    manifest["rates"]["rms"]["rivals"] = []
    (tmp_path / "out" / "small" / "experiment.json").write_text(json.dumps(manifest))
    assert {*load(tmp_path / "out" / "small").rivals} == {"layer"}


def test_a_claim_written_after_the_cells_is_post_hoc_at_own_rates(tmp_path: Path, trained: dict[str, float]) -> None:
    found(tmp_path, claims=[CLAIM])
    found(tmp_path, claims=[CLAIM, {**CLAIM, "claim": "by .1", "margin": -0.1}])
    answers = answers_of(load(tmp_path / "out" / "small"))
    assert [answer.post_hoc for answer in answers] == [False, True]


def test_claims_of_a_registration_are_as_old_as_it_is(tmp_path: Path, trained: dict[str, float]) -> None:
    plan = make_plan(load_experiment(write_experiment(tmp_path, tune="rates", claims=[CLAIM]), {}))
    store = Store(tmp_path / "out")
    write_registrations({plan.manifest(store).with_name("registration.json"): (design_of(plan), 0)})
    ablate.train_missing(plan, store)  # type: ignore[call-arg]
    found(tmp_path, claims=[CLAIM])
    results = load(tmp_path / "out" / "small")
    (registered,) = results.manifest["registered"].values()
    assert dict(registered) == {"written": results.manifest["registration"]["registered"], "seen": []}
    assert not answers_of(results)[0].post_hoc


@pytest.mark.usefixtures("undrawn")
def test_a_registration_freezes_the_search_and_not_its_outcome(tmp_path: Path, trained: dict[str, float]) -> None:
    trained["rms"] = SHARED * 2
    plan = make_plan(load_experiment(write_experiment(tmp_path, tune="rates"), {}))
    path = plan.manifest(Store(tmp_path / "out")).with_name("registration.json")
    write_registrations({path: (design_of(plan), 0)})
    found(tmp_path)
    manifest = json.loads((tmp_path / "out" / "small" / "experiment.json").read_text())
    assert manifest["registration"]["changes"] == []
    found(tmp_path, {"rates": {"factor": 3}})
    manifest = json.loads((tmp_path / "out" / "small" / "experiment.json").read_text())
    assert manifest["registration"]["changes"] == ["tuning.factor"]


def test_the_plan_says_what_is_searched_and_writes_nothing(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    path = write_experiment(tmp_path, tune="rates")
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "layer.lr0.005" in told
    lines = [line for line in told.splitlines() if "12 cells" in line or "tune: none" in line]
    check_message([re.sub("; about .* at a time", "; TIME", line) for line in lines])
    assert told.splitlines()[-1].startswith("in all at least 24 cells to train; at least ")
    assert not (tmp_path / "out").exists()


def test_the_plan_says_why_nothing_is_searched(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    arms = {"layer": {}, "rms": {"model.norm": "RMSNorm", "optim.lr": 0.02}}
    path = write_experiment(tmp_path, arms=arms, claims=[CLAIM])
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    check_message([line for line in capsys.readouterr().out.splitlines() if "searched" in line])


def test_the_plan_of_searched_rates_says_that_seeds_are_too_few(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    path = write_experiment(tmp_path, tune="rates", seeds=5)
    assert main(["ablate", str(path), "--plan", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    check_message([line for line in capsys.readouterr().out.splitlines() if line.startswith("!")])


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_arms_at_own_rates_are_trained_and_packed_once(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    out = tmp_path / "out"
    path = write_experiment(tmp_path, tune={"rates": {"at_most": 4, "seeds": [50, 51]}}, seeds=[0, 1])
    command = ["ablate", str(path), "--out", str(out), "--workers", "2", "--underpowered"]
    assert main(command) == 0
    before = {path.name for path in Store(out).cells.iterdir()}
    assert main(command) == 0
    assert {path.name for path in Store(out).cells.iterdir()} == before
    assert main([*command, "--plan"]) == 0
    check_message([line for line in capsys.readouterr().out.splitlines() if "4 cells" in line])
    assert main(["pack", str(out / "small"), "--out", str(tmp_path / "small.lmpack")]) == 0
    assert main(["unpack", str(tmp_path / "small.lmpack"), "--out", str(tmp_path / "there")]) == 0
    assert main(["report", str(tmp_path / "there" / "small")]) == 0
    page = (tmp_path / "there" / "small" / "table.md").read_text()
    assert AT_ONE_RATE in page
    assert "## Learning rates" in page


def test_an_interrupted_search_says_that_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: Patch, refused: Refused
) -> None:
    monkeypatch.setattr(ablate, "ablate", lambda *_: 1)
    with refused():
        lm.ablate(write_experiment(tmp_path, tune="rates"), out=tmp_path / "out")
