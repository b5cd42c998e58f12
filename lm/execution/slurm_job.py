"""Body of a SLURM job, which trains a cell on a machine that shares the results folder.

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
from lm.data.tokens import TextStats
from lm.execution.executor import CANCEL, Outcome
from lm.execution.local import RemoteWorker
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import CELL
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.process import Execution

LISTEN_SECONDS = 1.0
"""Time between two reads of the answers."""

PATIENCE = 100.0
"""Seconds that a job waits for the signal after the end of its training: in a preemption, SIGTERM comes first."""

ORDER, MESSAGES, ANSWERS = ".json", ".told", ".answers"
"""Suffixes of the files of a cell in the folder of its executor."""

SCHEDULER = ("SLURM_", "SUBMITIT_")
"""Prefixes of variables that are hidden from the processes of a cell: Lightning would take the job for its own."""


class SlurmTask:
    """Task that submitit pickles: the folder of an executor, and the id of the cell.

    Called in the job. A preempted job is submitted again as it is, and the cell resumes from its checkpoint.
    """

    def __init__(self, folder: str, cell: str) -> None:
        self.folder, self.cell = folder, cell

    def __call__(self) -> str:
        """Train the cell on the machine of the job, and return how it ended."""
        return run_order(Path(self.folder), self.cell)

    def checkpoint(self) -> Any:
        """Return the task that SLURM queues again after a preemption."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


# mail ----------------------------------------------------------------------------------------------------------------


class FileMailbox:
    """Reader of the JSON lines that another process appends to a file; an incomplete line is left for later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = 0

    def new(self) -> list[Any]:
        """Return the messages since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                text = file.read()
        except FileNotFoundError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self.read += len(complete)
        return [json.loads(line) for line in complete.splitlines()]


def send(path: Path, message: Any) -> None:
    """Append a line of JSON and sync it to disk, as another machine reads it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message) + "\n")
        file.flush()
        os.fsync(file.fileno())


# orders --------------------------------------------------------------------------------------------------------------


def write_order(folder: Path, cell: Cell, execution: Execution, out: Path, name: str) -> None:
    """Write all that a job needs to know."""
    order = {
        "out": str(out.resolve()),
        "cell": CELL.stamped(asdict(cell)),
        "execution": asdict(execution),
        "name": name,
        "path": [os.path.abspath(folder) for folder in sys.path],
    }
    write_atomic(folder / (cell.id + ORDER), to_json(order))


def run_order(folder: Path, cell_id: str) -> str:
    """Train the cell of an order, report its messages, and return how it ended.

    Raises:
        RuntimeError: if something outside has ended the training.
    """
    path = folder / (cell_id + ORDER)
    order = read_json(path)
    sys.path += [entry for entry in order["path"] if entry not in sys.path]
    described = CELL.read(order["cell"], path)
    cell = Cell(described["config"], TextStats(**described["facts"]), described["id"])
    execution = Execution(**order["execution"])
    messages_path, answers = folder / (cell_id + MESSAGES), FileMailbox(folder / (cell_id + ANSWERS))
    cancelled = CANCEL in answers.new()  # other answers belong to an earlier attempt
    if execution.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(execution.threads)
    with RemoteWorker(Store(Path(order["out"])), order["name"]) as worker:
        try:
            with hidden_scheduler():
                worker.submit(cell, execution, order["name"])
            if cancelled:
                worker.answer(CANCEL)
            while True:
                for message in worker.take_messages(0.0 if worker.awaits_answer else LISTEN_SECONDS):
                    end = message[1] if message[0] == "ended" else None
                    if end == Outcome.INTERRUPTED.value and message[3] is None and not cancelled:
                        time.sleep(PATIENCE)
                        raise RuntimeError("what trained the cell was ended from outside")
                    send(messages_path, message)
                    if end is not None:
                        return str(end)
                for answer in answers.new():
                    cancelled = cancelled or answer == CANCEL
                    worker.answer(answer)
                if worker.awaits_answer:
                    time.sleep(0.1)
        except InputError as error:
            send(messages_path, ("waiting", str(error)))
            raise


@contextlib.contextmanager
def hidden_scheduler() -> Iterator[None]:
    """Hide the variables of the scheduler from child processes, and block the signal that is meant for the job."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(SCHEDULER)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.environ.update(hidden)
