"""Small cells on one CUDA device: cells an hour by the number of processes that share it, with and without MPS."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import yaml

from benchmarks.asked import Asked
from benchmarks.cells import shortened
from benchmarks.gpu import NO_DEVICE
from benchmarks.rows import Row, exactly, row
from benchmarks.sizes import SIZES, SMALLEST
from lm.store.files import write_atomic

PROCESSES = (1, 8, 16)
SEEDS = PROCESSES[-1] // 2
"""Of each of two arms: as many cells for any number of processes, so that start and report weigh the same."""
ALONE = "1 process"


def gpu_cells(asked: Asked) -> list[Row]:
    """Seconds of a cell of the quickstart, of the whole command over its cells, by processes at a time."""
    if not (torch.cuda.is_available() or asked.quick):
        return [row("small cells on a CUDA device", ALONE, None, note=NO_DEVICE)]
    with tempfile.TemporaryDirectory() as folder:
        return _cells(Path(folder), asked)


def _cells(place: Path, asked: Asked) -> list[Row]:
    size, steps = (SMALLEST, 20) if asked.quick else (SIZES[0], 400)
    base = size.cell({"trainer.accelerator": "auto"}).config
    write_atomic(place / "base.yaml", yaml.safe_dump(base, sort_keys=False))
    found: dict[str, float] = {}
    for processes in PROCESSES[: 1 if asked.quick else None]:
        seeds = 1 if asked.quick else SEEDS
        name = f"{processes} process{'es' * (processes > 1)}"
        found[name] = _command(place, name, steps, seeds, processes, asked.environment())
        if processes == PROCESSES[-1]:
            with shared_device(place / "mps") as environment:
                if environment is not None:
                    name = f"{name} under MPS"
                    found[name] = _command(place, name, steps, seeds, processes, {**asked.environment(), **environment})
    group = f"small cells: {steps} steps at the quickstart's size in fp32, the whole command over its cells"
    return [
        row(group, name, value, to=ALONE, ratio=exactly(value / found[ALONE]), more={"cells_per_hour": 3600 / value})
        for name, value in found.items()
    ]


def _command(place: Path, name: str, steps: int, seeds: int, processes: int, environment: Mapping[str, str]) -> float:
    write_atomic(place / "short.yaml", yaml.safe_dump(shortened(steps, seeds), sort_keys=False))
    out = place / name.replace(" ", "_")
    command = [sys.executable, "-P", "-m", "lm", "ablate", str(place / "short.yaml"), "--out", str(out)]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, "--workers", str(processes)], capture_output=True, text=True, env=dict(environment)
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise RuntimeError(f"lm ablate ended with code {done.returncode}: {last[0]}")
    return seconds / (2 * seeds)


@contextlib.contextmanager
def shared_device(place: Path) -> Iterator[dict[str, str] | None]:
    """Run NVIDIA's server that lets kernels of several processes run at once; yield its variables, None without it."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or not torch.cuda.is_available():
        yield None
        return
    place.mkdir()
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(place), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    environment = {**os.environ, **variables}
    if subprocess.run([control, "-d"], env=environment, capture_output=True).returncode:
        yield None
        return
    try:
        yield variables
    finally:
        subprocess.run([control], input="quit\n", text=True, env=environment, capture_output=True)
