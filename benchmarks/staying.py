"""Processes that take cell after cell: whether their memory grows, and what a cell costs in one against a fresh one.

Tiny cells, one after another in one process: the memory it holds after each. Then, in turn, a cell in a fresh process
and one in a process that has trained one like it: seconds until the first optimiser step, and in all. Run with
`make bench`.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from lm.config.tree import load_yaml, override
from lm.execution.executor import Ended, Progress, Validation
from lm.execution.local import Local
from lm.store.store import Store
from lm.training.cell import Cell, check, with_seed
from lm.training.train import Execution

BASE = Path(__file__).parents[1] / "experiments/bases/char_tiny.yaml"
TINY = {
    "model.width": 32,
    "model.layers": 1,
    "data.batch_size": 4,
    "data.context": 32,
    "optim.schedule": "Constant",
    "trainer.max_steps": 20,
    "trainer.log_every_n_steps": 1,
    "trainer.val_check_interval": 20,
}
CELLS, ROUNDS = 50, 10


def trained(executor: Local, cell: Cell) -> tuple[float, float, int]:
    """Seconds until the first step of a cell and until its end, and the number of the process that trained it."""
    start, first, ended = time.perf_counter(), 0.0, False
    handle = executor.submit(cell, Execution(threads=1), cell.id)
    process = executor.jobs[handle].attempt.process.pid
    while not ended:
        for event in executor.poll(1.0):
            if isinstance(event, Progress):
                first = first or time.perf_counter() - start
            elif isinstance(event, Validation):
                event.answer(True)
            ended = ended or isinstance(event, Ended)
    record = executor.harvest(handle)
    assert record is not None
    assert record["status"] == "ok", record["error"]
    return first, time.perf_counter() - start, process


def held(process: int) -> float:
    """MiB that a process holds, where Linux tells."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(cells: list[Cell]) -> None:
    """Prints what one process holds after each of these cells."""
    with tempfile.TemporaryDirectory() as folder, Local(Store(Path(folder)), 1) as executor:
        processes = [trained(executor, cells[0])[2]]
        sizes = [held(processes[0])]
        for cell in cells[1:]:
            processes.append(trained(executor, cell)[2])
            sizes.append(held(processes[-1]))
    assert len(set(processes)) == 1, "they were not trained in one process"
    slope = np.polyfit(np.arange(10, len(sizes)), sizes[10:], 1)[0]
    shown = ", ".join(f"{sizes[index - 1]:z.0f} after {index}" for index in (1, 10, len(sizes)))
    Console().print(f"MiB held: {shown}; {slope:+z.3f} a cell from the 10th on", highlight=False)


def seconds(cells: list[Cell]) -> None:
    """Prints what cells take in fresh processes and in one that stays, trained in turn."""
    found: dict[str, list[tuple[float, float]]] = {"fresh": [], "staying": []}
    with tempfile.TemporaryDirectory() as folder, Local(Store(Path(folder)), 1) as executor:
        trained(executor, cells[0])
        for index in range(1, len(cells) - 1, 2):
            with Local(executor.store, 1) as other:
                found["fresh"].append(trained(other, cells[index])[:2])
            found["staying"].append(trained(executor, cells[index + 1])[:2])
    table = Table("process", "s to the first step (range)", "s in all (range)")
    for name, pairs in found.items():
        table.add_row(name, *(spread(list(times)) for times in zip(*pairs, strict=True)))
    Console().print(table)


def spread(times: list[float]) -> str:
    """The median with the range."""
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


def main() -> None:
    """Prints both."""
    first = check(override(load_yaml(BASE), TINY))
    memory([with_seed(first, seed) for seed in range(CELLS)])
    seconds([with_seed(first, seed) for seed in range(2 * ROUNDS + 1)])


if __name__ == "__main__":
    main()
