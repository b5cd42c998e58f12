"""Resources of this machine, its description, the speed of its precisions, and checks of the settings of a command."""

import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, require_place
from lm.store.files import require_own
from lm.store.validation import is_number

MOST_WORKERS = 1024  # largest number of processes at a time on one machine

# flags of a processor on which the speed of matrix products depends
FLAGS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "sve", "sve2", "bf16", "i8mm", "sme"),
)

PLAIN = "32-true"
# reduced precisions of the trainer with float32 weights, by the name they have in messages
REDUCED = {"bf16-mixed": "bf16", "bf16": "bf16", "16-mixed": "fp16", "16": "fp16"}

ROUNDS = 5
SECONDS = 4.0  # time after which no further round is started
SLOWER = 1.1  # ratio to the time of float32 above which a precision is reported as slower
SIZE, SIZE_CUDA = 256, 4096  # size of the matrices that are timed on a processor, and on a CUDA device


DEVICES = Path("/dev")
DEVICE_FILES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")
"""Patterns of the device files of CUDA and ROCm: of NVIDIA on servers and boards, of WSL, and of AMD."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_files() -> list[str]:
    """Return the device files of accelerators that Linux has; without one torch finds no CUDA device."""
    return sorted(path.name for pattern in DEVICE_FILES for path in DEVICES.glob(pattern))


def accelerators() -> int:
    """Return the number of CUDA devices of this machine, on Linux without torch where there are none."""
    if sys.platform == "linux" and "torch" not in sys.modules and not device_files():
        return 0
    import torch

    return torch.cuda.device_count()


SMALL_STEP = 1e10  # FLOPs of a training step up to which a device waits for the processor more than it computes
SMALL_CELLS = 16  # cells with such steps that share a device, if it has the memory
CELL_MEMORY = 2**30  # bytes of a device set aside for each of them


def device_memory() -> int:
    """Return the bytes of the smallest CUDA device of this machine."""
    import torch

    return min(torch.cuda.get_device_properties(index).total_memory for index in range(accelerators()))


def default_workers(cells: int, flops_per_step: float = math.inf) -> int:
    """Return one worker per accelerator, or per core if there is none, and at most one per cell.

    Where all steps are small, several share an accelerator, up to one per core and GiB of it.
    """
    devices = accelerators()
    if not devices:
        return max(1, min(cells, cores()))
    shared = 1 if flops_per_step > SMALL_STEP else min(SMALL_CELLS, device_memory() // CELL_MEMORY)
    return max(1, min(cells, max(devices, min(devices * shared, cores()))))


def env_threads() -> int | None:
    """Return the threads that the environment sets, by the first variable that torch heeds; None if none."""
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first[:9]):
            return int(first[:9])
    return None


def threads_each(workers: int) -> int:
    """Return the threads of each of `workers`: those the environment sets, or else its share of the cores."""
    threads = env_threads()
    return max(1, cores() // workers) if threads is None else min(threads, cores())


def require_run_settings(
    out: Path, checkpoint_seconds: Any, workers: Any, hang_minutes: Any = 0.0, called: Callable[[str], str] = str
) -> None:
    """Check the settings of a command, whose arguments are `called` in messages. Raises InputError."""
    require_place(out, called("out"), folder=True)
    if os.path.islink(out / "cells"):  # better now than when the report is refused after training
        require_own(out, ["cells"])
    if not (is_number(checkpoint_seconds) and checkpoint_seconds >= 0):
        raise InputError(f"{called('checkpoint_seconds')}: expected a number from 0, found {shown(checkpoint_seconds)}")
    if workers is not None and not (type(workers) is int and 1 <= workers <= MOST_WORKERS):
        raise InputError(f"{called('workers')}: expected 1 or more, {MOST_WORKERS} at most, found {shown(workers)}")
    if not (is_number(hang_minutes) and hang_minutes >= 0):
        where = called("hang_minutes")
        raise InputError(f"{where}: expected a number from 0, 0 for never, found {shown(hang_minutes)}")


def flags(cpuinfo: str) -> list[str]:
    """Return those of FLAGS that the first core has."""
    line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    has = set(line[1].split()) if line else set()
    return [flag for flag in FLAGS if flag in has]


def memory_gib(entry: str = "MemTotal") -> float | None:
    """Return the memory of this machine, or another entry of Linux about it, in GiB; None if it is not available."""
    try:
        entries = Path("/proc/meminfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = re.search(rf"^{entry}:\s*(\d+) kB", entries, re.MULTILINE)
    return round(int(line[1]) / 2**20, 1) if line else None


def in_turn(
    reduced: Callable[[], object], plain: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median seconds of `reduced` over those of `plain`, timed in turn after a warm-up of each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for round_ in range(1 + ROUNDS):
        for workload, durations in zip((reduced, plain), seconds, strict=True):
            start = clock()
            workload()
            durations += [clock() - start] if round_ else []
        if sum(map(sum, seconds)) > SECONDS:
            break
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def slower(name: str, ratio: float) -> str:
    """Format the line that a precision takes `ratio` times as long as float32.

    >>> slower("bf16", 17.2), slower("bf16", 1.26)
    ('bf16 is 17 times slower than fp32', 'bf16 is 1.3 times slower than fp32')
    """
    times = f"{ratio:z.0f}" if ratio >= 10 else f"{ratio:z.1f}"
    return f"{name} is {times} times slower than fp32"


def measure_products(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return the time of a matrix product on the device in each reduced precision over that in float32."""
    import torch

    cuda = torch.cuda.is_available()
    device, size = ("cuda", SIZE_CUDA) if cuda else ("cpu", SIZE)
    kinds = {"bf16-mixed": torch.bfloat16, **({"16-mixed": torch.float16} if cuda else {})}
    plain = torch.ones(size, size, device=device)

    def product(of: Any) -> None:
        torch.matmul(of, of)
        if cuda:
            torch.cuda.synchronize()

    ratios = {}
    for name, kind in kinds.items():
        reduced = plain.to(kind)
        ratios[name] = in_turn(lambda of=reduced: product(of), lambda: product(plain), clock)  # type: ignore[misc]
    return ratios


def format_ratios(ratios: dict[str, float]) -> list[tuple[str, str]]:
    """Return each reduced precision with a verdict on its ratio of `measure_products`."""
    verdicts = []
    for precision, ratio in ratios.items():
        name, what = REDUCED[precision], "timed by products of matrices"
        verdict = f"makes no difference: {name} is as fast as fp32, {what}"
        if ratio > SLOWER:
            verdict = f"does not pay: {slower(name, ratio)}, {what}; use {PLAIN}"
        elif ratio * SLOWER < 1:
            verdict = f"pays: {name} takes {ratio:z.2f} of the time of fp32, {what}"
        verdicts.append((precision, verdict))
    return verdicts
