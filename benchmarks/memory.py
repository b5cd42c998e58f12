"""How much memory something takes: in a process of its own, whose peak nothing before it has raised."""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
"""The clone, in which a fresh process finds the benchmarks."""


def peak() -> float:
    """MiB: the most of this process that has been in memory at a time.

    On Linux the kernel's mark for this very program: `ru_maxrss` of a child begins at what its parent held.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) / 2**10
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if sys.platform == "darwin" else used / 2**10


def added(work: Callable[[], object]) -> float:
    """MiB by which `work` raises the peak of this process above what it holds now."""
    with contextlib.suppress(OSError):  # where the kernel cannot forget the peak so far, that counts
        Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    work()
    return peak() - before


def in_child(kind: str, *arguments: Any) -> float:
    """What the measurement `kind` of `benchmarks.child` gives in a fresh process; the arguments go there as JSON."""
    command = [sys.executable, "-P", "-m", "benchmarks.child", kind, json.dumps(arguments)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise RuntimeError(f"{kind}{arguments}: the process ended with code {done.returncode}: {last[0]}")
    return float(done.stdout.split()[-1])
