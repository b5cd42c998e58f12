"""Training of a cell in a worker process, and its messages to the parent."""

import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lm.execution.process_state import restore_process_state
from lm.execution.worker_pool import shape_of
from lm.store.files import disk_error
from lm.store.leases import HeldError, LostError
from lm.store.store import LOG, STACK, Store
from lm.training.cell import Cell
from lm.training.process import on_heartbeat
from lm.training.provenance import forget_peak
from lm.training.train import UNEVALUATED, Execution, train

_stack: list[int] = []
"""File that takes the stack of this process; closed with the next cell's."""

_last: list[Any] = []
"""Shape of the last cell of this process."""


def train_one(cell: Cell, store: Store, execution: Execution, pipe: Connection, slot: int | None) -> bool:
    """Train a cell; return True if state was left behind that makes the process unfit for another cell.

    `slot` chooses its accelerator, None leaves it all of them. Messages: `progress`; `validation`, which expects an
    answer; `waiting` with a line; `held` if another process has the cell; `disk` with the error that stopped it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    sys.modules["__main__"].__spec__ = None
    _reset_compiler(shape_of(cell))
    with restore_process_state() as unrestored:
        _train(cell, store, execution, pipe, slot)
    if not store.finished(cell.id):  # pruned, or another has taken it
        return bool(unrestored)
    record = store.record(cell.id)
    return (
        bool(unrestored)
        or record["status"] == "failed"
        or any(flag.startswith(UNEVALUATED) for flag in record["flags"])
    )


def _train(cell: Cell, store: Store, execution: Execution, pipe: Connection, slot: int | None) -> None:
    """Train a cell, with messages through the pipe."""
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

    @contextlib.contextmanager
    def stack_on_signal() -> Iterator[None]:
        try:
            with on_heartbeat(lambda: tell("alive")):
                yield
        finally:
            faulthandler.unregister(signal.SIGUSR1)

    report = lambda *progress: tell("progress", *progress)  # noqa: E731
    try:
        with stack_on_signal():
            train(cell, store, report, execution, judge, lambda line: tell("waiting", line), _log, wait=False)
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


def _reset_compiler(shape: Any) -> None:
    """Forget the memory peak of the last cell, and reset torch.compile if its shape was another.

    What torch.compile does depends on what it has compiled before: it takes sizes that have changed for sizes that
    vary, and gives up where one function was compiled eight times.
    """
    if _last:
        forget_peak()
        if _last[0] != shape and "torch._dynamo" in sys.modules:
            torch.compiler.reset()
    _last[:] = [shape]


def _log(work: Path) -> None:
    """Redirect output to the log of the cell, and the stack on SIGUSR1 to a file beside it."""
    log = os.open(work / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for before in _stack:
        os.close(before)
    _stack[:] = [os.open(work / STACK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)]
    faulthandler.register(signal.SIGUSR1, _stack[0])


def accelerators_visible() -> list[str]:
    """Return the names of the CUDA devices that this process may use, without starting CUDA in it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    return [str(index) for index in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]
