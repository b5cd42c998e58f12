"""What the figures were measured on, without the name of the machine."""

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from lm.execution.machine import cores

FLAGS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "sve", "sve2", "bf16", "i8mm", "sme"),
)
"""Abilities of a processor on which the speed of matrix products depends."""

PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "transformers", "x-transformers", "litgpt")


def describe_machine(threads: int) -> dict[str, Any]:
    """Return processor, cores that may be used, threads, memory, and the versions of what is compared."""
    import torch

    description = cpuinfo()
    return {
        "processor": processor(description),
        "cores": cores(),
        "threads": threads,
        "flags": flags(description),
        "memory_gib": memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "blas": blas(torch.__config__.show()),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "packages": {name: version for name in PACKAGES if (version := installed(name))},
    }


def processor(cpuinfo: str) -> str:
    """The model of the processor as Linux names it, or else as Python does."""
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def flags(cpuinfo: str) -> list[str]:
    """Return those of FLAGS that the first core has."""
    line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    has = set(line[1].split()) if line else set()
    return [flag for flag in FLAGS if flag in has]


def blas(shown: str) -> str:
    """Which library multiplies matrices, from what torch says of how it was built, with oneDNN where that is in."""
    named = re.search(r"BLAS_INFO=(\w+)", shown)
    one_dnn = ", oneDNN" if re.search(r"USE_MKLDNN=(?:ON|1)\b", shown) else ""
    return (named[1] if named else "unknown") + one_dnn


def installed(package: str) -> str | None:
    """Its version, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpuinfo() -> str:
    """What Linux says of the processor; empty elsewhere."""
    return _read(Path("/proc/cpuinfo"))


def memory_gib() -> float | None:
    """GiB of this machine, None where that is not known."""
    return _gib("MemTotal")


def available_gib() -> float | None:
    """GiB that a new process could take now, None where that is not known."""
    return _gib("MemAvailable")


def _gib(entry: str) -> float | None:
    line = re.search(rf"^{entry}:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return round(int(line[1]) / 2**20, 1) if line else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
