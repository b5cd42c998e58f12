"""What there is to work with on this machine, what would be chosen of it, and what is missing."""

import importlib
import os
import platform
import shutil
import subprocess
import sysconfig
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lm import __version__
from lm.cli.installed import ADDS, CORE, module_of, modules_of, packages, pip_line, requirements
from lm.config.plain import clipped
from lm.config.tree import InputError, require_place
from lm.execution.hardware import available_gib, cpuinfo, flags, memory_gib, processor
from lm.execution.machine import accelerators, cores, default_workers, threads_each

MANY = 1_000_000
"""Cells of an experiment that has enough for every worker."""

DECISIONS = 3
"""Of those that a folder keeps, so many are told, the last ones."""

ALWAYS = ("torch", "numpy", "tokenizers")
"""Packages with compiled parts that are imported to see whether these load; others where that is asked for."""

Said = dict[str, Any]


def examined(out: Path, imports: bool = False) -> Said:
    """All that `lm doctor` says, for programs. `wrong` holds a line for all that keeps cells from being trained.

    Args:
        out: the results folder.
        imports: import every package that is needed, which takes seconds.
    """
    wrong: list[str] = []
    asked, modules = requirements(), modules_of()
    found = {
        "versions": {"lm": __version__, "python": platform.python_version(), "system": platform.platform()},
        "packages": _core(asked, modules, wrong, imports),
        "extras": _extras(asked, modules),
        "devices": _tried("devices", devices, wrong),
        "compiler": compiler(),
        "places": _places(out, wrong),
        "choices": _tried("choices", lambda: choices(out), wrong),
    }
    return {"ok": not wrong, "wrong": wrong, **found}


def _tried(what: str, ask: Callable[[], Said], wrong: list[str]) -> Said:
    """What `ask` finds; where something that it needs is broken, nothing, and a line says so."""
    try:
        return ask()
    except ImportError as error:  # of a package that is missing or broken, which has its line already
        if not wrong:
            wrong.append(f"{what}: {_first_line(error)}")
        return {}
    except InputError as error:
        wrong.append(str(error))
        return {}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return clipped(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}", 300)


# what is installed ---------------------------------------------------------------------------------------------------


Asked = Mapping[str, list[str]]


def _core(asked: Asked, modules: Asked, wrong: list[str], imports: bool) -> list[Said]:
    if not asked:
        wrong.append(f"the package itself is not installed, so that nobody knows what it needs; {pip_line(CORE)}")
    found = []
    for one in packages(asked.get(CORE, []), modules):
        if not one.wrong and (imports or one.name in ALWAYS):
            one = replace(one, wrong=_import_error(module_of(one.name, modules)))
        if one.wrong:
            wrong.append(f"{one.name}: {one.wrong}; {pip_line(CORE)} puts it right")
        found.append(asdict(one))
    return found


def _import_error(module: str) -> str:
    """Why a module cannot be imported; empty where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # whatever a half-installed package raises
        return f"cannot be imported ({_first_line(error)})"
    return ""


def _extras(asked: Asked, modules: Asked) -> list[Said]:
    found = []
    for extra in sorted(asked.keys() - {CORE}):
        of_it = packages(asked[extra], modules)
        found.append(
            {
                "name": extra,
                "adds": ADDS.get(extra, ""),
                "installed": not any(one.wrong for one in of_it),
                "packages": [asdict(one) for one in of_it],
                "pip": pip_line(extra),
            }
        )
    return found


# the machine ---------------------------------------------------------------------------------------------------------


def devices() -> Said:
    """Processor, memory in GiB, and CUDA devices as torch sees them. Raises ImportError where torch does not load."""
    import torch

    said = cpuinfo()
    found = []
    for index in range(accelerators()):
        of_it = torch.cuda.get_device_properties(index)
        memory = round(of_it.total_memory / 2**30, 1)
        found.append({"name": of_it.name, "memory_gib": memory, "capability": f"{of_it.major}.{of_it.minor}"})
    return {
        "processor": processor(said),
        "cores": cores(),
        "cores_in_all": os.cpu_count(),
        "flags": flags(said),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": memory_gib(),
        "memory_available_gib": available_gib(),
        "torch_cuda": torch.version.cuda,
        "cuda": found,
    }


def compiler() -> Said:
    """What torch.compile would make code for the processor with: its first line, and Python's headers, or null."""
    named = os.environ.get("CXX", "")
    names = [named.split()[0]] if named.split() else ["g++", "clang++", "c++"]
    path = next((where for name in names if (where := shutil.which(name))), None)
    said = None
    if path is not None:
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, errors="replace")
            said = next(iter(done.stdout.splitlines()), Path(path).name)
        except (OSError, subprocess.SubprocessError):
            path = None
    headers = Path(sysconfig.get_path("include") or "") / "Python.h"
    return {"path": path, "version": said, "python_headers": headers.is_file()}


def _places(out: Path, wrong: list[str]) -> list[Said]:
    found = [_place("results", out, "give another folder with --out", wrong)]
    try:
        from lm.data.cache import cache_folder
    except ImportError:  # of a package that has its line already
        return found
    return [*found, _place("cache", cache_folder(), "set LM_CACHE to another folder", wrong)]


def _place(name: str, path: Path, remedy: str, wrong: list[str]) -> Said:
    """A folder that is written to, with the free space of its disk in GiB."""
    writable = True
    try:
        require_place(path, f"the {name} folder", folder=True)
    except InputError as error:
        writable = False
        wrong.append(f"{error}; {remedy}")
    there = next((place for place in (path, *path.absolute().parents) if place.exists()), None)
    free = None if there is None else round(shutil.disk_usage(there).free / 2**30, 1)
    return {"name": name, "path": str(path), "there": path.is_dir(), "writable": writable, "free_gib": free}


# what would be chosen ------------------------------------------------------------------------------------------------


def choices(out: Path) -> Said:
    """Workers and threads of an experiment of many cells, its executor, what was measured for `auto`, with reasons, and
    times as long as in float32 products take in each reduced precision.

    Raises:
        InputError: where the file of measurements is damaged.
    """
    from lm.execution.precisions import measure_products
    from lm.report.run import describe_autotune
    from lm.store.ways import FILE, kept

    workers = default_workers(MANY)
    decisions = [one for one in kept(out / FILE, "decisions").values() if isinstance(one, dict)]
    shared = [one for one in kept(out / FILE, "workers").values() if isinstance(one, dict) and one]
    try:
        auto = [describe_autotune(one) for one in decisions[-DECISIONS:]]
        fastest = [str(max(one, key=lambda count: float(one[count]))) for one in shared[-DECISIONS:]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{out / FILE}: is damaged; delete it, and it is measured anew") from None
    return {
        "executor": "local",
        "workers": workers,
        "threads_each": threads_each(workers),
        "why": _why_workers(workers),
        "measured_workers": fastest,
        "auto": auto,
        "precisions": measure_products(),
    }


def _why_workers(workers: int) -> str:
    given = [name for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if os.environ.get(name)]
    threads = f"{given[0]}={os.environ[given[0]]} says how many threads each" if given else "the cores are shared out"
    if accelerators():
        return f"one for each of {accelerators()} CUDA devices; {threads}"
    measured = "" if given or cores() < 2 else "; before ten minutes of training or more, other shares are timed too"
    return f"no CUDA device, so one for each core that this process may use; {threads}{measured}"
