"""What was measured once for a folder of results and holds for all that is trained into it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lm.config.tree import InputError
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import WAYS
from lm.store.locks import locked

FILE = "ways.json"


def kept(path: Path, kind: str) -> dict[str, Any]:
    """What was measured for the results folder whose file is at `path`, by the question. Raises InputError."""
    found = WAYS.read(read_json(path), path).get(kind, {}) if path.is_file() else {}
    if not isinstance(found, dict):
        raise InputError(f"{path}: {kind}: is damaged; delete it, and it is measured anew")
    return found


def measured_once(path: Path, kind: str, question: str, measure: Callable[[], Any]) -> Any:
    """What is known of a question; where nothing is, it is measured and kept.

    One process of a folder measures at a time: another would be slowed by it, and might come to another answer.
    Raises InputError.
    """
    if question in (known := kept(path, kind)):
        return known[question]
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), f"what another command measures for {path}"):
        if question in (known := kept(path, kind)):
            return known[question]
        found = measure()
        keep(path, kind, {**known, question: found})
    return found


def keep(path: Path, kind: str, known: Mapping[str, Any]) -> None:
    """Puts what is known of one kind into that file, beside what it holds of others."""
    before = WAYS.read(read_json(path), path) if path.is_file() else {}
    write_atomic(path, to_json(WAYS.stamped({**before, kind: dict(known)})))
