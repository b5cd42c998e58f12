"""What a cell of an experiment takes beyond its training: evaluation, its process, what lies between cells."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.asked import Asked
from benchmarks.rows import Row, rows_of
from benchmarks.sizes import SMALLEST
from lm.config.tree import Tree
from lm.store.files import read_json, write_atomic

TRAINING = "training"
QUICKSTART = Path(__file__).parents[1] / "experiments" / "quickstart.yaml"


def cells(asked: Asked) -> list[Row]:
    """Seconds of a cell of the quickstart as it is shipped, by what they went into; ratios are to its training."""
    with tempfile.TemporaryDirectory() as name:
        place, experiment = Path(name), QUICKSTART
        seeds = 1 if asked.quick else 2
        if asked.quick:
            experiment = place / "short.yaml"
            write_atomic(place / "base.yaml", yaml.safe_dump(SMALLEST.cell().config, sort_keys=False))
            write_atomic(experiment, yaml.safe_dump(shortened(20, seeds), sort_keys=False))
        command = [sys.executable, "-P", "-m", "lm", "ablate", str(experiment), "--seeds", str(seeds), "--underpowered"]
        begun = time.perf_counter()
        done = subprocess.run(
            [*command, "--workers", "1", "--out", str(place / "out")],
            capture_output=True,
            text=True,
            env=asked.environment(),
        )
        wall = time.perf_counter() - begun
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no word"]
            raise RuntimeError(f"lm ablate ended with code {done.returncode}: {last[0]}")
        records = [read_json(path) for path in sorted((place / "out" / "cells").glob("*/record.json"))]
    group = f"a cell of the quickstart{' at its smallest' * asked.quick}: {len(records)}, one after the other"
    return rows_of(group, portions(records, wall), TRAINING)


def shortened(steps: int, seeds: int) -> Tree:
    """An experiment of two arms at a given length, validated four times."""
    return {
        "title": "Two arms",
        "base": "base.yaml",
        "baseline": "post_norm",
        "seeds": seeds,
        "confirmatory": False,
        "common": {"trainer.max_steps": steps, "trainer.val_check_interval": max(1, steps // 4)},
        "arms": {"post_norm": {"model.block": "PostNorm"}, "pre_norm": {"model.block": "PreNorm"}},
    }


def portions(records: list[dict[str, Any]], wall: float) -> dict[str, list[float]]:
    """Seconds of each cell by what they went into, of `wall` seconds that the command took over all of them.

    What no cell has spent, the command's own start and its report, is shared out among them evenly.
    """
    found: dict[str, list[float]] = {}
    inside = [float(one["provenance"]["seconds"]) for one in records]
    between = (wall - sum(inside)) / len(records)
    for one, whole in zip(records, inside, strict=True):
        training, evaluation = one["cost"]["train_seconds"], one["cost"]["evaluation_seconds"]
        spent = {
            TRAINING: training,
            "evaluation": evaluation,
            "the rest in its process": whole - training - evaluation,
            "its share of what the command does besides": between,
            "all of it": whole + between,
        }
        for name, seconds in spent.items():
            found.setdefault(name, []).append(seconds)
    return found
