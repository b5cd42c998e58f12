"""`auto`: ways are timed once, the plainest of the fastest is taken, and the choice is found again."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN, Patch
from messages import Refused

from lm.ablation.ablate import RunOptions, ablate
from lm.ablation.experiment import load_experiment
from lm.ablation.plan import with_autotuned_settings
from lm.config.tree import Tree, override
from lm.inference import autotune
from lm.inference.autotune import replace_auto_settings
from lm.model import attention_impl
from lm.report.run import describe_autotune
from lm.store import user_cache
from lm.store.side_files import WAYS_FILE, measure_once, read_cached
from lm.training.cell import check
from lm.training.identified import auto_settings_requested

EVERY: Tree = {f"trainer.{name}": "auto" for name in ("precision", "attention", "compile")}


@pytest.fixture
def speeds(monkeypatch: Patch) -> dict[str, float]:
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

    monkeypatch.setattr(autotune._Timing, "_timed", timed)
    return given


def chosen(tmp_path: Path, changes: Tree = EVERY, steps: int = 1000) -> dict[str, Any]:
    decision = replace_auto_settings(override(RUN, changes), tmp_path, 1, steps)[1]
    assert decision is not None
    return decision.chosen


def test_fastest_setting_is_chosen_and_the_plainest_of_equals(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds |= {"bf16-mixed": 0.99, "plain": 1.2}
    assert chosen(tmp_path / "1") == {"precision": "32-true", "attention": "sdpa", "compile": False}
    speeds |= {"bf16-mixed": 0.5}
    assert chosen(tmp_path / "2") == {"precision": "bf16-mixed", "attention": "sdpa", "compile": False}
    speeds |= {"plain": 0.5}
    assert chosen(tmp_path / "3", {"trainer.attention": "auto"}) == {"attention": "plain"}


def test_code_is_compiled_where_that_saves_time(tmp_path: Path, speeds: dict[str, float], monkeypatch: Patch) -> None:
    monkeypatch.setattr(autotune, "MIN_TRAINING_SECONDS", 10.0)
    speeds |= {"compiled": 0.5}  # which takes 10 s
    assert not chosen(tmp_path / "1", steps=19)["compile"]
    assert chosen(tmp_path / "2", steps=21)["compile"]
    speeds |= {"compiled": 0.99}
    assert not chosen(tmp_path / "3", steps=10**6)["compile"]


def test_compilation_is_not_timed_for_short_training(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds |= {"compiled": 0.01}
    for steps, tried in ((299, False), (301, True)):
        decision = replace_auto_settings(override(RUN, EVERY), tmp_path / str(steps), 1, steps)[1]
        assert decision is not None
        assert any(one["way"].get("compile") for one in decision.measured) is tried
    shapes = replace_auto_settings(override(RUN, EVERY), tmp_path / "shapes", 1, 301, shapes=2)[1]
    assert shapes is not None
    assert not any(one["way"].get("compile") for one in shapes.measured)


def test_concurrent_measurements_take_turns_and_are_all_stored(tmp_path: Path) -> None:
    path, said, begun, go_on = tmp_path / WAYS_FILE, [], threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(30)
        return "slow"

    def ask(question: str, answer: str) -> None:
        said.append(
            measure_once(path, read_cached, "decisions", question, slow if answer == "slow" else lambda: answer)
        )

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
    assert read_cached(path)["decisions"] == {"a": "slow", "b": "b"}


def test_stored_decision_is_used_again(tmp_path: Path, speeds: dict[str, float]) -> None:
    first = chosen(tmp_path)
    speeds |= {"bf16-mixed": 0.1}
    assert chosen(tmp_path) == first
    assert chosen(tmp_path, {**EVERY, "seed": 5}) == first
    assert chosen(tmp_path, {**EVERY, "model.width": 24}) != first


@pytest.fixture
def timed_steps(monkeypatch: Patch) -> tuple[dict[str, float], list[str]]:
    """Seconds of a step by its way, 1 where none is given; and the ways whose steps were timed, in order."""
    given: dict[str, float] = {}
    ran: list[str] = []

    def seconds_of(step: Any) -> float:
        step()
        return given.get(ran[-1], 1.0)

    def made(self: Any, settings: dict[str, Any], *_: Any) -> Any:
        return lambda: ran.append(" ".join(map(str, settings.values())))

    monkeypatch.setattr(autotune._Timing, "_step", made)
    monkeypatch.setattr(autotune, "seconds_of", seconds_of)
    return given, ran


def test_a_precision_that_is_hopeless_is_timed_once(
    tmp_path: Path, timed_steps: tuple[dict[str, float], list[str]]
) -> None:
    given, ran = timed_steps
    given["bf16-mixed sdpa"] = 3.1
    tree = override(RUN, {name: "auto" for name in EVERY if name != "trainer.compile"})
    decision = replace_auto_settings(tree, tmp_path, 1)[1]
    assert decision is not None
    assert ran.count("bf16-mixed sdpa") == 1
    assert ran.count("bf16-mixed plain") == 0
    assert ran.count("32-true sdpa") == ran.count("32-true plain") > 1
    assert [(*one["way"].values(), one["milliseconds"]) for one in decision.measured][2:] == [
        ("bf16-mixed", "sdpa", 3100.0)
    ]


def test_a_hopeless_implementation_leaves_the_others_in(
    tmp_path: Path, timed_steps: tuple[dict[str, float], list[str]]
) -> None:
    given, ran = timed_steps
    given |= {"sdpa": 1.0, "plain": 3.1, "blocked": 0.5}
    long = override(RUN, {"trainer.attention": "auto", "data.context": 2 * attention_impl.BLOCK})
    decision = replace_auto_settings(long, tmp_path, 1)[1]
    assert decision is not None
    assert decision.chosen == {"attention": "blocked"}
    assert ran.count("plain") == 1


def test_compilation_is_tried_for_precisions_that_may_win(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds |= {"compiled": 0.5, "bf16-mixed": 1.6}
    decision = replace_auto_settings(override(RUN, EVERY), tmp_path, 1, 1000)[1]
    assert decision is not None
    compiled = [one["way"]["precision"] for one in decision.measured if one["way"].get("compile")]
    assert compiled == ["32-true"]


def test_other_results_folders_take_the_choice_from_the_cache(
    tmp_path: Path, speeds: dict[str, float], monkeypatch: Patch
) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "SLOW", ())
    monkeypatch.setattr(user_cache, "_versions", [])
    speeds |= {"plain": 0.5}
    first = chosen(tmp_path / "a")
    speeds.clear()
    assert chosen(tmp_path / "b", {**EVERY, "data.split": [0.8, 0.1, 0.1]}) == first
    assert chosen(tmp_path / "c", {**EVERY, "model.width": 24}) != first
    monkeypatch.setattr(autotune, "processor", lambda *_: "another")
    assert chosen(tmp_path / "d") != first


def test_kernel_missing_on_this_processor_is_left_out(tmp_path: Path, monkeypatch: Patch) -> None:
    def none(*_: Any) -> Any:
        raise RuntimeError("pack_vnni2 is only supported when avx512 is supported")

    monkeypatch.setitem(attention_impl.ATTENTION_IMPLS, "plain", none)
    tree = override(RUN, {"trainer.attention": "auto"})
    decision = replace_auto_settings(tree, tmp_path / "1", 1)[1]
    assert decision is not None
    assert [one["way"] for one in decision.measured] == [{"attention": "sdpa"}]
    monkeypatch.setitem(attention_impl.ATTENTION_IMPLS, "sdpa", none)
    with pytest.raises(RuntimeError, match="pack_vnni2"):
        replace_auto_settings(tree, tmp_path / "2", 1)


def test_configuration_without_auto_is_unchanged(tmp_path: Path) -> None:
    assert replace_auto_settings(RUN, tmp_path, 1) == (RUN, None)
    assert not (tmp_path / WAYS_FILE).exists()
    assert auto_settings_requested(override(RUN, EVERY)) == ["precision", "attention", "compile"]


def test_real_timing_leaves_torch_as_it_was(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(autotune, "STEPS", 2)
    threads = torch.get_num_threads()
    tree, decision = replace_auto_settings(
        override(RUN, {"trainer.precision": "auto", "trainer.attention": "auto"}), tmp_path, 1
    )
    assert decision is not None
    assert {key: tree["trainer"][key] for key in decision.chosen} == decision.chosen
    ways = [tuple(one["way"].values()) for one in decision.measured]
    every = [(p, a) for p in ("32-true", "bf16-mixed") for a in ("sdpa", "plain")]
    assert ways[:2] == every[:2]
    assert set(ways[2:]) <= set(every[2:]), "not every processor has them, and on some they are given up"
    assert all(one["milliseconds"] > 0 for one in decision.measured)
    assert torch.get_num_threads() == threads
    assert "32-true plain" in describe_autotune(decision.__dict__)
    check(tree)


def test_auto_is_refused_in_a_cell(refused: Refused) -> None:
    with refused():
        check(override(RUN, {"trainer.compile": "auto"}))


@pytest.mark.parametrize("name", ["attention", "compile"])
def test_null_is_no_setting(name: str, refused: Refused) -> None:
    with refused():
        check(override(RUN, {f"trainer.{name}": None}))


def experiment(tmp_path: Path, arm: Tree, common: Tree) -> Any:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(RUN))
    spec = {"base": "base.yaml", "baseline": "a", "seeds": 2, "common": common, "arms": {"a": {}, "b": arm}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    return load_experiment(tmp_path / "spec.yaml", {})


def test_auto_is_decided_once_for_all_arms(tmp_path: Path, speeds: dict[str, float], refused: Refused) -> None:
    speeds |= {"bf16-mixed": 0.5}
    found = with_autotuned_settings(
        experiment(tmp_path, {"model.norm": "RMSNorm"}, {"trainer.precision": "auto"}), tmp_path, 1
    )
    assert found.tree["trainer"]["precision"] == "bf16-mixed"
    assert found.autotuned is not None
    assert found.autotuned["chosen"] == {"precision": "bf16-mixed"}
    with refused():
        with_autotuned_settings(experiment(tmp_path, {"trainer.precision": "auto"}, {}), tmp_path, 1)


def test_a_damaged_file_of_decisions_is_named(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / WAYS_FILE).write_text("{}")
    with refused():
        chosen(tmp_path)


def test_too_few_seeds_are_refused_before_measuring(tmp_path: Path, speeds: dict[str, float], refused: Refused) -> None:
    few = experiment(tmp_path, {"model.norm": "RMSNorm"}, {"trainer.precision": "auto"})
    with refused():
        ablate(few, RunOptions(tmp_path))
    assert not (tmp_path / WAYS_FILE).exists()
