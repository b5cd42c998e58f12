"""Studies on disk, and trials as cells: against Optuna's own calculations, and as if never interrupted."""

import datetime
import json
import statistics
from pathlib import Path
from typing import Any

import optuna
import pytest
from helpers import Patch, known
from messages import CheckMessage, Refused
from optuna.trial import TrialState
from records import blank
from search_world import GRID, LINE, MIXED, SETTINGS, World, carry_out, cells_of_nothing, searching, spec, well

from lm.config.tree import InputError, Tree, run_id
from lm.search import study as studies
from lm.search.space import read_space
from lm.search.spec import Method
from lm.search.sweep import trial_seconds
from lm.store.record import Record
from lm.store.store import Store


@pytest.fixture(autouse=True)
def _cells_of_nothing(monkeypatch: Patch) -> None:
    cells_of_nothing(monkeypatch)


# searching -----------------------------------------------------------------------------------------------------------


SAMPLERS = [
    *("tpe", "random"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gp", "cmaes", "qmc", "nsga2")),
]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_value_of_a_trial_is_measured_by_its_cell(tmp_path: Path, name: str) -> None:
    world = World(workers=2)
    done = carry_out(tmp_path, world, spec(trials=12, sampler=Method(name)))
    assert [trial.state for trial in done] == [TrialState.COMPLETE] * 12
    for trial in done:
        assert trial.value == pytest.approx((trial.params["x"] - 1) ** 2 + (trial.params["y"] + 2) ** 2, rel=1e-12)
    assert {(tree["x"], tree["y"]) for tree in world.trained} == {(t.params["x"], t.params["y"]) for t in done}


SLOW = (pytest.param(name, marks=pytest.mark.slow) for name in ("gp", "cmaes"))


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["tpe", *SLOW])
def test_a_sampler_that_learns_gets_near_the_best(tmp_path: Path, name: str) -> None:
    done = carry_out(tmp_path, World(), spec(trials=25 if name == "gp" else 60, sampler=Method(name)))
    assert min(trial.value for trial in done) < 0.3  # at random 2 % of the square lie as near


@pytest.mark.parametrize("name", SAMPLERS)
def test_options_of_choices_are_searched_by_every_sampler(tmp_path: Path, name: str) -> None:
    done = carry_out(tmp_path, World(), spec(MIXED, trials=12, sampler=Method(name)))
    assert all(("kind.b.n" in trial.params) == (trial.params["kind"] == "b") for trial in done)
    assert {trial.params["kind"] for trial in done} == {"a", "b"}


@pytest.mark.slow
def test_the_same_seed_suggests_the_same_and_another_does_not(tmp_path: Path) -> None:
    runs = [
        [t.params for t in carry_out(tmp_path / str(n), World(), spec(trials=14, sampler=Method("tpe", seed=seed)))]
        for n, seed in enumerate([3, 3, 4])
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_clock_that_was_set_back_makes_no_trial_shorter(tmp_path: Path) -> None:
    (trial,) = carry_out(tmp_path, World(), spec(trials=1))
    trial.datetime_start += datetime.timedelta(days=1)
    assert trial_seconds(trial) == trial.user_attrs["seconds"] >= 0
    del trial._user_attrs["seconds"]  # as an older version left it
    assert trial_seconds(trial) is None
    trial.datetime_start -= datetime.timedelta(days=1)
    assert trial_seconds(trial) == trial.duration.total_seconds()


def test_a_trial_of_several_seeds_is_their_mean(tmp_path: Path) -> None:
    world = World(workers=3)
    for trial in carry_out(tmp_path, world, spec(seeds=[2, 5, 0], trials=4)):
        of_seeds = [known(well({**trial.params, "seed": seed})["metrics"]["nll"]) for seed in (2, 5, 0)]
        assert trial.value == pytest.approx(statistics.fmean(of_seeds), rel=1e-12)
        assert set(trial.user_attrs["cells"]) == {"0", "2", "5"}
    assert len(world.trained) == 12


def test_several_objectives_keep_their_order_and_direction(tmp_path: Path) -> None:
    wanted = {"parameters": "higher", "nll": "lower"}
    world = World()
    with searching(tmp_path, world, spec(objectives=wanted, sampler=Method("nsga2"))) as source:
        world.run(source)
        study = source.searches[0].study
        assert [way.name for way in study.directions] == ["MAXIMIZE", "MINIMIZE"]
        assert study.metric_names == ["parameters", "nll"]
        for trial in study.get_trials():
            record = well({**trial.params, "seed": 0})
            assert trial.values == [record["cost"]["parameters"], record["metrics"]["nll"]]


def test_a_grid_is_walked_once_through_kills_and_in_parallel(tmp_path: Path) -> None:
    grid = spec(GRID, trials=9, sampler=Method("grid"))
    points = {json.dumps(point, sort_keys=True) for point in grid.space.grid()}
    world = World(workers=2)
    for limit in (2, 1, 3):  # the process dies after that many cells, with others still running
        with searching(tmp_path, world, grid) as source:
            world.run(source, limit)
    done = carry_out(tmp_path, world, grid)
    assert len(done) == 9
    assert {json.dumps(trial.params, sort_keys=True) for trial in done} == points
    assert [trial.state for trial in done] == [TrialState.COMPLETE] * 9
    assert len(world.trained) == 9


# what goes wrong -----------------------------------------------------------------------------------------------------


def test_a_cell_that_fails_or_diverges_fails_its_trial(tmp_path: Path, check_message: CheckMessage) -> None:
    def answer(tree: Tree) -> Record:
        if tree["x"] == "diverges" and tree["seed"] == 1:
            return {**blank(status="diverged"), "error": "loss not finite at step 3"}
        if tree["x"] == "unmeasured":
            return {**well({"seed": 0}), "metrics": {"nll": None}}
        return well({"seed": 0})

    world = World(answer)
    choices = {"x": {"choices": ["fine", "diverges", "unmeasured", 101.0]}}
    done = carry_out(tmp_path, world, spec(choices, trials=4, seeds=[0, 1], sampler=Method("grid")))
    states = {trial.params["x"]: trial.state.name for trial in done}
    assert states == {"fine": "COMPLETE", "diverges": "FAIL", "unmeasured": "FAIL", "101.0": "FAIL"}
    reasons = {trial.params["x"]: trial.user_attrs["reason"] for trial in done if "reason" in trial.user_attrs}
    check_message([f"{x}: {reason}" for x, reason in sorted(reasons.items())])
    assert ("s trial 3", f"failed: {reasons['101.0']}", 2) in world.said


def test_the_other_seeds_of_a_failed_trial_are_skipped(tmp_path: Path) -> None:
    world = World(lambda tree: {**blank(status="failed"), "error": "no"})
    carry_out(tmp_path, world, spec(trials=2, seeds=[0, 1, 2]))
    assert [tree["seed"] for tree in world.trained] == [0, 0]
    assert [cells for _, outcome, cells in world.said if "are skipped" in outcome] == [2, 2]


# pruning -------------------------------------------------------------------------------------------------------------


def test_the_median_pruner_stops_trials_behind_the_median(tmp_path: Path) -> None:
    world = World(validations=4)
    pruner = Method("median", {"n_startup_trials": 3, "n_warmup_steps": 10})
    done = carry_out(tmp_path, world, spec(trials=20, sampler=Method("random"), pruner=pruner))
    assert {trial.state for trial in done} == {TrialState.COMPLETE, TrialState.PRUNED}
    for trial in done:
        expected = []
        before = [t for t in done[: trial.number] if t.state == TrialState.COMPLETE]
        for step in (10, 20, 30, 40):
            expected.append(step)
            others = [t.intermediate_values[step] for t in before]
            best = min(value for at, value in trial.intermediate_values.items() if at <= step)
            if step >= 10 and len(others) >= 3 and best > statistics.median(others):
                break
        assert list(trial.intermediate_values) == expected
    assert len(world.pruned) == sum(trial.state == TrialState.PRUNED for trial in done)


def test_hyperband_counts_optimiser_steps(tmp_path: Path) -> None:
    pruner = studies.pruner(spec(pruner=Method("hyperband")), {**SETTINGS, "accumulate_grad_batches": 2})
    assert isinstance(pruner, optuna.pruners.HyperbandPruner)
    assert (pruner._min_resource, pruner._max_resource) == (5, 40)
    world = World(validations=4)
    done = carry_out(tmp_path, world, spec(trials=20, sampler=Method("random"), pruner=Method("hyperband")))
    assert world.pruned
    assert {trial.state for trial in done} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_the_first_seed_decides_for_all(tmp_path: Path) -> None:
    world = World(validations=2)
    pruner = Method("median", {"n_startup_trials": 1})
    done = carry_out(tmp_path, world, spec(trials=6, seeds=[4, 1], sampler=Method("random"), pruner=pruner))
    pruned = [trial for trial in done if trial.state == TrialState.PRUNED]
    assert pruned
    assert {tree["seed"] for tree in world.pruned} == {4}
    assert len(world.trained) == 2 * (len(done) - len(pruned))


def test_a_pruner_without_validations_is_refused(tmp_path: Path, refused: Refused) -> None:
    with refused():
        studies.pruner(spec(pruner=Method("median")), {**SETTINGS, "val_check_interval": None})


# one cell, one training ----------------------------------------------------------------------------------------------


def test_a_cell_that_is_finished_is_not_trained_again(tmp_path: Path) -> None:
    store, finished = Store(tmp_path), {"x": 2, "y": 1, "seed": 0}
    store.work(run_id(finished)).mkdir(parents=True)
    store.finish(run_id(finished), {**well(finished), "id": run_id(finished)})
    world = World()
    done = carry_out(tmp_path, world, spec(GRID, trials=9, sampler=Method("grid")))
    assert finished not in world.trained
    assert len(world.trained) == 8
    assert [t.value for t in done if t.params == {"x": "2", "y": 1}] == [well(finished)["metrics"]["nll"]]


@pytest.mark.parametrize("workers", [1, 4])
def test_two_searches_share_workers_and_the_cells_that_both_want(tmp_path: Path, workers: int) -> None:
    world = World(workers=workers)
    one = spec(GRID, trials=9, sampler=Method("grid"))
    other = spec({**GRID, "x": {"choices": [2, 3, 4]}}, name="t", trials=9, sampler=Method("grid"))
    with searching(tmp_path, world, one, other) as source:
        world.run(source)
        for search in source.searches:
            assert [t.state for t in search.study.get_trials()] == [TrialState.COMPLETE] * 9
    assert len(world.trained) == len({json.dumps(tree) for tree in world.trained}) == 12


def test_a_cell_goes_on_while_anyone_wants_it(tmp_path: Path) -> None:
    world = World()
    point = {"x": {"choices": [1]}}
    with searching(tmp_path, world, spec(point, trials=1), spec(point, trials=1, name="t")) as source:
        first = source.pop()
        assert first is not None
        assert source.pop() is None  # the other search waits for the same cell
        wishes = iter([False, True, False, False])
        for search in source.searches:
            search.judge = lambda *_: next(wishes)  # type: ignore[method-assign]
        assert source.judge(first, 10, {"nll": 1.0})
        assert not source.judge(first, 20, {"nll": 1.0})
        source.ended(first, well(first.cell.config))
        assert [search.study.trials[0].value for search in source.searches] == [4.0, 4.0]


# on disk -------------------------------------------------------------------------------------------------------------


def test_an_interrupted_search_resumes_its_open_trials(tmp_path: Path) -> None:
    world = World(workers=2)
    with searching(tmp_path, world, spec(trials=10)) as source:
        world.run(source, limit=4)
        begun = [t.params for t in source.searches[0].study.get_trials() if t.state == TrialState.RUNNING]
    assert begun
    done = carry_out(tmp_path, world, spec(trials=10))
    assert [trial.state for trial in done] == [TrialState.COMPLETE] * 10
    assert [t.params for t in done if "taken_up" in t.user_attrs] == begun
    assert len({tuple(t.params.values()) for t in done}) == 10  # the sampler does not repeat itself
    more = carry_out(tmp_path, world, spec(trials=12))
    assert [t.params for t in more[:10]] == [t.params for t in done]
    assert len(more) == 12


def test_a_trial_that_kills_every_process_is_given_up(tmp_path: Path, check_message: CheckMessage) -> None:
    for _ in range(4):
        with searching(tmp_path, World(), spec(trials=1)) as source:
            assert source.pop() is not None
    (trial,) = carry_out(tmp_path, World(), spec(trials=1))
    assert trial.state == TrialState.FAIL
    check_message(trial.user_attrs["reason"])


def test_writing_a_journal_cuts_its_torn_last_line_off(tmp_path: Path) -> None:
    carry_out(tmp_path, World(), spec(trials=2))
    path = tmp_path / "s/study.journal"
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in (1, last // 2, last - 1):
        path.write_bytes(whole[:-cut])
        assert len(carry_out(tmp_path, World(), spec(trials=3))) == 3
        assert path.read_bytes().startswith(whole[:-last])
        assert all(isinstance(json.loads(line), dict) for line in path.read_bytes().splitlines())


def test_a_torn_line_inside_a_journal_is_reported_and_kept(tmp_path: Path) -> None:
    carry_out(tmp_path, World(), spec(trials=2))
    path = tmp_path / "s/study.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:5] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"study\.journal: is damaged"):
        carry_out(tmp_path, World(), spec(trials=2))
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (1, b'"directions":[1]', b'"directions":{}'),
        (1, b'"study_name":', b'"study_nam%":'),
        (3, b'"user_attr":{', b'"user_attr":[{}],"x":{'),
        (3, b'"definition":{', b'"definition":true,"x":{'),
        (3, b'"step":null', b'"stex":null'),
        (4, b'"methods":[{', b'"methods":-1,"x":[{'),
        (7, b'"param_value_internal":', b'"param_value_interna":'),
        (9, b'"user_attr":{', b'"user_attr":[],"x":{'),
        (11, b'"values":[', b'"values":-1,"x":['),
    ],
    ids=str,
)
def test_a_damaged_journal_is_reported_with_its_file(tmp_path: Path, number: int, old: bytes, new: bytes) -> None:
    carry_out(tmp_path, World(), spec(trials=1, sampler=Method("random")))
    path = tmp_path / "s/study.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError) as caught:
        carry_out(tmp_path, World(), spec(trials=2, sampler=Method("random")))
    message = str(caught.value)
    assert message.startswith(f"{path}: is damaged")
    assert "\n" not in message
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    "change",
    [
        {"space": read_space({**LINE, "x": {"low": -4.0, "high": 5.0}}, "space")},
        {"objectives": {"accuracy": "higher"}},
        {"seeds": [1]},
        {"tree": {"z": 1}},
    ],
)
def test_a_study_of_another_search_is_not_taken_up(tmp_path: Path, change: dict[str, Any], refused: Refused) -> None:
    carry_out(tmp_path, World(), spec())
    with refused():
        carry_out(tmp_path, World(), spec(**{"space": LINE, **change}))


def test_methods_are_kept_with_the_study(tmp_path: Path) -> None:
    carry_out(tmp_path, World(), spec(trials=2, sampler=Method("tpe", {"n_startup_trials": 3}, 7)))
    with searching(tmp_path, World(), spec(trials=4, sampler=Method("random"))) as source:
        methods = source.searches[0].study.user_attrs["methods"]
    assert [(m["from_trial"], m["sampler"]) for m in methods] == [
        (0, {"name": "tpe", "seed": 7, "n_startup_trials": 3}),
        (2, {"name": "random", "seed": 0}),
    ]


@pytest.mark.slow
def test_a_study_lies_in_a_database_where_one_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    carry_out(tmp_path, World(), spec(trials=3, storage=url))
    carry_out(tmp_path, World(), spec(trials=5, storage=url))
    assert len(optuna.load_study(study_name="s", storage=url).trials) == 5


@pytest.mark.parametrize(
    "storage",
    ["sqlit:///a.db", "sqlite:////nowhere/at/all.db"],
)
def test_a_wrong_storage_is_answered_in_one_line(tmp_path: Path, storage: str, refused: Refused) -> None:
    with refused():
        carry_out(tmp_path, World(), spec(storage=storage))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cmaes", None)
    with refused():
        carry_out(tmp_path, World(), spec(sampler=Method("cmaes")))


def test_an_option_out_of_range_is_blamed_on_the_sampler(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sampler: .*population"):
        carry_out(tmp_path, World(), spec(sampler=Method("nsga2", {"population_size": 1})))
