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
