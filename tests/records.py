"""Records as training leaves them, made up for the tests that read them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm.store.formats import RECORD
from lm.store.record import Inside, Provenance, Record, Status, Text

BINS = 15

BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95]
BETTER = [1.7, 1.85, 1.68, 1.8, 1.92, 1.66]
MIXED = [2.1, 2.0, 1.95, 2.0, 2.3, 1.9]
"""Losses of six seeds: of a baseline, of an arm that is better on each, and of one that is not."""

MakeExperiment = Callable[..., Path]
"""The type of the fixture `experiment`."""

IMAGE, SCRIPT = "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"
ARM_NAMES = {"base": "base", "image": IMAGE, "script": SCRIPT}
"""Names of arms that a browser would run, by those that may be part of a cell's id."""

CELLS: dict[str, list[Any]] = {
    "base": [2.0, 2.1, 1.9, 2.05, 2.02, 1.97],
    "image": [1.9, 1.8, 1.7, 1.75, 1.72, 1.68],
    "script": [2.1, "diverged", None, None, None, None],
}
"""What became of the cells of these arms."""


def text() -> Text:
    """What a text came to, in round numbers."""
    return {
        "fingerprint": "f",
        "tokenizer": "t",
        "vocabulary": 100,
        "documents": {"train": 8, "validation": 1, "test": 1},
        "tokens": {"train": 9600, "validation": 1200, "test": 1200},
        "bytes": {"train": 19200, "validation": 2400, "test": 2400},
        "unknown": {"train": 0, "validation": 0, "test": 0},
        "end_of_text": 0,
    }


def provenance() -> Provenance:
    """One checkout, one machine."""
    return {
        "lm": "1",
        "git": {"commit": "c", "dirty": False},
        "packages": {"torch": "2"},
        "python": "3.11",
        "host": "here",
        "cores": 2,
        "threads": 1,
        "device": "cpu",
        "precision": "32-true",
        "code": None,
        "started": 0.0,
        "finished": 3.0,
        "resumed": False,
    }


def blank(cell: str = "cell", status: Status = "ok") -> Record:
    """The record of a cell that has nothing to say but how it ended."""
    return {
        "format": RECORD.version,
        "id": cell,
        "status": status,
        "error": None,
        "diverged": None,
        "steps": None,
        "metrics": {},
        "evaluated": None,
        "reliability": None,
        "initial": None,
        "final": None,
        "flags": [],
        "evaluations": {},
        "cost": {},
        "pairing": None,
        "curve": None,
        "data": text(),
        "provenance": provenance(),
    }


def inside(
    gradient_norm: dict[str, list[float]], entropy: list[list[float]], residual_norm: list[float] | None = None
) -> Inside:
    """A model of as many layers and heads as `entropy` has; what is not given is as in a healthy one."""
    return {
        "entropy": entropy,
        "first_share": [[0.1 for _ in heads] for heads in entropy],
        "largest_logit": [[2.0 for _ in heads] for heads in entropy],
        "residual_norm": residual_norm or [1.0 + layer for layer in range(len(entropy))],
        "gradient_norm": gradient_norm,
    }


def record(cell: str, outcome: float | str, seed: int) -> Record:
    """Of a run with this validation NLL, of which the rest is a simple function, or that `diverged` or `failed`."""
    if outcome == "failed":
        return {**blank(cell, "failed"), "error": "RuntimeError: no"}
    ended_well = isinstance(outcome, float)
    found: Record = {
        **blank(cell, "ok" if ended_well else "diverged"),
        "evaluated": {"split": "validation", "tokens": 1200 if ended_well else None},
        "cost": {
            "parameters": 1000,
            "tokens": 5000 if ended_well else 50,
            "train_seconds": 2.0,
            "evaluation_seconds": 1.0,
            "tokens_per_second": 2500.0 if ended_well else 25.0,
            "peak_memory": 64.0,
        },
        "pairing": {"order": f"order of seed {seed}", "batches": 10},
    }
    if not isinstance(outcome, float):
        last: dict[str, float | None] = {"train_loss": 9.0, "gradient_norm": 100.0}
        return {**found, "error": "loss not finite at step 3", "diverged": {"step": 3, "last_finite": last}}
    accuracy = min(1.0, 1 / max(outcome, 1e-9))
    return {
        **found,
        "metrics": {
            "nll": outcome,
            "perplexity": None,
            "bits_per_byte": 2 * outcome,
            "accuracy": accuracy,
            "ece": 0.01,
            "train_loss": outcome - 0.1,
            "gradient_norm": 1.0,
        },
        "reliability": {
            "count": [10 * (m + 1) for m in range(BINS)],
            "confidence": [accuracy - 0.01 for _ in range(BINS)],
            "accuracy": [accuracy for _ in range(BINS)],
        },
    }


def make_manifest(name: str, title: str, arms: Sequence[str], seeds: Sequence[int], /, **more: Any) -> dict[str, Any]:
    """The manifest of an experiment whose first arm is the baseline, and whose cells are called ARM-SEED."""
    return {
        "format": 1,
        "name": name,
        "title": title,
        "notes": "",
        "baseline": arms[0],
        "metric": "nll",
        "seeds": list(seeds),
        "arms": {
            arm: {
                "changes": {} if arm == arms[0] else {"model.block": ["PostNorm", "PreNorm"]},
                "parameters": 1000,
                "cells": {str(seed): f"{arm}-{seed}" for seed in seeds},
            }
            for arm in arms
        },
        **more,
    }
