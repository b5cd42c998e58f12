"""`lm doctor`: what is installed, what this machine has, and what an experiment would choose."""

import argparse
import json
import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from lm import __version__
from lm.cli.options import JSON, Command, out_option
from lm.config.plain import clipped
from lm.config.reading import PACKAGE
from lm.config.tree import InputError, require_place
from lm.execution import machine
from lm.training.provenance import cpuinfo, processor

NAME = "lm-ablations"
CORE = ""  # key of the packages that are always needed, beside the names of the extras
MANY_CELLS = 1_000_000  # enough for every worker
COMPILED = ("torch", "numpy", "tokenizers")  # imported, to see whether their compiled parts load
NUM_DECISIONS = 3  # of the stored choices of `auto`, the last of which are shown

Lines = Iterator[tuple[str, str, str]]
"""Labels and texts of one part of the report, each with a problem that prevents training; empty where there is none."""


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print what is installed and what is wrong with it."""
    report: dict[str, Any] = {"ok": True, "wrong": [], "system": platform.platform()}
    problems = report["wrong"]
    parts = {"installed": installed(), "extras": extras(), "devices": devices()}
    for heading, lines in {**parts, "places": folders(options.out), "choices": choices(options.out)}.items():
        report[heading] = []
        try:
            for label, text, problem in lines:
                report[heading].append([label, text])
                problems += [problem] * bool(problem)
        except ImportError as error:  # of a package that is missing or broken, which has its line already
            problems += [] if problems else [f"{heading}: {error}"]
        except InputError as error:
            problems.append(str(error))
    report["ok"] = not problems
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    for line in problems:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if problems else 0


def format_report(report: dict[str, Any]) -> str:
    """Format a report for a terminal."""
    width, text = max(60, shutil.get_terminal_size((80, 24)).columns), report["system"]
    wrapper = textwrap.TextWrapper(width, "", " " * 16, break_long_words=False, break_on_hyphens=False)
    for heading in list(report)[3:]:
        lines = [f"  {label:<13} {line}" for label, line in report[heading] or [("unknown", "see below")]]
        text += "\n".join([f"\n\n{heading}", *map(wrapper.fill, lines)])
    count = len(report["wrong"])
    return f"{text}\n\n{count or 'no'} problem{'s' * (count != 1)}{', listed below' * bool(count)}"


def requirements() -> dict[str, list[str]]:
    """Return the packages that this one requires, such as `torch>=2.9`, by extra. Raises ImportError."""
    from packaging.requirements import Requirement

    required: dict[str, list[str]] = {CORE: []}
    for line in metadata.requires(NAME) or []:
        marker = Requirement(line).marker
        extra = match[1] if (match := re.search(r"""extra *== *["']([^"']+)""", line)) else CORE
        fits = marker is None or marker.evaluate({"extra": extra})
        required.setdefault(extra, []).extend([line.partition(";")[0].strip()] * fits)
    return required


def check_package(line: str) -> tuple[str, str, str]:
    """Return the name of a required package, its installed version, and its problem; empty where there is none."""
    from packaging.requirements import Requirement

    package, version, problem = Requirement(line), "", ""
    try:
        version = metadata.version(package.name)
        if not package.specifier.contains(version, prereleases=True):
            problem = f"{version} is installed, expected {package.specifier}"
        elif package.name in COMPILED:
            import_module(package.name)
    except metadata.PackageNotFoundError:
        problem = "is not installed"
    except Exception as error:  # a half-installed package may raise anything
        problem = clipped(f"cannot be imported ({type(error).__name__}: {error})", 300)
    return package.name, version, problem


def pip_line(extra: str) -> str:
    """Return the command that installs an extra, or with CORE the packages that are always needed."""
    name = "." if (PACKAGE.parent / "pyproject.toml").is_file() else NAME
    return f"pip install '{name}{f'[{extra}]' if extra else ''}'"


def installed() -> Lines:
    """Report the versions of the packages that are always needed."""
    yield "lm", __version__, ""
    yield "Python", platform.python_version(), ""
    for name, version, problem in map(check_package, requirements()[CORE]):
        yield name, f"({problem})" if problem else version, problem and f"{name}: {problem}; {pip_line(CORE)} fixes it"


def extras() -> Lines:
    """Report which extras are installed, and how to install the others."""
    for extra, lines in requirements().items():
        missing = [name for name, _, problem in map(check_package, lines) if problem]
        if extra != CORE:
            yield extra, f"lacks {', '.join(missing)}: {pip_line(extra)}" if missing else "is installed", ""


def devices() -> Lines:
    """Report processor, memory and CUDA devices. Raises ImportError if torch does not load."""
    import torch

    cpu, cores, total = cpuinfo(), machine.cores(), os.cpu_count()
    usable = f"{cores} cores" if total in (None, cores) else f"{cores} of its {total} cores may be used"
    yield "processor", f"{processor(cpu)}, {usable}", ""
    features = ", ".join(machine.flags(cpu)) or "none that matter here"
    yield "vectors", f"torch uses {torch.backends.cpu.get_cpu_capability()}; it has {features}", ""
    if (memory := machine.memory_gib()) is not None:
        yield "memory", f"{memory:z.1f} GiB, of which {machine.memory_gib('MemAvailable') or 0:z.1f} are free", ""
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without it"
    if not machine.accelerators():
        yield "CUDA", f"no device; {built}", ""
    for index in range(machine.accelerators()):
        gpu = torch.cuda.get_device_properties(index)
        memory = gpu.total_memory / 2**30
        yield f"CUDA {index}", f"{gpu.name}, {memory:z.1f} GiB, capability {gpu.major}.{gpu.minor}; {built}", ""


def folders(out: Path) -> Lines:
    """Report whether the folders of results and of the cache can be written to."""
    from lm.store.user_cache import cache_folder

    remedies = {"results": "give another folder with --out", "cache": "set LM_CACHE to another folder"}
    for name, path in (("results", out), ("cache", cache_folder())):
        problem = ""
        try:
            require_place(path, f"the {name} folder", folder=True)
        except InputError as error:
            problem = f"{error}; {remedies[name]}"
        state = f"{'' if path.is_dir() else 'does not exist yet, '}{'cannot' if problem else 'can'} be written to"
        yield name, f"{path}: {state}", problem


def choices(out: Path) -> Lines:
    """Report workers and threads with reasons, reduced precisions, and choices of `auto`. Raises InputError."""
    from lm.report.run import describe_autotune
    from lm.store.side_files import WAYS_FILE, read_cached

    workers, number = machine.default_workers(MANY_CELLS), machine.accelerators()
    threads = machine.threads_each(workers)
    limits = [name for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if os.environ.get(name)]
    why = f"{limits[0]}={os.environ[limits[0]]} sets the threads of each" if limits else "they share the cores"
    small = f"one for each of {number} CUDA devices, up to {machine.SMALL_CELLS} where all steps are small"
    per = small if number else "no CUDA device, so one for each core it may use"
    yield "workers", f"{workers} with {threads} thread{'s' * (threads != 1)} each: {per}; {why}", ""
    for precision, verdict in machine.format_ratios(machine.measure_products()):
        yield precision, verdict, ""
    decisions = list(read_cached(out / WAYS_FILE)["decisions"].values())[-NUM_DECISIONS:]
    try:
        texts = [describe_autotune(decision).removeprefix("auto: ") for decision in decisions]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"{out / WAYS_FILE}: is damaged; delete it, and it is measured anew") from None
    for text in texts or ["precision, attention and compile are timed when an experiment with `auto` begins"]:
        yield "auto", text, ""


COMMANDS = {
    "doctor": Command(
        "report what is installed, which devices there are, and what an experiment would choose and why",
        ("lm doctor", "lm doctor --json"),
        run,
        out_option(),
        JSON,
    )
}
