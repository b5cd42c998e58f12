"""How long a plan of 10,000 cells takes, and a report of 1,000 records, against what they may take.

Both are made up in a temporary folder: arms that differ in their parts and rates over a tiny base, of which nothing is
trained, and records as training leaves them, with curves of 100 steps and what was seen inside each model.
"""

import contextlib
import io
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from benchmarks.asked import Asked
from benchmarks.rows import Row, exactly, row
from lm.ablation.ablate import RunOptions, ablate
from lm.ablation.experiment import load_experiment
from lm.config.tree import Tree
from lm.report.write import write_report
from lm.store.files import curve_csv, to_json, write_atomic
from lm.store.formats import MANIFEST, RECORD
from lm.store.record import Inside, Record, Reliability
from lm.store.store import Store
from lm.store.validation import curve_checksum

SEEDS_OF_REPORT, STEPS, LAYERS, HEADS, BINS = 20, 100, 4, 4, 15
PLAN, REPORT = 10.0, 30.0
"""Seconds that a plan of 10,000 cells and a report of 1,000 records may take."""

OVER = "over its limit"

BASE: Tree = {
    "data": {
        "class_path": "TextData",
        "init_args": {
            "corpus": {"class_path": "MarkovText", "init_args": {"size": 20000}},
            "tokenizer": "Characters",
            "context": 16,
            "batch_size": 8,
            "split": [0.8, 0.1, 0.1],
        },
    },
    "model": {
        "class_path": "Decoder",
        "init_args": {
            "width": 16, "heads": 2, "layers": 2, "embedding": {}, "position": "Rope", "block": "PreNorm",
            "norm": "LayerNorm", "attention": "MultiHead", "mlp": "GELU", "initializer": "Normal",
        },
    },
    "optim": {
        "lr": 0.01,
        "optimizer": "AdamW",
        "schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 100}},
        "objective": "CrossEntropy",
    },
    "trainer": {"accelerator": "cpu", "max_steps": 1000, "val_check_interval": 100, "limit_val_batches": 2},
    "seed": 0,
}  # fmt: skip

PARTS: dict[str, list[Any]] = {
    "model.block": ["PreNorm", "PostNorm", "Sandwich", "ReZero"],
    "model.norm": ["LayerNorm", "RMSNorm"],
    "model.position": ["Rope", "Alibi", "Sinusoidal", "Learned", "NoPosition"],
    "model.mlp": ["GELU", "ReLU", "SwiGLU"],
    "optim.lr": [0.01, 0.003, 0.001],
}


def experiment(folder: Path, arms: int, seeds: int) -> Path:
    """An experiment file whose arms are the first combinations of PARTS."""
    combinations = itertools.islice(itertools.product(*PARTS.values()), arms)
    changes = {f"arm{n}": dict(zip(PARTS, one, strict=True)) for n, one in enumerate(combinations)}
    tree = {"base": "base.yaml", "baseline": "arm0", "arms": changes, "seeds": seeds, "confirmatory": False}
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    path = folder / "many.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def record(cell: str, seed: int, nll: float, losses: str, draw: np.random.Generator) -> Record:
    """A record as training leaves it, of a run with this validation NLL and this learning curve."""
    shares = np.full(BINS, 0.5 / nll)
    metrics: dict[str, float | None] = {
        "nll": nll,
        "perplexity": math.exp(nll),
        "bits_per_byte": nll / math.log(2),
        "accuracy": 0.5 / nll,
        "ece": float(draw.random()) / 10,
    }
    metrics |= {name: float(draw.random()) for name in ("brier", "train_loss", "gradient_norm", "test_nll")}
    metrics |= {f"{name}@{n}": nll + 1 / n for name in ("nll", "sliding_nll") for n in (16, 64)}
    diagram: Reliability = {
        "count": [100] * BINS, "confidence": (shares + metrics["ece"]).tolist(), "accuracy": shares.tolist()
    }  # fmt: skip
    lengths = {
        str(n): {"tokens": 512, "by_position": [nll + 1 / n] * n, **dict.fromkeys(("nll", "sliding_nll"), nll + 1 / n)}
        for n in (16, 64)
    }
    inside: Inside = {
        "gradient_norm": {
            kind: draw.random(LAYERS).tolist() for kind in ("query", "key", "value", "mlp_in", "mlp_out")
        },
        "entropy": draw.random((LAYERS, HEADS)).tolist(),
        "first_share": draw.random((LAYERS, HEADS)).tolist(),
        "largest_logit": draw.random((LAYERS, HEADS)).tolist(),
        "residual_norm": draw.random(LAYERS).tolist(),
    }
    packages = dict.fromkeys(("torch", "lightning", "numpy", "tokenizers", "datasets"), "1.0")
    return {
        "format": RECORD.version, "id": cell, "status": "ok", "error": None, "diverged": None, "steps": 1000,
        "metrics": metrics, "evaluated": {"split": "validation", "tokens": 100 * BINS}, "curve": curve_checksum(losses),
        "reliability": diagram,
        "initial": inside, "final": inside, "flags": [],
        "evaluations": {"lengths": lengths},
        "data": {
            "fingerprint": "f", "tokenizer": "t", "vocabulary": 100, "end_of_text": 0,
            "documents": {"train": 8}, "tokens": {"train": 9600}, "bytes": {"train": 9600}, "unknown": {"train": 0},
        },
        "pairing": {"order": f"of seed {seed}", "batches": 1000},
        "cost": {
            "parameters": 10_000, "flops_per_token": 60_000, "tokens": 128_000, "train_seconds": 9 + draw.random(),
            "evaluation_seconds": 1.0, "tokens_per_second": 14_000.0, "peak_memory": 100.0,
        },
        "provenance": {
            "lm": "1", "git": {"commit": "c", "dirty": False}, "device": "cpu", "precision": "32-true", "threads": 1,
            "packages": packages, "python": "3.11", "host": "here", "cores": 2, "code": None,
            "started": 0.0, "finished": 10.0, "resumed": False,
        },
    }  # fmt: skip


def history(nll: float) -> str:
    """A learning curve, with a gradient norm for each of many parts."""
    parts = [f"gradient_norm/part{n}" for n in range(20)]
    steps = range(10, 10 * STEPS + 1, 10)
    rows = {
        step: {"train_loss": nll + 9 / step, "validation_nll": nll + 10 / step, "gradient_norm": 1 + 1 / step}
        | {"validation_bits_per_byte": (nll + 10 / step) / math.log(2)}
        | dict.fromkeys(parts, 1 / step)
        for step in steps
    }
    return curve_csv(rows)


def results(out: Path, records: int) -> Path:
    """The folder of an experiment with so many finished cells."""
    store, draw = Store(out), np.random.default_rng(0)
    arms, seeds = [f"arm{n}" for n in range(records // SEEDS_OF_REPORT)], list(range(SEEDS_OF_REPORT))
    for arm, seed in itertools.product(arms, seeds):
        cell = f"{arm}-{seed}"
        nll = 2 + 0.1 * draw.normal()
        losses = history(nll)
        write_atomic(store.work(cell) / "history.csv", losses)
        store.finish(cell, record(cell, seed, nll, losses, draw))
    described: dict[str, Any] = {
        arm: {
            "changes": {} if arm == arms[0] else {"model.mlp": ["GELU", f"kind {arm}"]},
            "parameters": 10_000,
            "cells": {str(seed): f"{arm}-{seed}" for seed in seeds},
        }
        for arm in arms
    }
    first = {"format": 1, "name": "many", "title": "Many records", "notes": "", "baseline": arms[0], "metric": "nll"}
    folder = out / "many"
    manifest = MANIFEST.read({**first, "seeds": seeds, "arms": described}, folder)  # the rest as of an older version
    write_atomic(folder / "experiment.json", to_json(manifest))
    return folder


# what is measured ----------------------------------------------------------------------------------------------------


def scale(asked: Asked) -> list[Row]:
    """A row for the plan and one for the report."""
    arms, seeds, records = (4, 2, 40) if asked.quick else (250, 40, 1000)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        many = experiment(place, arms, seeds)
        planned = seconds(
            lambda: ablate(load_experiment(many, {}, None, ""), RunOptions(place / "out"), plan_only=True)
        )
        folder = results(place / "results", records)
        reported = seconds(lambda: write_report(folder, Console(file=io.StringIO(), width=200)))
    return [
        limited("planning", f"{arms * seeds:,} cells: {arms} arms with {seeds} seeds", planned, PLAN),
        limited("reporting", f"{records:,} records of {records // SEEDS_OF_REPORT} arms", reported, REPORT),
    ]


def limited(group: str, way: str, taken: float, limit: float) -> Row:
    """A row for what took so many seconds, compared with how many it may take."""
    note = OVER if taken > limit else ""
    return row(group, way, taken, to=f"a limit of {limit:zg} s", ratio=exactly(taken / limit), note=note)


def seconds(work: Callable[[], object]) -> float:
    """How long something takes whose own output is of no interest."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work()
    return time.perf_counter() - start
