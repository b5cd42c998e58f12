"""Thin learning curves: the columns that tables and first figures need, as one small file that checks itself.

A learning curve has a column for each part of the model, most of a pack's bytes. A thin one keeps the training loss and
the gradient norm at five significant digits, and all that validations measured as it was written, to the last digit.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.tree import InputError
from lm.store.files import read_json
from lm.store.formats import THIN_CURVE

THIN_NAME = "history.thin.json"  # name of the file in the folder of a cell, beside or in place of `history.csv`

ROUNDED = ("train_loss", "gradient_norm")  # names of columns that are kept at five significant digits
EXACT = ("step", "tokens", "validation_")  # beginnings of the names of columns that are kept as written


def thin_curve(content: str) -> bytes:
    """Make a thin curve of the text of a `history.csv`; rows without any of its values are left out."""
    rows = list(csv.DictReader(io.StringIO(content)))
    names = [name for name in rows[0] if name in ROUNDED or name.startswith(EXACT)] if rows else []
    measured = [row for row in rows if any(row[name] for name in names if name not in ("step", "tokens"))]
    columns = {name: [_number(row[name], rounded=name in ROUNDED) for row in measured] for name in names}
    thin = {"of": hashlib.sha256(content.encode()).hexdigest(), "columns": columns}
    stamped = THIN_CURVE.stamped({**thin, "checksum": _checksum(thin)})
    return (json.dumps(stamped, separators=(",", ":")) + "\n").encode()


def read_thin_curve(path: Path) -> dict[str, Any]:
    """Read a thin curve, the hash it is `of` and its `columns` of one length; raise InputError if it is damaged."""
    thin: dict[str, Any] = THIN_CURVE.read(read_json(path), path)
    columns = thin.get("columns")
    if thin.get("checksum") != _checksum({name: thin.get(name) for name in ("of", "columns")}):
        raise InputError(f"{path}: its content does not match its checksum")
    if not isinstance(columns, dict) or "step" not in columns or len({len(column) for column in columns.values()}) != 1:
        raise InputError(f"{path}: expected columns of one length, step among them")
    return thin


def validate_thin_curve(path: Path, record: Mapping[str, Any]) -> str:
    """Describe what is wrong with the thin curve of a finished run; empty if nothing is."""
    try:
        thin = read_thin_curve(path)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ")
    checksum, last = (record.get("curve") or {}).get("sha256"), record.get("steps")
    if checksum is not None and checksum != thin["of"]:
        return "was made of another curve: its hash differs from the record's"
    steps = thin["columns"]["step"]
    if last is not None and (not steps or steps[-1] != last):
        return f"ends at step {steps[-1] if steps else 0}, expected {last:,}"
    return ""


def _checksum(thin: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(thin, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _number(text: str, rounded: bool) -> float | None:
    number = float(text or "nan")
    if not math.isfinite(number):
        return None
    number = float(f"{number:z.5g}") if rounded else number
    return int(number) if number.is_integer() and "." not in text else number
