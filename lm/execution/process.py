"""Train a cell in a process of its own, and report to the parent."""

import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lm.store.files import disk_error
from lm.store.leases import HeldError, LostError
from lm.store.store import LOG, STACK, Store
from lm.training.cell import Cell
from lm.training.process import Execution, on_heartbeat
from lm.training.train import train


def train_one(pipe: Connection, cell: Cell, store: Store, execution: Execution, slot: int | None) -> None:
    """Train a cell in this process, with messages through the pipe.

    `slot` chooses its accelerator, None leaves it all of them. Messages: `alive`; `progress`; `validation`, which
    expects an answer; `waiting` with a line; `held` if another process has the cell; `disk` with the error that
    stopped it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    sys.modules["__main__"].__spec__ = None
    if slot is not None and (devices := accelerators_visible()):
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    # Lightning starts the other processes of a multi-device cell with this process's command line.
    work = store.work(cell.id)
    script = str(Path(__file__).with_name("worker.py"))
    sys.argv = [script, str(work), json.dumps(asdict(execution)), json.dumps(sys.path)]

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
    say = lambda line: tell("waiting", line)  # noqa: E731
    try:
        with on_heartbeat(lambda: tell("alive")):
            train(cell, store, report, execution, judge, say, _redirect_output, wait=False)
    except HeldError:
        tell("held")
    except LostError as error:
        tell("waiting", str(error))
        tell("held")
        os._exit(0)  # nothing may be written any more, not even what a buffer holds
    except OSError as error:
        if (error_of_disk := disk_error(error)) is None:
            raise
        tell("disk", error_of_disk.errno, error_of_disk.strerror, error_of_disk.filename)
        os._exit(0)  # nothing may be written any more, not even what a buffer holds


def _redirect_output(work: Path) -> None:
    """Redirect output to the log of the cell, and the stack on SIGUSR1 to a file beside it."""
    log = os.open(work / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.register(signal.SIGUSR1, os.open(work / STACK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))


def accelerators_visible() -> list[str]:
    """Return the names of the CUDA devices that this process may use, without starting CUDA in it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    return [str(index) for index in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]
