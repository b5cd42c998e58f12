"""Pointers to the log or traceback of a failed cell."""

from pathlib import Path

from lm.store.record import Ending
from lm.store.store import LOG, Store

TRACEBACK = "Traceback (most recent call last)"


def whereabouts(store: Store, record: Ending, folder: Path | None = None) -> str:
    """Return `; traceback in FOLDER/log.txt` for a failed cell, or where the log of a killed one is.

    A cell of an earlier version has its traceback only in its record.

    Args:
        store: store of the cell.
        record: record of the cell.
        folder: name to show for the cell's folder; by default its path in the store.
    """
    if record["status"] != "failed":
        return ""
    place = store.directory(record["id"])
    log, called = place / LOG, folder or place
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if record.get("traceback"):
        return f"; traceback in {called / (LOG if TRACEBACK in text else 'record.json')}"
    return f"; its last words in {called / LOG}" if text else ""
