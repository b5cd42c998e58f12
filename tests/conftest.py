"""What every test runs under, and results made up for the tests that read them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lm.store.files import to_json, write_atomic
from lm.store.formats import MANIFEST, RECORD, nothing_recorded
from lm.store.store import Store

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

ROOT = Path(__file__).resolve().parents[1]
BINS = 15


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared text goes to a folder of this session, not to the user's; workers of one session have it in common."""
    mine = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str((mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _threads() -> None:
    """As many as are asked for; imported here, for the process that only hands tests out to others needs no torch."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture(autouse=True)
def _seeded(_threads: None) -> None:
    """A test draws the same numbers whatever ran before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference data beside the repository."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the reference data in {folder}")
    return folder


Cells = dict[str, list[float | str | None]]
"""For each arm, what became of each seed's cell: a validation NLL, `diverged`, `failed`, or None: not trained yet."""

MakeExperiment = Callable[..., Path]


def record(cell: str, outcome: float | str, seed: int) -> dict[str, Any]:
    """A record as training leaves it; quantities beside the NLL are simple functions of it."""
    common = {
        **nothing_recorded(),
        "format": RECORD.version,
        "id": cell,
        "data": {"fingerprint": "f", "tokenizer": "t"},
        "provenance": {"git": {"commit": "c", "dirty": False}, "device": "cpu", "packages": {"torch": "2"}},
    }
    if outcome == "failed":
        return {**common, "status": "failed", "error": "RuntimeError: no", "metrics": {}, "cost": {}}
    ended_well = isinstance(outcome, float)
    nll = outcome if isinstance(outcome, float) else 1.0
    metrics = {
        "nll": nll,
        "perplexity": None,
        "bits_per_byte": 2 * nll,
        "accuracy": 1 / nll,
        "ece": 0.01,
        "train_loss": nll - 0.1,
        "gradient_norm": 1.0,
    }
    reliability = {"count": [10 * (m + 1) for m in range(BINS)], "confidence": [(m + 0.5) / BINS for m in range(BINS)]}
    return {
        **common,
        "status": "ok" if ended_well else "diverged",
        "error": None if ended_well else "loss not finite at step 3",
        "metrics": metrics if ended_well else {},
        "evaluated": {"split": "validation", "tokens": 1200 if ended_well else None, "blocks": 100},
        "reliability": {**reliability, "accuracy": [m / BINS for m in range(BINS)]} if ended_well else None,
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


@pytest.fixture
def experiment(tmp_path: Path) -> MakeExperiment:
    """Makes a store of invented cells and the experiment's folder in it; the first arm is the baseline.

    `change(arm, seed, record)` may alter a record before it is stored.
    """

    def make(
        cells: Cells, change: Callable[[str, int, dict[str, Any]], None] = lambda *_: None, **manifest: Any
    ) -> Path:
        store, folder = Store(tmp_path / "out"), tmp_path / "out" / "demo"
        seeds = list(range(max(map(len, cells.values()))))
        for arm, outcomes in cells.items():
            for seed, outcome in enumerate(outcomes):
                if outcome is None:
                    continue
                stored = record(f"{arm}-{seed}", outcome, seed)
                change(arm, seed, stored)
                if stored["status"] == "ok":
                    lines = [f"{step},{stored['metrics']['nll'] + 10 / step},{step / 10}\n" for step in (10, 20, 30)]
                    curve = "step,validation_nll,gradient_norm\n" + "".join(lines)
                    write_atomic(store.work(stored["id"]) / "history.csv", curve)
                store.finish(stored["id"], stored)
        described = {
            "format": 1,
            "name": "demo",
            "title": "A demonstration",
            "notes": "",
            "baseline": next(iter(cells)),
            "metric": "nll",
            "seeds": seeds,
            "arms": {
                arm: {
                    "changes": {} if arm == next(iter(cells)) else {"model.block": ["PostNorm", "PreNorm"]},
                    "parameters": 1000,
                    "cells": {str(seed): f"{arm}-{seed}" for seed in seeds},
                }
                for arm in cells
            },
            **manifest,
        }
        write_atomic(
            folder / "experiment.json",
            to_json(MANIFEST.read(described, folder) if described["format"] == 1 else described),
        )
        return folder

    return make
