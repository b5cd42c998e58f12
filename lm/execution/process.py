"""The body of a process that trains one cell, and what it tells the one that started it."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lm.store.disk import trouble
from lm.store.store import LOG, Store
from lm.training.cell import Cell
from lm.training.train import Execution, train


def train_one(cell: Cell, store: Store, execution: Execution, pipe: Connection, slot: int | None) -> None:
    """Trains a cell; `slot` chooses its accelerator, None leaves it all of them.

    Tells of `progress`, of a `validation`, which it wants answered, of whom it is `waiting` for, and of a `disk` that
    stopped it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if slot is not None and (names := accelerators_visible()):
        os.environ["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    # Lightning starts the other processes of a multi-device cell with this process's command line.
    work = store.work(cell.id)
    sys.argv = [str(Path(__file__).with_name("worker.py")), str(work), json.dumps(asdict(execution))]
    sys.modules["__main__"].__spec__ = None

    def tell(*message: Any) -> None:
        with contextlib.suppress(OSError):
            pipe.send(message)

    def judge(step: int, measured: Mapping[str, float]) -> bool:
        try:
            pipe.send(("validation", step, measured))
            return bool(pipe.recv())
        except (EOFError, OSError):  # the parent is gone
            os._exit(1)

    report = lambda *progress: tell("progress", *progress)  # noqa: E731
    try:
        train(cell, store, report, execution, judge, lambda line: tell("waiting", line), _log)
    except OSError as error:
        if (broken := trouble(error)) is None:
            raise
        tell("disk", broken.errno, broken.strerror, broken.filename)
        os._exit(0)  # nothing may be written any more, not even what a buffer holds


def _log(work: Path) -> None:
    """What this process prints goes into the cell's log from now on."""
    log = os.open(work / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def accelerators_visible() -> list[str]:
    """Names of the CUDA devices this process may use, found without starting CUDA in it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    return [str(index) for index in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]


def _die_with_parent() -> None:
    """Ends this process once the parent is gone: an orphan would hold the cell's lock.

    The parent is the process that gave the command. The fork server between the two may die without harm.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
