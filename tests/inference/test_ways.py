"""`auto`: ways are timed once, the plainest of the fastest is taken, and the choice is found again."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN

from lm.ablation.ablate import Manner, ablate
from lm.ablation.auto import with_ways
from lm.ablation.experiment import load_experiment
from lm.config.tree import InputError, Tree, override
from lm.inference import ways
from lm.inference.ways import asked, decided
from lm.model import mixing
from lm.report.run import describe_autotune
from lm.store.ways import FILE, kept, measured_once
from lm.training.cell import check

EVERY: Tree = {f"trainer.{name}": "auto" for name in ("precision", "attention", "compile")}


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of a step by what is in the name of a way, multiplied; nothing is trained or compiled."""
    given: dict[str, float] = {}

    def timed(self: Any, ways: list[dict[str, Any]], trained: Any) -> list[tuple[dict[str, Any], float]]:
        found = []
        for way in ways:
            self.compiled_in[repr(way)] = 10.0
            words = [*map(str, way.values()), "compiled" if way.get("compile") else ""]
            seconds = 1.0
            for word in words:
                seconds *= given.get(word, 1.0)
            found.append((way, seconds))
        return found

    monkeypatch.setattr(ways._Timing, "_timed", timed)
    return given


def chosen(tmp_path: Path, changes: Tree = EVERY, steps: int = 1000) -> dict[str, Any]:
    decision = decided(override(RUN, changes), tmp_path, 1, steps)[1]
    assert decision is not None
    return decision.chosen


def test_the_fastest_way_is_taken_and_of_those_as_fast_the_plainest(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds |= {"bf16-mixed": 0.99, "plain": 1.2}
    assert chosen(tmp_path / "1") == {"precision": "32-true", "attention": "sdpa", "compile": False}
    speeds |= {"bf16-mixed": 0.5}
    assert chosen(tmp_path / "2") == {"precision": "bf16-mixed", "attention": "sdpa", "compile": False}
    speeds |= {"plain": 0.5}
    assert chosen(tmp_path / "3", {"trainer.attention": "auto"}) == {"attention": "plain"}


def test_code_is_compiled_where_that_saves_more_time_than_it_takes(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds |= {"compiled": 0.5}  # which takes 10 s
    assert not chosen(tmp_path / "1", steps=19)["compile"]
    assert chosen(tmp_path / "2", steps=21)["compile"]
    speeds |= {"compiled": 0.99}
    assert not chosen(tmp_path / "3", steps=10**6)["compile"]


def test_nothing_is_compiled_to_try_it_where_all_of_the_training_is_shorter(
    tmp_path: Path, speeds: dict[str, float]
) -> None:
    speeds |= {"compiled": 0.01}
    for steps, tried in ((9, False), (11, True)):
        decision = decided(override(RUN, EVERY), tmp_path / str(steps), 1, steps)[1]
        assert decision is not None
        assert any(one["way"].get("compile") for one in decision.measured) is tried
    shapes = decided(override(RUN, EVERY), tmp_path / "shapes", 1, 11, shapes=2)[1]
    assert shapes is not None
    assert not any(one["way"].get("compile") for one in shapes.measured)


def test_commands_that_measure_at_the_same_time_take_turns_and_keep_all(tmp_path: Path) -> None:
    path, said, begun, go_on = tmp_path / FILE, [], threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(30)
        return "slow"

    def ask(question: str, answer: str) -> None:
        said.append(measured_once(path, "decisions", question, slow if answer == "slow" else lambda: answer))

    first = threading.Thread(target=ask, args=("a", "slow"))
    first.start()
    assert begun.wait(30)
    others = [threading.Thread(target=ask, args=one) for one in (("a", "other"), ("b", "b"))]
    for other in others:
        other.start()
    others[1].join(0.05)
    assert said == [], "they wait while one measures"
    go_on.set()
    for thread in (first, *others):
        thread.join(30)
    assert sorted(said) == ["b", "slow", "slow"]
    assert kept(path, "decisions") == {"a": "slow", "b": "b"}


def test_a_decision_is_found_again_whatever_is_fast_by_then(tmp_path: Path, speeds: dict[str, float]) -> None:
    first = chosen(tmp_path)
    speeds |= {"bf16-mixed": 0.1}
    assert chosen(tmp_path) == first
    assert chosen(tmp_path, {**EVERY, "seed": 5}) == first
    assert chosen(tmp_path, {**EVERY, "model.width": 24}) != first


def test_a_way_that_this_processor_does_not_have_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Any:
        raise RuntimeError("pack_vnni2 is only supported when avx512 is supported")

    monkeypatch.setitem(mixing.WAYS, "plain", none)
    tree = override(RUN, {"trainer.attention": "auto"})
    decision = decided(tree, tmp_path / "1", 1)[1]
    assert decision is not None
    assert [one["way"] for one in decision.measured] == [{"attention": "sdpa"}]
    monkeypatch.setitem(mixing.WAYS, "sdpa", none)
    with pytest.raises(RuntimeError, match="pack_vnni2"):
        decided(tree, tmp_path / "2", 1)


def test_what_is_not_asked_for_is_left_alone(tmp_path: Path) -> None:
    assert decided(RUN, tmp_path, 1) == (RUN, None)
    assert not (tmp_path / FILE).exists()
    assert asked(override(RUN, EVERY)) == ["precision", "attention", "compile"]


def test_ways_are_really_timed_and_leave_torch_as_it_was(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    tree, decision = decided(override(RUN, {"trainer.precision": "auto", "trainer.attention": "auto"}), tmp_path, 1)
    assert decision is not None
    assert {key: tree["trainer"][key] for key in decision.chosen} == decision.chosen
    ways = [tuple(one["way"].values()) for one in decision.measured]
    every = [(p, a) for p in ("32-true", "bf16-mixed") for a in ("sdpa", "plain")]
    assert ways in (every, [way for way in every if way != ("bf16-mixed", "sdpa")])  # not every processor has that one
    assert all(one["milliseconds"] > 0 for one in decision.measured)
    assert torch.get_num_threads() == threads
    assert "32-true plain" in describe_autotune(decision.__dict__)
    check(tree)


def test_nothing_but_the_start_of_an_experiment_decides() -> None:
    with pytest.raises(InputError, match=r"trainer.compile: auto is measured at the start of `lm fit`"):
        check(override(RUN, {"trainer.compile": "auto"}))
    with pytest.raises(InputError, match=r"trainer.attention: found 'AUTO'; did you mean auto"):
        check(override(RUN, {"trainer.attention": "AUTO"}))


@pytest.mark.parametrize("name", ["attention", "compile"])
def test_no_way_at_all_is_none(name: str) -> None:
    with pytest.raises(InputError, match=rf"trainer.{name}: expected one of (sdpa|false), .*, found null"):
        check(override(RUN, {f"trainer.{name}": None}))


def experiment(tmp_path: Path, arm: Tree, common: Tree) -> Any:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(RUN))
    spec = {"base": "base.yaml", "baseline": "a", "seeds": 2, "common": common, "arms": {"a": {}, "b": arm}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    return load_experiment(tmp_path / "spec.yaml", {})


def test_an_experiment_is_computed_in_one_way(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds |= {"bf16-mixed": 0.5}
    found = with_ways(experiment(tmp_path, {"model.norm": "RMSNorm"}, {"trainer.precision": "auto"}), tmp_path, 1)
    assert found.tree["trainer"]["precision"] == "bf16-mixed"
    assert found.ways is not None
    assert found.ways["chosen"] == {"precision": "bf16-mixed"}
    with pytest.raises(InputError, match=r"arm b: trainer.precision: auto would have its arms computed"):
        with_ways(experiment(tmp_path, {"trainer.precision": "auto"}, {}), tmp_path, 1)


def test_a_damaged_file_of_decisions_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(InputError, match=r"ways\.json: ways format"):
        chosen(tmp_path)


def test_too_few_seeds_are_told_before_anything_is_measured(tmp_path: Path, speeds: dict[str, float]) -> None:
    few = experiment(tmp_path, {"model.norm": "RMSNorm"}, {"trainer.precision": "auto"})
    with pytest.raises(InputError, match="2 seeds cannot reach significance"):
        ablate(few, Manner(tmp_path))
    assert not (tmp_path / FILE).exists()
