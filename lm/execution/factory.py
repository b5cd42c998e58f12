"""Make executors from the text of a command line: `local`, `ray`, `ray://HOST:PORT`, `slurm:partition=gpu,time=60`.

An executor is a file with a subclass of `lm.execution.executor.Executor`, and a line in `EXECUTORS`. Its file is
imported on use, as that takes seconds.
"""

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lm.config.plain import shown
from lm.config.tree import InputError, nearest
from lm.store.store import Store

if TYPE_CHECKING:  # it imports torch
    from lm.execution.executor import Executor

LOCAL = "local"
# module and class of each executor
EXECUTORS: Mapping[str, tuple[str, str]] = {
    LOCAL: ("lm.execution.local", "Local"),
    "ray": ("lm.execution.on_ray", "Ray"),
    "slurm": ("lm.execution.on_slurm", "Slurm"),
}

HOST_PORT = re.compile(r"[\w.-]+:[0-9]{1,5}")
PLAIN = re.compile(r"[\w.:&|*()\[\]/+-]+")  # values that go into a batch script unquoted


@dataclass(frozen=True)
class ExecutorSpec:
    """Name and options of an executor."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def executor(self) -> "type[Executor]":
        """Class of the executor."""
        module, name = EXECUTORS[self.name]
        executor: type[Executor] = getattr(importlib.import_module(module), name)
        return executor


def parse_executor(value: object, where: str = "--executor") -> ExecutorSpec:
    """Parse the text of an executor, with `where` for messages. Raises InputError if it or its package is missing."""
    text = value if isinstance(value, str) else ""
    name, _, rest = text.partition(":")
    if name not in EXECUTORS:
        choices = f"{nearest(name, list(EXECUTORS))} Choose from {', '.join(EXECUTORS)}"
        raise InputError(f"{where}: no executor {shown(name if text else value)}.{choices}")
    if text == LOCAL:  # has nothing to check
        return ExecutorSpec(LOCAL)
    executor = ExecutorSpec(name).executor
    if rest.startswith("//") and "address" in executor.options:
        options = {"address": text}
        if not HOST_PORT.fullmatch(rest[2:]):
            raise InputError(f"{where} {text}: expected {name}://HOST:PORT, as in {name}://head.example:10001")
    else:
        options = {}
        for part in rest.split(",") if rest else ():
            key, equals, option = (text.strip() for text in part.partition("="))
            if key not in executor.options:
                listed = f"Choose from {', '.join(executor.options)}" if executor.options else "It takes none"
                closest = nearest(key, list(executor.options))
                raise InputError(f"{where} {name}: no option {shown(key)}.{closest} {listed}")
            if not equals or not option:
                raise InputError(f"{where} {name}: {key}: expected {key}=VALUE, {executor.options[key]}")
            if key in options:
                raise InputError(f"{where} {name}: {key} is given twice")
            options[key] = option
        for key, option in options.items():
            if not PLAIN.fullmatch(option):
                expected = executor.options[key]
                raise InputError(f"{where} {name}: {key}: expected {expected}, found {shown(option)}")
    executor.check_options(options, f"{where} {name}")
    for package in executor.packages(options):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{where} {name} needs {package}: pip install 'lm-ablations[{name}]'")
    return ExecutorSpec(name, options)


def usable(value: object, loggers: Sequence[str], where: str = "--executor", of_loggers: str = "--logger") -> str:
    """Return the executor if it can be reached and supports the loggers. Raises InputError naming the options."""
    spec = parse_executor(value, where)
    if spec.name != LOCAL:
        if spec.executor.no_loggers and loggers:
            raise InputError(f"{of_loggers}: {spec.executor.no_loggers}; expected another {where}")
        spec.executor.check_reachable(spec.options, f"{where} {spec.name}")
    return str(value)


def make_executor(text: str, store: Store, capacity: int) -> "Executor":
    """Make the executor that a text names. Raises InputError if there is none or it cannot be started."""
    spec = parse_executor(text)
    return spec.executor(store, capacity, spec.options)


def prepare(text: str) -> None:
    """Start what takes an executor seconds. Raises InputError if there is no such executor."""
    parse_executor(text).executor.prepare()


def capacity(text: str, cells: int, search: bool = False) -> int | None:
    """Return how many of these cells the executor trains at a time, None if this machine decides. Raises InputError."""
    spec = parse_executor(text)
    return spec.executor.default_capacity(spec.options, cells, search)


def threads(text: str, workers: int) -> int:
    """Return the threads of a cell with `workers` at a time; of the environment, or one, on other machines."""
    spec = parse_executor(text)
    return spec.executor.threads_each(spec.options, workers)
