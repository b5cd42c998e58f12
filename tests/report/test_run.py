"""What is printed of one run: its numbers with their units, its flags, and what was measured again."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from lm.analysis.results import load
from lm.report.run import show_evaluations, show_run

RELIABILITY = {"count": [1], "confidence": [0.5], "accuracy": [1.0]}


def printed(show: Callable[[Console], object]) -> list[str]:
    text = io.StringIO()
    show(Console(file=text, width=200))
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_a_run_is_shown_with_its_flags_and_its_lengths(experiment: Callable[..., Path]) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["flags"] = ["step 3: attention of layer 1 [collapsed]", "not evaluated further: no"]
        record["metrics"] |= {"test_nll": 2.25, "my_metric": 0.125, "nll@64": 2.5}

    store = load(experiment({"base": [2.0]}, change)).store
    lines = printed(lambda console: show_run(store, "base-0", console))
    assert lines[:3] == [
        f"ok: {store.directory('base-0')}",
        "flag: step 3: attention of layer 1 [collapsed]",
        "flag: not evaluated further: no",
    ]
    for line in ("validation NLL 2.0000 nats/token", "test NLL 2.2500 nats/token", "parameters 1,000"):
        assert line in lines
    assert "my_metric 0.1250" in lines
    assert "validation NLL, blocks of 64 tokens 2.5000 nats/token" in lines


def test_a_record_without_flags_is_shown_all_the_same(experiment: Callable[..., Path]) -> None:
    store = load(experiment({"base": ["diverged"]})).store
    lines = printed(lambda console: show_run(store, "base-0", console))
    assert lines[:2] == [f"diverged: {store.directory('base-0')}", "loss not finite at step 3"]
    assert not any(line.startswith("flag") for line in lines)


def test_a_failed_run_says_where_to_read_why(experiment: Callable[..., Path]) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["traceback"] = None if seed == 2 else "Traceback (most recent call last):\n..."

    store = load(experiment({"base": ["failed", "failed", "failed", "diverged"]}, change)).store
    for seed, log in ((0, "Traceback (most recent call last):\n..."), (2, "Killed")):
        (store.directory(f"base-{seed}") / "log.txt").write_text(log)
    said = [printed(partial(show_run, store, f"base-{seed}"))[1] for seed in range(4)]
    folders = [store.directory(f"base-{seed}") for seed in range(4)]
    assert said == [
        f"RuntimeError: no; traceback in {folders[0]}/log.txt",
        f"RuntimeError: no; traceback in {folders[1]}/record.json",  # of a version whose logs have none
        f"RuntimeError: no; last lines in {folders[2]}/log.txt",
        "loss not finite at step 3",
    ]


def test_evaluations_are_shown_with_scaling_and_lengths() -> None:
    scaled = {"temperature": 1.25, "validation_nll": [2.5, 2.25], "argmax_changed": 0, "nll": 1.75, "ece": 0.01}
    split = {"nll": 2.0, "ece": 0.125, "accuracy": 0.5, "reliability": RELIABILITY}
    found: dict[str, dict[str, Any]] = {
        "test": {**split, "scaled": scaled},
        "validation": {**split, "scaled": None},
        "lengths": {
            "8": {"tokens": 1024, "nll": 2.5, "sliding_nll": 2.25},
            "16": {"error": "context [16] is too long"},
        },
        "test of abc": {**split, "scaled": None, "text": {"unknown_share": 0.125}},
    }
    lines = printed(lambda console: show_evaluations(found, console))
    for line in (
        "NLL 2.0000 nats/token 1.7500 nats/token",
        "ECE, 15 bins 0.1250 0.0100",
        "accuracy 0.5000",
        "validation NLL 2.5000 nats/token 2.2500 nats/token",
        "temperature fitted on validation 1 1.2500",
        "8 2.5000 nats/token 2.2500 nats/token 1,024",
        "16 context [16] is too long",
        "unknown tokens 12.50%",
        "test of abc",
    ):
        assert line in lines, line
