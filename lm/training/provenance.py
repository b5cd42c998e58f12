"""Provenance of a cell: code, packages, machine and environment."""

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

from lm import __version__
from lm.config.fingerprint import code_of, project_folder, source_files
from lm.config.imported import import_object
from lm.config.tree import Tree, path_name
from lm.store.files import write_atomic
from lm.store.sources import hash_sources, read_sources

OWN = Path(__file__).parents[1]  # folder of this package
COMPUTING = ("config", "data", "metrics", "model", "training")  # packages of lm whose code may change a cell's numbers
LONGEST_DIFF = 1_000_000  # characters of a checkout's changes that are kept

# environment variables that may change numbers or speed; no other is recorded: they may hold secrets
ENVIRONMENT = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"),
    *("CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE"),
)
LONGEST_VALUE = 100  # characters of a variable that are kept
PACKAGES = ("torch", "lightning", "torchmetrics", "tokenizers", "numpy")


def device_name() -> str:
    """Return the name of the device that trains; of a processor also what decides on its kernels and rounding."""
    import torch  # takes seconds, and who plans finished cells needs none

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    vendor = next(iter(re.findall(r"^vendor_id\s*:(.*)$", cpuinfo(), re.M)), "").strip()
    parts = (platform.processor() or platform.machine(), vendor, torch.backends.cpu.get_cpu_capability())
    return ", ".join(part for part in parts if part)


def cpuinfo() -> str:
    """Return Linux's description of the processors; empty on other systems."""
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return ""


def processor(description: str) -> str:
    """Return the model of a processor that Linux describes, or else what Python calls this one."""
    named = re.search(r"^model name\s*:\s*(.+)$", description, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def peak_memory() -> float:
    """Return the peak memory in MiB of the accelerator, or else of this process."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 2**20 if sys.platform == "darwin" else kilobytes / 2**10


def git(folder: Path, *arguments: str) -> str | None:
    """Run git in a folder and return its output; None if it fails or is missing."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


_FILES = read_sources(OWN, COMPUTING)  # as they are at the start of this process, which may be edited during training


@functools.cache
def source_hash() -> str:
    """Hash the code in COMPUTING at the start of this process; takes half a second the first time."""
    return hash_sources(_FILES)


def git_state(folder: Path = OWN) -> dict[str, Any]:
    """Return the commit of the checkout around a folder, and True if it holds changes; None outside a checkout."""
    commit = git(folder, "rev-parse", "HEAD")
    changes = git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if commit is None or changes is None else bool(changes)}


def keep_code(config: Tree, work: Path) -> dict[str, Any]:
    """Copy a user's own classes to `code/` of a work folder; return their hashes and commits. Raises InputError."""
    classes: dict[str, Any] = {}
    for name, known_by in code_of(config).items():
        cls = import_object(name, name)
        for module, path in source_files(cls).items():
            file = re.sub(r"[^A-Za-z0-9_.]", "-", f"module.{module}.py")
            write_atomic(work / "code" / path_name(file, "name of a module"), path.read_bytes())
        folder = project_folder(cls)
        classes[name] = {"known_by": known_by, "git": None if folder is None else git_state(folder)}
        if folder is not None and (changes := git(folder, "diff", "HEAD")):
            write_atomic(work / "code" / "changes.diff", changes[:LONGEST_DIFF] + "\n")
    return classes


def provenance() -> dict[str, Any]:
    """Return code, package versions, host, device, threads, and the variables of ENVIRONMENT that are set."""
    import torch

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
