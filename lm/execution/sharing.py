"""Choose the number of workers: many cells with one thread each, or fewer with several.

Measured where training is long enough for it to matter, and cached in the results folder.
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
from lm.execution.estimate import describe_machine, judged_seconds, step_rate
from lm.execution.fork_server import start_fork_server
from lm.execution.machine import accelerators, cores, default_workers
from lm.execution.scheduler import Planned
from lm.store.answers import remember
from lm.store.side_files import WAYS_FILE, measure_once, read_cached
from lm.training.identified import Cell, seedless
from lm.training.provenance import device_name

WORTH_SECONDS = 600.0  # estimated training time from which the measurement, half a minute, is made

ROUND_SECONDS, ROUNDS = 3.0, 2

PATIENCE = 120.0  # seconds in which a measuring process must have answered
LOOK_SECONDS = 0.5  # seconds between checks that the measuring processes still run


def choose_num_workers(missing: Sequence[Planned], out: Path, measure: bool = True) -> int:
    """Choose how many cells to train at a time.

    If the environment sets a number of threads, there are accelerators, or the work is short: one per device, or per
    core. Otherwise the number with the most training steps a second on the first cell. Without `measure`, for a plan,
    only a cached measurement is used.
    """
    default = default_workers(len(missing))
    threads_set = any(os.environ.get(name) for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"))
    if threads_set or accelerators() or cores() < 2 or len(missing) < 2:
        return default
    cell, path = missing[0].cell, out / WAYS_FILE
    if not measure and not read_cached(path, "workers"):
        return default
    machine = [remember("device", describe_machine(), device_name), cores()]
    key = run_id([seedless(cell.config), cell.facts.identity(), machine])
    if key not in read_cached(path, "workers") and (
        not measure or judged_seconds({"": cell}, 1)[""] * len(missing) / cores() < WORTH_SECONDS
    ):
        return default
    rates_by_workers = measure_once(
        path, "workers", key, lambda: {str(workers): rate for workers, rate in rates(cell).items()}
    )
    try:
        best = int(max(rates_by_workers, key=lambda workers: rates_by_workers[workers]))
    except (TypeError, ValueError, LookupError):
        raise InputError(f"{path}: workers.{key[:12]}: is damaged; delete it, and it is measured anew") from None
    return min(max(1, best), len(missing))


def rates(cell: Cell) -> dict[int, float]:
    """Measure the training steps a second over all workers, by their number, each with all cores in use."""
    counts = [workers for workers in range(1, cores() + 1) if cores() % workers == 0]
    rates_by_count = dict.fromkeys(counts, 0.0)
    for _ in range(ROUNDS):
        for workers in counts:
            rates_by_count[workers] += _together(cell, workers) / ROUNDS
    return rates_by_count


def _together(cell: Cell, workers: int) -> float:
    """Return the steps a second of so many processes that train the same cell at the same time; 0 if they fail."""
    context: Any = multiprocessing.get_context("forkserver")
    start_fork_server()
    start, answers = context.Barrier(workers), context.Queue()
    arguments = (cell, cores() // workers, start, answers)
    processes = [context.Process(target=_measure, args=arguments, daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    rates_of_processes: list[float] = []
    deadline = time.monotonic() + PATIENCE
    try:
        while len(rates_of_processes) < workers:
            failed = any(process.exitcode for process in processes)  # before looking for what it may have left
            try:
                rates_of_processes.append(answers.get(timeout=LOOK_SECONDS))
                deadline = time.monotonic() + PATIENCE
            except queue.Empty:
                if failed or time.monotonic() > deadline:
                    return 0.0
        return sum(rates_of_processes)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _measure(cell: Cell, threads: int, start: Barrier, answers: Any) -> None:
    """Measure the steps a second in this process."""
    answers.put(step_rate(cell, threads, ROUND_SECONDS, start.wait))
