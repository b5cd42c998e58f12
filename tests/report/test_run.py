"""What is printed of one run: its numbers with their units, its flags, and what was measured again."""

import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from messages import CheckMessage
from records import MakeExperiment
from rich.console import Console

from lm.analysis.results import load
from lm.report.run import show_evaluations, show_run

RELIABILITY = {"count": [1], "confidence": [0.5], "accuracy": [1.0]}


def printed(show: Callable[[Console], object]) -> list[str]:
    text = io.StringIO()
    show(Console(file=text, width=200))
    lines = re.sub("[│┃━┏┳┓┡╇┩└┴┘─]", " ", text.getvalue()).splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def test_a_run_is_shown_with_its_flags_and_its_lengths(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["flags"] = ["step 3: attention of layer 1 [collapsed]", "not evaluated further: no"]
        record["metrics"] |= {"test_nll": 2.25, "my_metric": 0.125, "nll@64": 2.5}

    store = load(experiment({"base": [2.0]}, change)).store
    check_message(printed(lambda console: show_run(store, "base-0", console)))


def test_a_record_without_flags_is_shown_all_the_same(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    store = load(experiment({"base": ["diverged"]})).store
    check_message(printed(lambda console: show_run(store, "base-0", console)))


def test_a_failed_run_says_where_to_read_why(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["traceback"] = None if seed == 2 else "Traceback (most recent call last):\n..."

    store = load(experiment({"base": ["failed", "failed", "failed", "diverged"]}, change)).store
    for seed, log in ((0, "Traceback (most recent call last):\n..."), (2, "Killed")):
        (store.directory(f"base-{seed}") / "log.txt").write_text(log)
    check_message([printed(partial(show_run, store, f"base-{seed}"))[1] for seed in range(4)])


def test_evaluations_are_shown_with_scaling_and_lengths(check_message: CheckMessage) -> None:
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
    check_message(printed(lambda console: show_evaluations(found, console)))
