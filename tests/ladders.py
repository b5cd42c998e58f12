"""Ladders of invented cells, for the tests that read them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from records import record

from lm.store.files import to_json, write_atomic
from lm.store.formats import LADDER, MANIFEST
from lm.store.store import Store

COMPUTE = (1e12, 8e12, 6e13, 4e14)
NAMES = ("s", "m", "l", "xl")

RATE = {"rate": 0.01, "curve": "rates", "lower": 0.005, "higher": 0.02, "seeds": 2}

Outcome = Callable[[str, int, int], float | str | None]
"""What became of the cell of an arm, at a rung by its place, with a seed."""


def loss(compute: float) -> float:
    """A law that is known."""
    return 1.2 + 0.55 * (compute / 2e13) ** -0.16


def usual(arm: str, place: int, seed: int) -> float:
    """An arm that is worth 1.3 of the baseline's compute everywhere; seeds scatter by .5 %."""
    noise = np.random.default_rng([place, seed]).normal(size=2) * 0.005
    gain = 1.3 if arm == "arm" else 1.0
    return float(loss(COMPUTE[place] * gain) * (1 + noise[0] + 0.4 * noise[1] * (arm == "arm")))


def make_ladder(
    out: Path,
    outcome: Outcome = usual,
    seeds: tuple[int, ...] = (6, 6, 6, 6),
    change: Callable[[str, int, int, Any], None] = lambda *_: None,
    of_rungs: Any = None,
    bracketed: Mapping[str, Sequence[str]] = MappingProxyType({}),
    arms: Sequence[str] = ("base", "arm"),
    names: Sequence[str] = NAMES,
    compute: Sequence[float] = COMPUTE,
    lengths: Sequence[dict[str, Any]] = (),
    **manifest: Any,
) -> Path:
    """A store with the cells of a ladder called `climb`, as many rungs as `seeds` has numbers; returns its folder.

    The first of `arms` is called base, and is the baseline. `bracketed` says of which arms a curve brackets the rate,
    by rung; of all where it does not say. `lengths` adds to each rung what a ladder of several lengths has.
    """
    store, rungs = Store(out), []
    for place, count in enumerate(seeds):
        name = names[place]
        for arm in arms:
            for seed in range(count):
                found = outcome(arm, place, seed)
                if found is not None:
                    stored = record(f"{name}-{arm}-{seed}", found, seed)
                    change(arm, place, seed, stored)
                    store.finish(stored["id"], stored)
        described: Any = {
            "format": 1,
            "name": f"climb.{name}",
            "title": f"A climb, rung {name}",
            "notes": "",
            "baseline": "base",
            "metric": "nll",
            "seeds": list(range(count)),
            "arms": {
                arm: {
                    "changes": {} if arm == "base" else {"model.mlp": ["GELU", "SwiGLU"]},
                    "cells": {str(seed): f"{name}-{arm}-{seed}" for seed in range(count)},
                }
                for arm in arms
            },
        }
        write_atomic(
            out / f"climb.{name}" / "experiment.json", to_json({**MANIFEST.read(described, out), **(of_rungs or {})})
        )
        rung = {"name": name, "experiment": f"climb.{name}", "seeds": list(range(count)), "parameters": 10**place}
        rates = {arm: RATE if arm in bracketed.get(name, arms) else {**RATE, "curve": None} for arm in arms}
        of_arms = dict.fromkeys(arms, compute[place])
        whole_rung = {**rung, "tokens": 100, "steps": 10, "compute": of_arms, "rates": rates}
        rungs.append({**whole_rung, **(lengths[place] if lengths else {})})
    whole = {
        "name": "climb",
        "title": "A climb",
        "notes": "What it is about.",
        "command": None,
        "baseline": "base",
        "arms": list(arms),
        "metric": "nll",
        "margin": {"difference": 0.02, "gain": 1.2},
        "forecast": True,
        "rungs": rungs,
        **manifest,
    }
    write_atomic(out / "climb" / "ladder.json", to_json(LADDER.stamped(whole)))
    return out / "climb"


SIZES, RATIOS = {"s": 50_000, "m": 150_000, "l": 400_000}, (5, 10, 20)
DATA_GAIN = 1.3


def of_size_and_length(parameters: float, tokens: float) -> float:
    """A law of size and length that is known."""
    return 1.0 + 0.35 * (parameters / 150_000) ** -0.4 + 0.35 * (tokens / 1.5e6) ** -0.35


def make_lengths(
    out: Path,
    ratios: Mapping[str, Sequence[float]] = MappingProxyType(dict.fromkeys(SIZES, RATIOS)),
    seeds: int = 6,
    change: Callable[[str, int, float], float | str | None] = lambda arm, place, loss: loss,
    **how: Any,
) -> Path:
    """A ladder of sizes, each at several tokens a parameter, whose arm is worth 1.3 of the baseline's tokens."""
    points = [(size, ratio) for size in ratios for ratio in ratios[size]]
    names = [size if ratio == ratios[size][0] else f"{size}.x{ratio:g}" for size, ratio in points]
    lengths: list[dict[str, Any]] = []
    for size, ratio in points:
        of_arm = {"parameters": SIZES[size], "tokens": round(SIZES[size] * ratio)}
        lengths.append(
            {**of_arm, "size": size, "tokens_per_parameter": ratio, "sizes": {"base": of_arm, "arm": of_arm}}
        )

    def outcome(arm: str, place: int, seed: int) -> float | str | None:
        noise = np.random.default_rng([place, seed]).normal(size=2) * 0.002
        tokens = lengths[place]["tokens"] * (DATA_GAIN if arm == "arm" else 1)
        loss = of_size_and_length(lengths[place]["parameters"], tokens)
        return change(arm, place, float(loss * (1 + noise[0] + 0.4 * noise[1] * (arm == "arm"))))

    compute = [6.0 * of["parameters"] * of["tokens"] for of in lengths]
    return make_ladder(out, outcome, (seeds,) * len(points), names=names, compute=compute, lengths=lengths, **how)
