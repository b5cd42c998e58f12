"""Experiments whose arms nobody vouches for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import ARM_NAMES, CELLS


@pytest.fixture
def hostile(experiment: Callable[..., Path]) -> Callable[..., Path]:
    """Makes an experiment whose arms have names that a browser would run; their cells are called otherwise."""

    def make(**manifest: Any) -> Path:
        folder = experiment(CELLS, **manifest)
        described = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        described["arms"] = {ARM_NAMES[arm]: one for arm, one in described["arms"].items()}
        if described.get("confirmatory"):
            described["confirmatory"] = [ARM_NAMES[arm] for arm in described["confirmatory"]]
        (folder / "experiment.json").write_text(json.dumps(described), encoding="utf-8")
        return folder

    return make
