"""What stands in for the training of a cell: it imports no torch, and its steps are lines in a file."""

import faulthandler
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from records import blank

from lm.store import locks
from lm.store.leases import HeldError
from lm.store.record import Record
from lm.store.store import STACK, Store

STEPS = 20


@dataclass(frozen=True)
class StandIn:
    """What an executor knows of a cell; `deeds` are what is done before a step, each once.

    `validate` asks whether to go on, `raise` is an exception in training, `disk` a full disk, `hang` does nothing for
    ever, anything else a signal. A
    process that is `deaf` heeds no SIGTERM from then on.
    """

    id: str
    deeds: dict[int, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: {"trainer": {"devices": 1, "precision": None}})
    facts: Any = None


@dataclass(frozen=True)
class Asked:
    """How a cell is to be trained, as far as somebody asks here."""

    retrain: bool = False
    hang_seconds: float = 0.0
    run_name: str = ""
    branches: tuple[tuple[int, str], ...] = ()


def execution(retrain: bool = False, hang_seconds: float = 0.0) -> Any:
    return Asked(retrain, hang_seconds)


@dataclass(frozen=True)
class Outside:
    """What the training of a cell has to do with: who is told, who is asked, and who ends it."""

    tell: Callable[..., None]
    judge: Callable[[int, dict[str, float]], bool]
    end: Callable[[str], None]


def walk(cell: StandIn, store: Store, execution: Any, outside: Outside) -> bool:
    """Holds the cell, goes through its steps from where an earlier try was, and finishes it, unless it is stopped.

    Raises:
        HeldError: where another has the cell.
    """
    with store.lock(cell.id, wait=False):
        if not store.pending(cell.id, execution.retrain):
            return True
        work = store.work(cell.id)
        work.mkdir(parents=True, exist_ok=True)
        with (work / "tries").open("a") as file:
            file.write(".")
        steps = work / "steps"
        for step in range(len(steps.read_text()) if steps.is_file() else 0, STEPS):
            deed = _due(cell, step, work)
            if deed == "validate":
                if not outside.judge(step, {"nll": float(step)}):
                    shutil.rmtree(work)
                    return False
            elif deed == "raise":
                _finish(store, work, {**blank(cell.id, "failed"), "error": "RuntimeError: out of luck"})
                return True
            elif deed is not None:
                outside.end(deed)
            time.sleep(0.01)
            with steps.open("a") as file:
                file.write(".")
            outside.tell("progress", step + 1, STEPS, 0.0)
        _finish(store, work, {**blank(cell.id), "metrics": {"nll": 1.0}})
        return True


def _finish(store: Store, work: Path, record: Record) -> None:
    """Finishes the cell; how many steps it went through in all its tries is in its record, and how many tries."""
    walked, tries = (len((work / name).read_text()) if (work / name).is_file() else 0 for name in ("steps", "tries"))
    store.finish(record["id"], {**record, "steps": walked, "cost": {"tries": tries}})


def _due(cell: StandIn, step: int, work: Path) -> str | None:
    done = work / f"done-{step}"
    if step not in cell.deeds or done.exists():
        return None
    done.write_text(json.dumps(os.getpid()))
    return cell.deeds[step]


def train_one(pipe: Connection, cell: StandIn, store: Store, execution: Any, slot: int | None, devices: int) -> None:
    """The body of a process that stands in for one that trains a cell."""
    locks.FIRST_SECONDS = 0.05

    def tell(*message: Any) -> None:
        pipe.send(message)

    def judge(step: int, measured: dict[str, float]) -> bool:
        tell("validation", step, measured)
        return bool(pipe.recv())

    def end(deed: str) -> None:
        if deed == "disk":
            tell("disk", 28, "No space left on device", "a file")
            os._exit(0)
        if deed == "hang":
            with (store.work(cell.id) / STACK).open("w") as file:
                faulthandler.register(signal.SIGUSR1, file)
                while True:
                    time.sleep(1)
        if deed == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return
        os.kill(os.getpid(), getattr(signal, deed))

    try:
        walk(cell, store, execution, Outside(tell, judge, end))
    except HeldError:
        tell("held")


def tell_slot(pipe: Connection, cell: StandIn, store: Store, execution: Any, slot: int | None, devices: int) -> None:
    """The body of a process that says which place it was given, and trains nothing."""
    pipe.send(("waiting", f"slot {slot}"))
