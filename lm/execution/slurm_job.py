"""A cell in a job of SLURM, on a machine that shares the results folder: what submitit starts there.

submitit pickles a `SlurmTask`, which is two strings. All else is JSON beside it: the order, the messages of the job,
one a line, and the answers to them.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm.config.tree import InputError
from lm.data.tokens import Facts
from lm.execution.executor import Outcome
from lm.execution.remote_worker import Message, RemoteWorker
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import CELL
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

LISTEN_SECONDS = 1.0
"""From one look at what a job is told to the next."""

PATIENCE = 100.0
"""Seconds that a job waits for the signal behind the end of its training: of a preemption comes SIGTERM first."""

ORDER, TOLD, ANSWERS = ".json", ".told", ".answers"
"""What the files of a cell end with in the folder of its executor."""

SCHEDULER = ("SLURM_", "SUBMITIT_")
"""Beginnings of variables that a cell's processes are not to see: Lightning would take the job for its own."""


class SlurmTask:
    """What submitit carries: the folder of an executor, and the id of the cell.

    Called in the job; preempted, it is handed in again as it is, for the cell goes on from its checkpoint.
    """

    def __init__(self, folder: str, cell: str) -> None:
        self.folder, self.cell = folder, cell

    def __call__(self) -> str:
        return run_order(Path(self.folder), self.cell)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


# mail ----------------------------------------------------------------------------------------------------------------


class FileMailbox:
    """Reads the lines of JSON that another process appends to a file; a line without its end is left for later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = 0

    def new(self) -> list[Any]:
        """What has come since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def send(path: Path, message: Any) -> None:
    """Appends a line of JSON, on the disk when this returns: another machine is to see it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message) + "\n")
        file.flush()
        os.fsync(file.fileno())


# orders --------------------------------------------------------------------------------------------------------------


def write_order(folder: Path, cell: Cell, execution: Execution, out: Path, name: str) -> None:
    """Leaves all that a job needs to know."""
    order = {
        "out": str(out.resolve()),
        "cell": CELL.stamped(asdict(cell)),
        "execution": asdict(execution),
        "name": name,
        "path": [os.path.abspath(place) for place in sys.path],
    }
    write_atomic(folder / (cell.id + ORDER), to_json(order))


def run_order(folder: Path, cell_id: str) -> str:
    """Trains the cell of an order and tells of it; returns how it ended."""
    path = folder / (cell_id + ORDER)
    order = read_json(path)
    sys.path += [place for place in order["path"] if place not in sys.path]
    described = CELL.read(order["cell"], path)
    cell = Cell(described["config"], Facts(**described["facts"]), described["id"])
    return run_cell(cell, Execution(**order["execution"]), Store(Path(order["out"])), order["name"], folder)


def run_cell(cell: Cell, execution: Execution, store: Store, name: str, folder: Path) -> str:
    """Trains a cell and tells of it; returns how it ended. Raises RuntimeError where something else has ended it."""
    told, answers = folder / (cell.id + TOLD), FileMailbox(folder / (cell.id + ANSWERS))
    cancelled = "cancel" in answers.new()  # other words there were for an earlier try
    if execution.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(execution.threads)
    worker = RemoteWorker(store)
    try:
        with unseen():
            worker.submit(cell, execution, name)
        if cancelled:
            worker.cancel()
        while True:
            messages: list[Message] = worker.poll(0.0 if worker.asked else LISTEN_SECONDS)
            for message in messages:
                end = message[1] if message[0] == "ended" else None
                if end == Outcome.INTERRUPTED.value and message[3] is None and not cancelled:
                    time.sleep(PATIENCE)
                    raise RuntimeError("what trained the cell was ended from outside")
                send(told, message)
                if end is not None:
                    return str(end)
            for word in answers.new():
                if word == "cancel":
                    cancelled = True
                    worker.cancel()
                else:
                    worker.answer(bool(word))
            if worker.asked:
                time.sleep(0.1)
    except InputError as error:
        send(told, ("waiting", str(error)))
        raise
    finally:
        worker.close()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """What is started in this block knows of no scheduler, and does not heed the signal that is meant for the job."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(SCHEDULER)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.environ.update(hidden)
