"""Seeds added to results: which are trained, what the manifest remembers of earlier looks, and what that costs."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_experiment
from experiment_files import write_experiment
from helpers import Capture
from messages import CheckMessage, Refused, RefusedCommand
from records import BASE, BETTER, MIXED

import lm
from lm.ablation import ablate as module
from lm.ablation.ablate import settled_arms, with_added_seeds
from lm.ablation.experiment import Experiment, load_experiment
from lm.ablation.plan import make_plan, write_manifest
from lm.analysis.answers import answer_claim
from lm.analysis.claims import Claim
from lm.analysis.compare import compare
from lm.analysis.results import Records, load
from lm.cli import main
from lm.report.claims import claim_notes
from lm.report.notes import brief_notes, notes
from lm.report.pooled import pooled_section
from lm.store.store import Store

pytestmark = pytest.mark.slow

ARMS = {"base": {}, "slow": {"optim.lr": 1.0e-5}}
write = functools.partial(write_experiment, baseline="base", arms=ARMS)


def looks_written(out: Path, *plans: Experiment) -> list[list[int]]:
    """What the manifest remembers after these plans, one after the other."""
    for experiment in plans:
        folder = write_manifest(make_plan(experiment), Store(out))
    looks = json.loads((folder / "experiment.json").read_text()).get("earlier_looks", [])
    return [look["seeds"] for look in looks]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "finished", lambda store, cell: True)


@pytest.mark.usefixtures("trained")
def test_a_manifest_remembers_the_looks_before_it(tmp_path: Path) -> None:
    spec = write(tmp_path, seeds=6)
    of = functools.partial(load_experiment, spec, {})
    six, first = of(), list(range(6))
    assert looks_written(tmp_path, six, six) == []
    assert looks_written(tmp_path, of(8), of(8)) == [first]
    assert looks_written(tmp_path, of([8, 9])) == [first, list(range(8))]  # other seeds, which no look has seen
    assert looks_written(tmp_path, six) == [first, list(range(8)), [8, 9]]
    assert looks_written(tmp_path, load_experiment(spec, {"optim.lr": 0.5}, 8)) == []


@pytest.mark.usefixtures("trained")
def test_going_on_to_the_declared_seeds_is_no_look(tmp_path: Path) -> None:
    few, declared, more = (load_experiment(write(tmp_path, seeds=6), {}, seeds) for seeds in (3, None, 7))
    assert looks_written(tmp_path, few, declared) == []
    assert looks_written(tmp_path, more) == [list(range(6))]
    again = load_experiment(write(tmp_path, seeds=8), {})  # a file that was changed after the look
    assert looks_written(tmp_path, declared, again) == [list(range(6)), list(range(7))]
    five = load_experiment(write(tmp_path, seeds=9), {}, 5)  # of which a sign test can find something
    assert looks_written(tmp_path / "b", five, load_experiment(write(tmp_path, seeds=9), {})) == [list(range(5))]


@pytest.mark.usefixtures("trained")
def test_stages_that_are_made_longer_and_another_baseline_are_looks(tmp_path: Path) -> None:
    short, longer = (write(tmp_path / str(most), seeds={"min": 6, "max": most, "stages": 2}) for most in (8, 12))
    assert looks_written(tmp_path, load_experiment(short, {}), load_experiment(longer, {})) == [list(range(8))]
    other = write(tmp_path / "other", arms={"plain": {}, "slow": ARMS["slow"]}, baseline="plain", seeds=8)
    renamed = load_experiment(other, {})
    assert looks_written(tmp_path / "b", load_experiment(write(tmp_path / "six"), {}), renamed) == [list(range(6))]


def test_seeds_that_were_not_trained_are_no_look(tmp_path: Path) -> None:
    spec = write(tmp_path, seeds=6)
    assert looks_written(tmp_path, load_experiment(spec, {}), load_experiment(spec, {}, 10)) == []


@pytest.mark.usefixtures("trained")
def test_stages_look_by_plan(tmp_path: Path) -> None:
    staged = load_experiment(write(tmp_path, seeds={"min": 6, "max": 12, "stages": 2}), {})
    plan = make_plan(staged)
    for seeds in staged.inference.looks:
        folder = write_manifest(plan.upto(seeds), Store(tmp_path))
    assert "earlier_looks" not in json.loads((folder / "experiment.json").read_text())


def test_seeds_are_added_to_those_of_the_results(
    tmp_path: Path, capsys: Capture, refused: Refused, check_message: CheckMessage
) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "slow": BETTER})
    experiment = load_experiment(write(tmp_path / "spec", name=folder.name), {})
    assert experiment.name == folder.name
    assert with_added_seeds(experiment, 3, folder.parent) == list(range(9))
    remembering(folder, [[0, 1, 2, 3, 4, 5, 6, 7]])
    with refused():
        with_added_seeds(experiment, 3, folder.parent)
    remembering(folder, [])
    lost = next((folder.parent / "cells").glob("*slow*"))
    (lost / "record.json").unlink()
    assert with_added_seeds(experiment, 3, folder.parent) == list(range(6))
    check_message(capsys.readouterr().err)


def part_with(folder: Path, ending: str, seeds: int) -> Path:
    """Give an experiment a part beside it, such as a budget, that has its first seeds."""
    part = folder.with_name(f"{folder.name}{ending}")
    part.mkdir(exist_ok=True)
    manifest = json.loads((folder / "experiment.json").read_text())
    for arm in manifest["arms"].values():
        arm["cells"] = dict(list(arm["cells"].items())[:seeds])
    (part / "experiment.json").write_text(json.dumps({**manifest, "seeds": manifest["seeds"][:seeds]}))
    return part


def test_no_seeds_are_added_while_a_part_lacks_those_of_before(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "slow": BETTER})
    added = lambda **more: with_added_seeds(  # noqa: E731
        load_experiment(write(tmp_path / "spec", name=folder.name, **more), {}), 3, folder.parent, underpowered=True
    )
    assert added() == list(range(9))
    assert added(budgets=[0.5]) == list(range(6)), "the budget was not begun"
    for seeds, expected in ((4, 6), (6, 9)):
        part_with(folder, ".budget_50", seeds)
        assert added(budgets=[0.5]) == list(range(expected))
    assert added(tune={"rates": {"seeds": [7, 100]}}) == list(range(6)), "the arms at one rate were not begun"
    part_with(folder, ".shared", 6)
    assert added(tune={"rates": {"seeds": [7, 100]}}) == [0, 1, 2, 3, 4, 5, 6, 8, 9], "7 chose the rates"
    rivals = part_with(folder, ".rivals", 2) / "experiment.json"
    manifest = json.loads(rivals.read_text())
    manifest["arms"]["slow"]["cells"]["0"] = "f" * 64
    rivals.write_text(json.dumps(manifest))
    assert added(tune={"rates": {"seeds": [7, 100]}}) == list(range(6)), "a rival is missing"


def test_seeds_of_the_text_that_has_most_are_those_asked_for(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "slow": BETTER})
    part_with(folder, ".plays", 4)
    part_with(folder, ".python", 6)
    corpora = {"plays": {"data.corpus.size": 3000}, "python": {}}
    experiment = load_experiment(write(tmp_path / "spec", name=folder.name, corpora=corpora), {})
    assert with_added_seeds(experiment, 3, folder.parent, underpowered=True) == list(range(6))


def test_a_summary_over_texts_names_the_folders_of_these(tmp_path: Path, refused: Refused) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "slow": BETTER})
    for ending in (".plays", ".plays.shared", ".python"):
        part_with(folder, ending, 6)
    (folder / "experiment.json").unlink()
    with refused():
        load(folder)


def test_seeds_are_added_from_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    folder, asked = make_experiment(tmp_path, {"base": BASE, "slow": BETTER}), list[Experiment]()
    monkeypatch.setattr(module, "ablate", lambda experiment, options: asked.append(experiment))
    spec = write(tmp_path / "spec", name=folder.name)
    lm.ablate(spec, out=folder.parent, add_seeds=2)
    assert asked[0].seeds == list(range(8))
    with refused():
        lm.ablate(spec, out=folder.parent, add_seeds=2, seeds=9)


def remembering(folder: Path, looks: list[list[int]], comparisons: int = 1) -> Path:
    path, described = folder / "experiment.json", [{"seeds": seeds, "comparisons": comparisons} for seeds in looks]
    path.write_text(json.dumps({**json.loads(path.read_text()), "earlier_looks": described}))
    return folder


def test_a_verdict_after_a_look_takes_a_smaller_p(tmp_path: Path, check_message: CheckMessage) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "better": BETTER, "mixed": MIXED}, confirmatory=["better"])
    claim = Claim("x", "nll", "less", {"better": 1.0, "base": -1.0})
    alone, after = load(folder), load(remembering(folder, [list(range(8))]))
    assert answer_claim(alone, claim).verdict == "reproduced"
    assert answer_claim(after, claim).verdict == "not enough seeds"
    before, now = (compare(results).query("arm == 'better' and metric == 'nll'").iloc[0] for results in (alone, after))
    assert (before.verdict, before.p_adjusted) == ("better", 2 / 64)
    check_message(now.verdict)
    assert now.p_adjusted > 0.5


def nll_of(results: Records, arm: str) -> Any:
    return compare(results).query("arm == @arm and metric == 'nll'").iloc[0]


def test_exploratory_arms_and_the_earlier_family_pay_for_looks(tmp_path: Path) -> None:
    cells = {arm: [*values, *values] for arm, values in {"base": BASE, "better": BETTER, "other": BETTER}.items()}
    folder = make_experiment(tmp_path, cells, confirmatory=["better"])
    before, after = load(folder), load(remembering(folder, [list(range(8))]))
    assert nll_of(after, "other").q > 2 * nll_of(before, "other").q
    many = load(remembering(folder, [list(range(8))], comparisons=10))  # of which none could find anything at 8 seeds
    assert nll_of(after, "better").p_adjusted == pytest.approx(16 * nll_of(many, "better").p_adjusted)


def test_claims_pay_for_looks_at_the_judging_seeds(tmp_path: Path, check_message: CheckMessage) -> None:
    cells = {arm: [*values, *values] for arm, values in {"base": BASE, "better": BETTER}.items()}
    folder = make_experiment(tmp_path, cells)
    results = load(remembering(folder, [list(range(6))]))
    claim = Claim("x", "nll", "less", {"better": 1.0, "base": -1.0})
    check_message([answer_claim(results, one).note for one in (claim, replace(claim, seen=list(range(6))))])
    explained = claim_notes([answer_claim(results, claim)])
    assert any(line.startswith("After a look at results: anytime-valid tests") for line in explained)


def test_only_looks_at_the_seeds_that_are_judged_count(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "better": BETTER})
    results = load(remembering(folder, [[5, 9], [7, 8, 9], [0, 1, 2, 3], list(range(5))]))
    assert results.first_look() == (4, 1)
    assert results.first_look([4, 5]) == (0, 1)  # too few to choose by
    assert results.first_look([2, 3, 4, 5]) == (3, 1)
    assert load(remembering(folder, [[3, 4, 5, 8]])).first_look() == (4, 1)  # of which three are judged again
    assert load(remembering(folder, [[2, 3, 4, 5, 6, 7], [0, 1, 2]])).first_look() == (6, 1)
    assert load(remembering(folder, [[0, 1, 2], [2, 3, 4, 5, 6], [0, 1, 2, 3]])).first_look() == (5, 1)  # the dearest
    assert load(remembering(folder, [list(range(6)), [0, 1, 2, 3]])).first_look() == (0, 1)  # all were judged first


def test_two_seeds_are_too_few_to_look_at(tmp_path: Path, capsys: Capture) -> None:
    folder = make_experiment(tmp_path, {"base": BASE[:2], "slow": BETTER[:2]})
    experiment = load_experiment(write(tmp_path / "spec", name=folder.name), {})
    assert with_added_seeds(experiment, 2, folder.parent) == list(range(4))
    assert capsys.readouterr().err == ""


def test_initial_values_are_added_to_orders_as_they_were(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path, {"base": BASE, "slow": BETTER})
    part_with(folder, ".orders", 6)
    spec = write(tmp_path / "spec", name=folder.name, seeds={"init": 6, "data": [3, 4]})
    added = with_added_seeds(load_experiment(spec, {}), 3, folder.parent)
    assert added == {"init": list(range(9)), "data": [3, 4]}


def test_reports_say_what_a_look_left(tmp_path: Path, check_message: CheckMessage) -> None:
    cells = {arm: [*values, *values] for arm, values in {"base": BASE, "better": BETTER}.items()}
    folder = make_experiment(tmp_path, cells)
    table = compare(alone := load(folder))
    check_message(notes(alone, table))
    results = load(remembering(folder, [list(range(6))]))
    check_message(notes(results, compare(results)))
    check_message(brief_notes(results, compare(results))[0])
    other = replace_name(load(make_experiment(tmp_path / "other", cells, prefix="other-")), "other")
    section = pooled_section([(results, compare(results)), (other, compare(other))])
    assert section is not None
    check_message([*section.notes])


def replace_name(results: Records, name: str) -> Records:
    return replace(results, manifest={**results.manifest, "name": name})


def test_stages_after_a_look_end_by_the_same_test(tmp_path: Path) -> None:
    cells = {arm: [*values, *values] for arm, values in {"base": BASE, "better": BETTER, "mixed": MIXED}.items()}
    folder, arms = make_experiment(tmp_path, cells), ["better", "mixed"]
    assert settled_arms(load(remembering(folder, [list(range(6))])), (8, 12), arms) == {"better": True, "mixed": False}
    assert settled_arms(load(remembering(folder, [list(range(11))])), (8, 12), arms) == dict.fromkeys(arms, False)


def test_nothing_is_bold_while_cells_are_missing(tmp_path: Path) -> None:
    whole: dict[str, list[float | None]] = {"base": [*BASE, 2.1], "better": [*BETTER, 1.8]}
    for place, (cells, bold) in enumerate(((whole, True), ({**whole, "better": [*BETTER, None]}, False))):
        table = compare(load(make_experiment(tmp_path / str(place), cells)))
        row = table.query("arm == 'better' and metric == 'nll'").iloc[0]
        assert (row.significant, row.bold) == (True, bold)


def test_wrong_requests_are_one_line(tmp_path: Path, refused_command: RefusedCommand) -> None:
    spec, out = write(tmp_path, seeds=6), ["--out", str(tmp_path / "out")]
    for arguments in (["--add-seeds", "2"], ["--add-seeds", "0"], ["--add-seeds", "2", "--seeds", "8"]):
        refused_command(["ablate", spec, *out, *arguments])
    staged = write(tmp_path, seeds={"min": 6, "max": 12, "stages": 2})
    refused_command(["ablate", staged, *out, "--add-seeds", "2"])


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_seeds_are_trained_added_and_paid_for(tmp_path: Path, check_message: CheckMessage) -> None:
    short = {"trainer.max_steps": 5, "trainer.val_check_interval": 5, "trainer.limit_val_batches": 1}
    spec, out = write(tmp_path, seeds=6, common=short), tmp_path / "out"
    assert main(["ablate", str(spec), "--out", str(out), "--workers", "2"]) == 0
    assert main(["ablate", str(spec), "--out", str(out), "--add-seeds", "4"]) == 0
    manifest = json.loads((out / spec.stem / "experiment.json").read_text())
    assert manifest["seeds"] == list(range(10))
    assert [look["seeds"] for look in manifest["earlier_looks"]] == [list(range(6))]
    assert "--add-seeds" not in manifest["command"]
    page = (out / spec.stem / "table.md").read_text()
    check_message([line for line in page.splitlines() if " 5 %" in line])
    assert main(["ablate", *manifest["command"][1:], "--out", str(out)]) == 0
    assert json.loads((out / spec.stem / "experiment.json").read_text())["earlier_looks"] == manifest["earlier_looks"]
