"""Processes that take cell after cell: whether their memory grows, and what a cell costs in one against a fresh one."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from lm.bench.asked import Asked
from lm.bench.ratios import alternate
from lm.bench.rows import Row, row, rows_of
from lm.bench.sizes import SMALLEST
from lm.execution.executor import Ended, Progress, Validation
from lm.execution.local import Local
from lm.store.store import Store
from lm.training.cell import Cell, with_seed
from lm.training.train import Execution

CELLS, ROUNDS = 50, 10
FRESH, STAYING = "a process of its own", "a process that has trained one like it"


def staying(asked: Asked) -> list[Row]:
    """MiB that a process holds after each of many cells; seconds of a cell in a fresh process and in one that stays."""
    cell = SMALLEST.cell({"trainer.log_every_n_steps": 1})
    with tempfile.TemporaryDirectory() as folder, Local(Store(Path(folder)), 1) as executor:
        rows = _memory(executor, cell, 3 if asked.quick else CELLS, asked.threads)
        return rows + _seconds(executor, cell, 1 if asked.quick else ROUNDS, asked.threads)


def _memory(executor: Local, cell: Cell, cells: int, threads: int) -> list[Row]:
    group, held, processes = f"memory of a process over {cells} cells", [], set()
    for seed in range(cells):
        process = trained(executor, with_seed(cell, seed), threads)[2]
        processes.add(process)
        held.append(_held(process))
    kept = held[min(10, cells // 2) :]
    slope = float(np.polyfit(np.arange(len(kept)), kept, 1)[0])
    note = "" if len(processes) == 1 else f"they were trained in {len(processes)} processes"
    rows = [row(group, f"after cell {count}", held[count - 1], "MiB") for count in sorted({1, min(10, cells), cells})]
    return [*rows, row(group, "growth a cell, of the last ones", slope, "MiB", note=note)]


def _seconds(executor: Local, cell: Cell, rounds: int, threads: int) -> list[Row]:
    seeds = iter(range(10_000, 20_000))
    first: dict[str, list[float]] = {FRESH: [], STAYING: []}

    def fresh() -> float:
        with Local(executor.store, 1) as other:
            return noted(FRESH, other)

    def noted(way: str, by: Local) -> float:
        begun, whole, _ = trained(by, with_seed(cell, next(seeds)), threads)
        first[way].append(begun)
        return whole

    taken = alternate({FRESH: fresh, STAYING: lambda: noted(STAYING, executor)}, rounds)
    kept = {way: seconds[-rounds:] for way, seconds in first.items()}
    return [
        *rows_of("a small cell until its first step", kept, FRESH),
        *rows_of("a small cell, whole", taken, FRESH),
    ]


def trained(executor: Local, cell: Cell, threads: int) -> tuple[float, float, int]:
    """Seconds until the first step of a cell and until its end, and the number of the process that trained it."""
    start, first, ended = time.perf_counter(), 0.0, False
    handle = executor.submit(cell, Execution(threads=threads), cell.id)
    process = executor.jobs[handle].attempt.process.pid
    while not ended:
        for event in executor.poll(1.0):
            if isinstance(event, Progress):
                first = first or time.perf_counter() - start
            elif isinstance(event, Validation):
                event.answer(True)
            ended = ended or isinstance(event, Ended)
    record = executor.result(handle)
    if record is None or record["status"] != "ok":
        raise RuntimeError(f"a cell of the benchmark did not end well: {record and record['error']}")
    return first, time.perf_counter() - start, process


def _held(process: int) -> float:
    """MiB that a process holds, where Linux tells."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
