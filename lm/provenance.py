"""Under what circumstances a cell was made."""

import functools
import os
import platform
import resource
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lm import __version__

PACKAGES = ("torch", "lightning", "torchmetrics", "tokenizers", "numpy")


def device_name() -> str:
    """The name of the device that cells of this process train on."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()


def peak_memory() -> float:
    """MiB: the most the accelerator held, or else the most this process held."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 2**20 if sys.platform == "darwin" else kilobytes / 2**10


@functools.cache
def git_state() -> dict[str, Any]:
    """Commit of the checkout this package runs from, and whether it holds changes; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if commit is None or changes is None else bool(changes)}


def provenance() -> dict[str, Any]:
    """Code version, package versions, host, device and threads."""
    return {
        "lm": __version__,
        "git": git_state(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(),
    }
