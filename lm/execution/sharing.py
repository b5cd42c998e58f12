"""How the cores of this machine are shared out: many cells of a thread each, or fewer of several.

Measured where there is enough to train for it to matter, and kept with the results folder.
"""

import multiprocessing
import os
import queue
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, run_id
from lm.execution.cell_queue import Planned
from lm.execution.estimate import judged_seconds, step_rate
from lm.execution.local import PRELOAD
from lm.execution.machine import accelerators, cores, default_workers
from lm.execution.worker_pool import start_fork_server
from lm.store.ways import FILE, kept, measured_once
from lm.training.cell import Cell, seedless
from lm.training.provenance import device_name

WORTH_SECONDS = 600.0
"""Of training, judged by a few steps, from which the measurement, half a minute, is made."""

ROUND_SECONDS, ROUNDS = 3.0, 2

PATIENCE = 120.0
"""Seconds in which a process that measures must have answered."""

LOOK_SECONDS = 0.5
"""Between looks at whether they still live."""


def choose_num_workers(missing: Sequence[Planned], out: Path, measure: bool = True) -> int:
    """How many cells to train at a time.

    Where the environment gives a number of threads, or there are accelerators, or the work is short: as many as there
    are devices, or cores. Otherwise what trained the most steps a second on the first of the cells; without `measure`,
    which is for a plan, only where that is known already.
    """
    usual = default_workers(len(missing))
    given = any(os.environ.get(name) for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"))
    if given or accelerators() or cores() < 2 or len(missing) < 2:
        return usual
    cell = missing[0].cell
    machine = [device_name(), cores()]
    question = run_id([seedless(cell.config), cell.facts.identity(), machine])
    path = out / FILE
    if question not in kept(path, "workers") and (
        not measure or judged_seconds({"": cell}, 1)[""] * len(missing) / cores() < WORTH_SECONDS
    ):
        return usual
    known = measured_once(
        path, "workers", question, lambda: {str(workers): rate for workers, rate in rates(cell).items()}
    )
    try:
        best = int(max(known, key=lambda workers: known[workers]))
    except (TypeError, ValueError, LookupError):
        raise InputError(f"{path}: workers.{question[:12]}: is damaged; delete it, and it is measured anew") from None
    return min(max(1, best), len(missing))


def rates(cell: Cell) -> dict[int, float]:
    """Training steps a second over all workers, by how many there are, each way with all cores in use."""
    ways = [workers for workers in range(1, cores() + 1) if cores() % workers == 0]
    found = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for workers in ways:
            found[workers] += _together(cell, workers) / ROUNDS
    return found


def _together(cell: Cell, workers: int) -> float:
    """Steps a second of so many processes that train the same cell at the same time."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    start_fork_server()
    start, answers = context.Barrier(workers), context.Queue()
    arguments = (cell, cores() // workers, start, answers)
    processes = [context.Process(target=_measure, args=arguments, daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        return sum(_answer(answers, processes) for _ in processes)
    except queue.Empty:  # this way is none
        return 0.0
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _answer(answers: Any, processes: Sequence[Any]) -> float:
    """What one of the processes has measured. Raises Empty where one has failed, or none answers for long."""
    deadline = time.monotonic() + PATIENCE
    while True:
        failed = any(process.exitcode for process in processes)  # before looking for what it may have left
        try:
            return float(answers.get(timeout=LOOK_SECONDS))
        except queue.Empty:
            if failed or time.monotonic() > deadline:
                raise


def _measure(cell: Cell, threads: int, start: Barrier, answers: Any) -> None:
    answers.put(step_rate(cell, threads, ROUND_SECONDS, start.wait))
