"""What was measured once for a folder of results and holds for all that is trained into it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.tree import InputError
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import WAYS

FILE = "ways.json"


def kept(path: Path, kind: str) -> dict[str, Any]:
    """What was measured for the results folder whose file is at `path`, by the question. Raises InputError."""
    found = WAYS.read(read_json(path), path).get(kind, {}) if path.is_file() else {}
    if not isinstance(found, dict):
        raise InputError(f"{path}: {kind}: is damaged; delete it, and it is measured anew")
    return found


def keep(path: Path, kind: str, known: Mapping[str, Any]) -> None:
    """Puts what is known of one kind into that file, beside what it holds of others."""
    before = WAYS.read(read_json(path), path) if path.is_file() else {}
    write_atomic(path, to_json(WAYS.stamped({**before, kind: dict(known)})))
