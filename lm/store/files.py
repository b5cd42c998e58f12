"""How files of a results folder are written and read: whole, or not at all."""

import contextlib
import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, require_regular
from lm.store.disk import named
from lm.store.holders import is_of_the_dead, signature
from lm.store.leases import guarding
from lm.store.spreadsheet import marked


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file under a temporary name and renames it, so that a reader never sees half of it.

    Raises:
        LostError: where a lease of this process guards the folder, and another has taken it over.
    """
    lease = guarding(path.parent)
    place = path.parent if lease is None else lease.room(path.parent)
    place.mkdir(parents=True, exist_ok=True)
    if lease is None:  # a room is taken away whole
        _sweep(path)
    data, name = content.encode() if isinstance(content, str) else content, ""
    try:
        descriptor, name = tempfile.mkstemp(dir=place, prefix=f".{path.name}.{signature()}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        if lease is not None:
            lease.check()
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if lease is not None and isinstance(error, FileNotFoundError):
            lease.check()
        if isinstance(error, OSError):
            raise named(error, path) from error
        raise


def _sweep(path: Path) -> None:
    """Removes what processes of this machine that were killed left of earlier tries at writing a file."""
    prefix = f".{path.name}."
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and is_of_the_dead(name.removeprefix(prefix).partition(".")[0]):
            (path.parent / name).unlink(missing_ok=True)


def to_json(value: Any) -> str:
    """Indented JSON with a final newline; NaN is refused, a missing number is null."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """`value` with numbers that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return value


def curve(rows: Mapping[int, Mapping[str, float]]) -> str:
    """A learning curve as CSV: one line a step, a column for everything measured at any step."""
    columns = list(dict.fromkeys(name for step in sorted(rows) for name in rows[step]))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["step", *map(marked, columns)])
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    for step in sorted(rows):
        writer.writerow({"step": step, **rows[step]})
    return text.getvalue()


def read_json(path: Path) -> Any:
    """The JSON in `path`. Raises InputError naming the file."""
    try:
        require_regular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


def sound(path: Path) -> bool:
    """Whether a file holds a mapping of JSON, as one that was torn does not."""
    try:
        return isinstance(read_json(path), dict)
    except InputError:
        return False
