"""The report of `lm doctor`: what is installed, what this machine has, and what an experiment would choose."""

import importlib
import os
import platform
import shutil
import subprocess
import sysconfig
import textwrap
import warnings
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
CORE = ""
"""Key of the packages that are always needed, beside the names of the extras."""

EXTRA_DESCRIPTIONS = {
    "translation": "BLEU of translations",
    "bench": "other implementations that `make bench` compares with ours",
    "track": "loggers: tensorboard, wandb and mlflow",
    "search": "searches with GP and CMA-ES, and importances by fANOVA",
    "postgres": "searches shared over PostgreSQL",
    "dashboard": "the pages of Optuna on a search, for `lm dashboard`",
    "ray": "`--executor ray`: cells on a Ray cluster",
    "slurm": "`--executor slurm`: cells as jobs of SLURM",
    "dev": "what checks this package: tests, types, a browser, notebooks",
}

MANY_CELLS = 1_000_000  # enough for every worker
NUM_MEASUREMENTS = 3  # of the cached ones, the last of which are shown
COMPILED = ("torch", "numpy", "tokenizers")  # always imported, to see whether their compiled parts load
LOW_GIB = 1.0  # free space below which a folder is reported as nearly full
LABEL_WIDTH = 14

Lines = Iterator[tuple[str, str]]
"""Labels and texts of one part of the report."""


def examine(out: Path, imports: bool = False) -> dict[str, Any]:
    """Return everything that `lm doctor` reports; `wrong` has a line for each problem that prevents training.

    With `imports` every package that is needed is imported, which takes seconds.
    """
    problems: list[str] = []
    parts: dict[str, Callable[[], Lines]] = {
        "installed": lambda: installed(problems, imports),
        "extras": extras,
        "devices": devices,
        "compiler": compiler,
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
        lines = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return {}
    required: dict[str, list[str]] = {CORE: [], **{extra: [] for extra in EXTRA_DESCRIPTIONS}}
    for line in lines:
        marker = Requirement(line).marker
        fitting = [extra for extra in required if marker is None or marker.evaluate({"extra": extra})]
        for extra in [CORE] if CORE in fitting else fitting:
            required[extra].append(line.partition(";")[0].strip())
    return required


def check_package(line: str, imports: bool = False) -> tuple[str, str, str]:
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if imports or name in COMPILED:
                importlib.import_module(_module_name(name))
    except Exception as error:  # a half-installed package may raise anything
        return name, version, f"cannot be imported ({_first_line(error)})"
    return name, version, ""


def _module_name(package: str) -> str:
    """Return the name by which a package is imported."""
    if package in COMPILED:
        return package
    packages = metadata.packages_distributions().items()
    modules = [module for module, names in packages if package.lower() in map(str.lower, names)]
    return next((name for name in modules if name.isidentifier() and name[0] != "_"), package.replace("-", "_"))


def pip_line(extra: str, root: Path = PACKAGE.parent) -> str:
    """Return the command that installs an extra, or with CORE the packages that are always needed."""
    suffix = f"[{extra}]" if extra else ""
    return f"pip install '.{suffix}'" if (root / "pyproject.toml").is_file() else f"pip install '{NAME}{suffix}'"


def installed(problems: list[str], imports: bool) -> Lines:
    """Report the versions of the packages that are always needed; add a problem for each that does not work."""
    yield "lm", __version__
    yield "Python", platform.python_version()
    required = requirements()
    if not required:
        problems.append(f"lm is not installed, so its requirements are unknown; {pip_line(CORE)}")
    for line in required.get(CORE, []):
        name, version, problem = check_package(line, imports)
        yield name, f"({problem})" if problem else version
        if problem:
            problems.append(f"{name}: {problem}; {pip_line(CORE)} fixes it")


def extras() -> Lines:
    """Report which extras are installed, and how to install the others."""
    for extra, lines in requirements().items():
        if extra != CORE:
            missing, adds = [name for name, _, wrong in map(check_package, lines) if wrong], EXTRA_DESCRIPTIONS[extra]
            lack = f"would add {adds}; lacks {', '.join(missing)}: {pip_line(extra)}"
            yield extra, lack if missing else f"is installed: {adds}"


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


def compiler() -> Lines:
    """Report the C++ compiler that torch.compile would use on the processor, and missing headers of Python."""
    names = os.environ.get("CXX", "").split()[:1] or ["g++", "clang++", "c++"]
    path = next((path for name in names if (path := shutil.which(name))), None)
    version = None
    if path is not None:
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, errors="replace")
            version = next(iter(done.stdout.splitlines()), Path(path).name)
        except (OSError, subprocess.SubprocessError):
            pass
    if version is None:
        yield "none", "trainer.compile on the processor needs one, such as g++; everything else works without"
        return
    yield "C++", version
    if not (Path(sysconfig.get_path("include") or "") / "Python.h").is_file():
        yield "headers", "trainer.compile on the processor needs Python's headers, which are missing; all else works"


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
            gib = shutil.disk_usage(nearest).free / 2**30
            state += f", {gib:z.1f} GiB free{', which is little' if gib < LOW_GIB else ''}"
        yield name, f"{path}: {state if path.is_dir() else f'does not exist yet, {state}'}"


# choices -------------------------------------------------------------------------------------------------------------


def choices(out: Path) -> Lines:
    """Report workers and threads with reasons, and what was measured for `auto`. Raises InputError for damage."""
    from lm.execution.machine import format_ratios, measure_products
    from lm.report.run import describe_autotune
    from lm.store.side_files import WAYS_FILE, read_cached

    yield "executor", "local: processes of this machine"
    workers = default_workers(MANY_CELLS)
    threads = threads_each(workers)
    limits = [name for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if os.environ.get(name)]
    why = f"{limits[0]}={os.environ[limits[0]]} sets the threads of each" if limits else "they share the cores"
    if accelerators():
        why = f"one for each of {accelerators()} CUDA devices; {why}"
    else:
        why = f"no CUDA device, so one for each core that this process may use; {why}"
        if not limits and cores() > 1:
            why += "; before ten minutes of training or more, other numbers are timed too"
    yield "workers", f"at most {workers} with {threads} thread{'s' * (threads != 1)} each: {why}"
    decisions = [
        decision for decision in read_cached(out / WAYS_FILE, "decisions").values() if isinstance(decision, dict)
    ]
    speeds = [speed for speed in read_cached(out / WAYS_FILE, "workers").values() if isinstance(speed, dict) and speed]
    try:
        auto = [describe_autotune(decision).removeprefix("auto: ") for decision in decisions[-NUM_MEASUREMENTS:]]
        fastest = [str(max(speed, key=lambda n: float(speed[n]))) for speed in speeds[-NUM_MEASUREMENTS:]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{out / WAYS_FILE}: is damaged; delete it, and it is measured anew") from None
    if fastest:
        yield "measured", f"fastest numbers of workers in experiments here: {', '.join(fastest)}"
    yield from format_ratios(measure_products())
    when = "an experiment with `auto` times precision, attention and compile when it begins"
    for line in auto or [f"{when}; nothing has been measured for this folder"]:
        yield "auto", line
