"""A process that stands in for one that trains a cell: it imports no torch, and its steps are lines in a file."""

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lm import locks
from lm.formats import RECORD
from lm.results import Store

STEPS = 20


@dataclass(frozen=True)
class StandIn:
    """What the crew knows of a cell; `deeds` are what its process does at a step, each once."""

    id: str
    deeds: dict[int, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: {"trainer": {"devices": 1, "precision": None}})
    facts: Any = None


def execution(again: bool = False) -> Any:
    return SimpleNamespace(again=again)


def train_one(cell: StandIn, store: Store, execution: Any, pipe: Connection, slot: int | None) -> None:
    """Holds the cell, goes through its steps from where an earlier try was, and finishes it."""
    locks.FIRST_SECONDS = 0.05
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with store.lock(cell.id, lambda line: pipe.send(("waiting", line))):
        if not store.pending(cell.id, execution.again):
            return
        work = store.work(cell.id)
        work.mkdir(parents=True, exist_ok=True)
        with (work / "tries").open("a") as file:
            file.write(".")
        steps = work / "steps"
        for step in range(len(steps.read_text()) if steps.is_file() else 0, STEPS):
            _do(cell.deeds.get(step), work / f"done-{step}", pipe)
            time.sleep(0.01)
            with steps.open("a") as file:
                file.write(".")
            pipe.send(("progress", step + 1, STEPS, 0.0))
        record = {"format": RECORD.version, "status": "ok", "walked": steps.read_text(), "metrics": {"nll": 1.0}}
        store.finish(cell.id, {**record, "tries": len((work / "tries").read_text())})


def _do(deed: str | None, done: Path, pipe: Connection) -> None:
    if deed is None or done.exists():
        return
    done.write_text(json.dumps(os.getpid()))
    if deed == "disk":
        pipe.send(("disk", 28, "No space left on device", str(done)))
        os._exit(0)
    os.kill(os.getpid(), getattr(signal, deed))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
