"""Description of the machine that a benchmark ran on, beside its results."""

import platform
import re
from importlib import metadata
from typing import Any

from lm.execution.machine import cores, flags, memory_gib
from lm.training.provenance import cpuinfo, processor

PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "transformers", "x-transformers", "litgpt")


def describe_machine(threads: int) -> dict[str, Any]:
    """Return processor, usable cores, threads, memory and the versions of the packages that are compared."""
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


def kind(description: dict[str, Any]) -> str:
    """Return a name for files of machines like this: the maker, and what multiplies matrices."""
    maker = re.split(r"\W", description["processor"].lower())[0]
    best = next((name for name in WIDEST if name in description["flags"]), "")
    return "-".join([maker, *best.split("_")] if best else [maker])


WIDEST = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
"""Instructions for products, the fastest first."""


def blas(shown: str) -> str:
    """Return the library that multiplies matrices, from the text of `torch.__config__.show`."""
    named = re.search(r"BLAS_INFO=(\w+)", shown)
    one_dnn = ", oneDNN" if re.search(r"USE_MKLDNN=(?:ON|1)\b", shown) else ""
    return (named[1] if named else "unknown") + one_dnn


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
