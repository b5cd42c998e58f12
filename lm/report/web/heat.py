"""Data of the heat maps: gradients by part of the model and step, read from curves."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm.analysis.results import Results
from lm.report.web.numbers import Columns, columns, round5
from lm.store.files import unescape_formula
from lm.store.thin_curves import THIN_NAME

MOST_STEPS = 60
"""Largest number of steps of a heat map."""


def gradient_data(results: Results) -> Columns:
    """Return gradient norms by part of the model and step, averaged over the seeds that have them."""
    rows = []
    for index, arm in enumerate(results.arms):
        norms: dict[tuple[str, int, int], list[float]] = {}
        for record in results.of(arm):
            if record["status"] != "ok" or record["id"] in results.corrupt_curves:
                continue
            for row in gradients(results.store.history(record["id"])):
                norms.setdefault((row["part"], row["place"], row["step"]), []).append(row["norm"])
        for (part, order, step), values in norms.items():
            at = {"arm": index, "part": part, "place": order, "step": step}
            rows.append({**at, "norm": round5(np.mean(values)), "n": len(values)})
    return columns(rows)


def gradients(path: Path) -> list[dict[str, Any]]:
    """Read part, layer, step and norm from the file of a curve, at evenly spaced steps.

    Reads line by line: parsing all columns takes ten times as long, and most of them are not needed.
    """
    if not path.is_file() or path.name == THIN_NAME:
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        heads = [unescape_formula(name) for name in next(lines, [])]
        parts = {name: heads.index(column) for name, column in parts_of(heads).items()}
        if not parts or "step" not in heads:
            return []
        step, first = heads.index("step"), next(iter(parts.values()))
        selected = [line for line in lines if len(line) == len(heads) and line[first]]
    places = np.unique(np.linspace(0, max(0, len(selected) - 1), min(MOST_STEPS, len(selected))).astype(int))
    return [
        {"part": name, "place": order, "step": int(float(selected[at][step])), "norm": norm}
        for at in places
        for order, (name, column) in enumerate(parts.items())
        if (norm := round5(float(selected[at][column] or "nan")))
    ]


def parts_of(heads: Sequence[str]) -> dict[str, str]:
    """Return the parts of a model that have gradient columns, in order, and these columns.

    A part has others below it; `embedding` is a kind of matrix too, and the part's column `embedding.all`.
    """
    names = [name.removeprefix("gradient_norm/") for name in heads if name.startswith("gradient_norm/")]
    above = {name.rpartition(".")[0] for name in names}
    column_of = {}
    for name in names:
        part = name.removesuffix(".all")
        if part in above and (name != part or f"{name}.all" not in names) and not re.search(r"\.all\.", name):
            column_of[part] = f"gradient_norm/{name}"
    return column_of
