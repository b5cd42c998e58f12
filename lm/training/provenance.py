"""Under what circumstances a cell was made."""

import contextlib
import functools
import os
import platform
import re
import resource
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lm import __version__
from lm.config.fingerprint import code_of, project_folder, source_files
from lm.config.imported import import_object
from lm.config.tree import Tree, path_name
from lm.store.files import write_atomic
from lm.store.sources import hash_sources, read_sources

OWN = Path(__file__).parents[1]
"""The folder of this package."""

COMPUTING = ("config", "data", "metrics", "model", "training")
"""The rooms of this package whose code may change what a cell learns, or what is measured of it."""

LONGEST_DIFF = 1_000_000
"""Characters of a checkout's changes that are kept."""

ENVIRONMENT = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"),
    *("CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE"),
)
"""Variables that may change numbers or speed. No other is written down: the environment holds people's secrets."""

LONGEST_VALUE = 100
"""Characters of a variable that are kept."""

PACKAGES = ("torch", "lightning", "torchmetrics", "tokenizers", "numpy")


def device_name() -> str:
    """The name of the device that cells of this process train on; of a processor what decides how its sums are rounded.

    Libraries choose other kernels for other makers and other vector instructions, and a long run shows it.
    """
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    known = (platform.processor() or platform.machine(), _maker(), torch.backends.cpu.get_cpu_capability())
    return ", ".join(part for part in known if part)


def _maker() -> str:
    """Who made the processor, where Linux says so."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "vendor_id":
                return value.strip()
    return ""


def peak_memory() -> float | None:
    """MiB: the most the accelerator held, or else the most this process held; None where only that of a time before
    `forget_peak` is known."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    held = _most_held()
    return held if held > _held_before[0] else None


def forget_peak() -> None:
    """From now on, `peak_memory` is of what comes; where the system forgets nothing, if that is more than before."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        _held_before[0] = 0.0
    except OSError:  # not Linux, or not allowed
        _held_before[0] = _most_held()


_held_before = [0.0]
"""MiB that this process held at most, where that cannot be told from what it held since."""


def _most_held() -> float:
    """MiB that this process has held at most."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 2**20 if sys.platform == "darwin" else kilobytes / 2**10


def git(folder: Path, *arguments: str) -> str | None:
    """What git says in a folder; None where it fails or there is none."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


_FILES = read_sources(OWN, COMPUTING)
"""The code of this package as this process began, whatever is edited while it trains."""


@functools.cache
def source_hash() -> str:
    """Hash the code of this package that computes, as this process began; takes half a second the first time."""
    return hash_sources(_FILES)


def git_state(folder: Path = OWN) -> dict[str, Any]:
    """Commit of the checkout that a folder lies in, and whether it holds changes; None outside a checkout."""
    commit = git(folder, "rev-parse", "HEAD")
    changes = git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if commit is None or changes is None else bool(changes)}


def keep_code(config: Tree, work: Path) -> dict[str, Any]:
    """Keeps the code of a user's own classes with the cell that is trained with it.

    Their modules go to `code/` in the work folder, and what the checkout around them holds beyond its commit to
    `code/changes.diff`. Returns what each class is known by, and the commit of its checkout.

    Raises:
        InputError: where a module was changed after this process imported it.
    """
    kept: dict[str, Any] = {}
    for name, known_by in code_of(config).items():
        cls = import_object(name, name)
        for module, path in source_files(cls).items():
            plain = re.sub(r"[^A-Za-z0-9_.]", "-", f"module.{module}.py")
            write_atomic(work / "code" / path_name(plain, "name of a module"), path.read_bytes())
        folder = project_folder(cls)
        kept[name] = {"known_by": known_by, "git": None if folder is None else git_state(folder)}
        if folder is not None and (changes := git(folder, "diff", "HEAD")):
            write_atomic(work / "code" / "changes.diff", changes[:LONGEST_DIFF] + "\n")
    return kept


def provenance() -> dict[str, Any]:
    """Code, package versions, host, device, threads, and those variables of ENVIRONMENT that are set."""
    return {
        "lm": __version__,
        "git": git_state(),
        "source": source_hash(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(),
        "environment": {name: os.environ[name][:LONGEST_VALUE] for name in ENVIRONMENT if name in os.environ},
    }
