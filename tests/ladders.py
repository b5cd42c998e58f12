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
    **manifest: Any,
) -> Path:
    """A store with the cells of a ladder called `climb`, as many rungs as `seeds` has numbers; returns its folder.

    The first of `arms` is called base, and is the baseline. `bracketed` says of which arms a curve brackets the rate,
    by rung; of all where it does not say.
    """
    store, rungs = Store(out), []
    for place, count in enumerate(seeds):
        name = NAMES[place]
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
        compute = dict.fromkeys(arms, COMPUTE[place])
        rungs.append({**rung, "tokens": 100, "steps": 10, "compute": compute, "rates": rates})
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
