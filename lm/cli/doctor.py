"""The report of `lm doctor`: what is installed, what this machine has, and what an experiment would choose."""

import importlib
import os
import platform
import shutil
import textwrap
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from lm import __version__
from lm.config.plain import clipped
from lm.config.reading import PACKAGE
from lm.config.tree import InputError, require_place
from lm.execution.machine import (
    accelerators,
    cores,
    default_workers,
    flags,
    memory_gib,
    proc_file,
    processor,
    threads_each,
)

NAME = "lm-ablations"
CORE = ""  # key of the packages that are always needed, beside the names of the extras
MANY_CELLS = 1_000_000  # enough for every worker
COMPILED = ("torch", "numpy", "tokenizers")  # imported, to see whether their compiled parts load
LABEL_WIDTH = 14
NUM_DECISIONS = 3  # of the stored choices of `auto`, the last of which are shown

Lines = Iterator[tuple[str, str]]
"""Labels and texts of one part of the report."""


def examine(out: Path) -> dict[str, Any]:
    """Return everything that `lm doctor` reports; `wrong` has a line for each problem that prevents training."""
    problems: list[str] = []
    parts: dict[str, Callable[[], Lines]] = {
        "installed": lambda: installed(problems),
        "extras": extras,
        "devices": devices,
        "places": lambda: folders(out, problems),
        "choices": lambda: choices(out),
    }
    report: dict[str, Any] = {}
    for heading, examine_part in parts.items():
        report[heading] = []
        try:
            for label, text in examine_part():
                report[heading].append([label, text])
        except ImportError as error:  # of a package that is missing or broken, which has its line already
            problems += [] if problems else [f"{heading}: {_first_line(error)}"]
        except InputError as error:
            problems.append(str(error))
    return {"ok": not problems, "wrong": problems, "system": platform.platform(), **report}


def format_report(report: dict[str, Any]) -> str:
    """Format a report of `examine` for a terminal."""
    width, lines = max(60, shutil.get_terminal_size((80, 24)).columns), [report["system"]]
    for heading in [name for name, part in report.items() if isinstance(part, list) and name != "wrong"]:
        lines += ["", heading]
        for label, text in report[heading] or [("unknown", "see below")]:
            first, others = f"  {label:<{LABEL_WIDTH - 1}} ", " " * (LABEL_WIDTH + 2)
            wrapper = textwrap.TextWrapper(width, first, others, break_long_words=False, break_on_hyphens=False)
            lines += wrapper.wrap(text)
    count = len(report["wrong"])
    return "\n".join([*lines, "", f"{count or 'no'} problem{'s' * (count != 1)}{', listed below' if count else ''}"])


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return clipped(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}", 300)


# packages ------------------------------------------------------------------------------------------------------------


def requirements() -> dict[str, list[str]]:
    """Return the packages that this one requires, such as `torch>=2.9`, by extra; empty if it is not installed."""
    from packaging.requirements import Requirement

    try:
        lines, names = metadata.requires(NAME) or [], metadata.metadata(NAME).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    required: dict[str, list[str]] = {CORE: [], **{extra: [] for extra in names}}
    for line in lines:
        marker = Requirement(line).marker
        fitting = [extra for extra in required if marker is None or marker.evaluate({"extra": extra})]
        for extra in [CORE] if CORE in fitting else fitting:
            required[extra].append(line.partition(";")[0].strip())
    return required


def check_package(line: str) -> tuple[str, str, str]:
    """Return the name of a required package, its installed version, and its problem; empty where there is none."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    name, specifier = requirement.name, requirement.specifier
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return name, "", "is not installed"
    if not specifier.contains(version, prereleases=True):
        return name, version, f"{version} is installed, expected {specifier}"
    try:
        if name in COMPILED:
            importlib.import_module(name)
    except Exception as error:  # a half-installed package may raise anything
        return name, version, f"cannot be imported ({_first_line(error)})"
    return name, version, ""


def pip_line(extra: str, root: Path = PACKAGE.parent) -> str:
    """Return the command that installs an extra, or with CORE the packages that are always needed."""
    suffix = f"[{extra}]" if extra else ""
    return f"pip install '.{suffix}'" if (root / "pyproject.toml").is_file() else f"pip install '{NAME}{suffix}'"


def installed(problems: list[str]) -> Lines:
    """Report the versions of the packages that are always needed; add a problem for each that does not work."""
    yield "lm", __version__
    yield "Python", platform.python_version()
    required = requirements()
    if not required:
        problems.append(f"lm is not installed, so its requirements are unknown; {pip_line(CORE)}")
    for line in required.get(CORE, []):
        name, version, problem = check_package(line)
        yield name, f"({problem})" if problem else version
        if problem:
            problems.append(f"{name}: {problem}; {pip_line(CORE)} fixes it")


def extras() -> Lines:
    """Report which extras are installed, and how to install the others."""
    for extra, lines in requirements().items():
        if extra != CORE:
            missing = [name for name, _, wrong in map(check_package, lines) if wrong]
            yield extra, f"lacks {', '.join(missing)}: {pip_line(extra)}" if missing else "is installed"


# the machine ---------------------------------------------------------------------------------------------------------


def devices() -> Lines:
    """Report processor, memory and CUDA devices. Raises ImportError if torch does not load."""
    import torch

    cpu, total = proc_file("cpuinfo"), os.cpu_count()
    usable = f"{cores()} cores" if total in (None, cores()) else f"{cores()} of its {total} cores may be used"
    yield "processor", f"{processor(cpu)}, {usable}"
    vectors = torch.backends.cpu.get_cpu_capability()
    yield "vectors", f"torch uses {vectors}; it has {', '.join(flags(cpu)) or 'none that matter here'}"
    if (memory := memory_gib()) is not None:
        yield "memory", f"{memory:z.1f} GiB, of which {memory_gib('MemAvailable') or 0:z.1f} are free"
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without it"
    if not accelerators():
        yield "CUDA", f"no device; {built}"
    for index in range(accelerators()):
        gpu = torch.cuda.get_device_properties(index)
        gib = gpu.total_memory / 2**30
        yield f"CUDA {index}", f"{gpu.name}, {gib:z.1f} GiB, capability {gpu.major}.{gpu.minor}; {built}"


def folders(out: Path, problems: list[str]) -> Lines:
    """Report the folders of results and of the cache; add a problem for each that cannot be written to."""
    from lm.store.answers import cache_folder

    remedies = {"results": "give another folder with --out", "cache": "set LM_CACHE to another folder"}
    for name, path in (("results", out), ("cache", cache_folder())):
        state = "can be written to"
        try:
            require_place(path, f"the {name} folder", folder=True)
        except InputError as error:
            state = "cannot be written to"
            problems.append(f"{error}; {remedies[name]}")
        nearest = next((parent for parent in (path, *path.absolute().parents) if parent.exists()), None)
        if nearest is not None:
            state += f", {shutil.disk_usage(nearest).free / 2**30:z.1f} GiB free"
        yield name, f"{path}: {state if path.is_dir() else f'does not exist yet, {state}'}"


def choices(out: Path) -> Lines:
    """Report workers and threads with reasons, reduced precisions, and choices of `auto`. Raises InputError."""
    from lm.execution.machine import format_ratios, measure_products
    from lm.report.run import describe_autotune
    from lm.store.side_files import WAYS_FILE, read_cached

    workers = default_workers(MANY_CELLS)
    threads = threads_each(workers)
    limits = [name for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if os.environ.get(name)]
    why = f"{limits[0]}={os.environ[limits[0]]} sets the threads of each" if limits else "they share the cores"
    number = accelerators()
    per = f"one for each of {number} CUDA devices" if number else "no CUDA device, so one for each core it may use"
    yield "workers", f"at most {workers} with {threads} thread{'s' * (threads != 1)} each: {per}; {why}"
    yield from format_ratios(measure_products())
    decisions = read_cached(out / WAYS_FILE, "decisions").values()
    try:
        auto = [describe_autotune(decision).removeprefix("auto: ") for decision in list(decisions)[-NUM_DECISIONS:]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"{out / WAYS_FILE}: is damaged; delete it, and it is measured anew") from None
    for line in auto or ["precision, attention and compile are timed when an experiment with `auto` begins"]:
        yield "auto", line
