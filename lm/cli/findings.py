"""What `lm doctor` found, in lines for a terminal."""

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from lm.execution.precisions import format_ratios

Said = dict[str, Any]

LEAST_GIB = 1.0
"""Free space below which it is said that there is little."""

LABEL = 14
"""Columns of what stands before each line."""


def lines(found: Said) -> list[str]:
    """All of it, a heading before each part."""
    parts = {
        "installed": _installed(found),
        "extras": _extras(found["extras"]),
        "devices": _devices(found["devices"]),
        "compiler": _compiler(found["compiler"]),
        "places": _places(found["places"]),
        "choices": _choices(found["choices"]),
    }
    shown = [found["versions"]["system"]]
    for name, of_it in parts.items():
        shown += ["", name, *(line for label, text in of_it for line in _wrapped(label, text))]
    return [*shown, "", "nothing is wrong" if found["ok"] else f"wrong: {len(found['wrong'])}, told below"]


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        max(60, shutil.get_terminal_size((80, 24)).columns),
        initial_indent=f"  {label:<{LABEL - 1}} ",
        subsequent_indent=" " * (LABEL + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


Lines = Iterator[tuple[str, str]]


def _installed(found: Said) -> Lines:
    yield "lm", found["versions"]["lm"]
    yield "Python", found["versions"]["python"]
    named = {one["name"]: one for one in found["packages"]}
    for name in ("torch", "lightning", "optuna"):
        if name in named:
            yield name, _version(named.pop(name))
    if named:
        yield "also", ", ".join(f"{name} {_version(one)}" for name, one in named.items())


def _version(one: Said) -> str:
    return one["version"] if one["version"] and not one["wrong"] else f"({one['wrong']})"


def _extras(found: list[Said]) -> Lines:
    for one in found:
        adds = f"{one['adds']}" if one["adds"] else "more"
        if one["installed"]:
            yield one["name"], f"is there: {adds}"
            continue
        lacks = ", ".join(package["name"] for package in one["packages"] if package["wrong"])
        yield one["name"], f"would add {adds}; lacks {lacks}: {one['pip']}"


def _devices(found: Said) -> Lines:
    if not found:
        yield "unknown", "torch does not load"
        return
    yield "processor", f"{found['processor']}, {_cores(found)}"
    yield "vectors", f"torch uses {found['vectors']}; it has {', '.join(found['flags']) or 'none that matter here'}"
    if found["memory_gib"] is not None:
        yield "memory", f"{found['memory_gib']:z.1f} GiB, of which {found['memory_available_gib'] or 0:z.1f} are free"
    built = f"torch is built for CUDA {found['torch_cuda']}" if found["torch_cuda"] else "torch is built without it"
    if not found["cuda"]:
        yield "CUDA", f"no device; {built}"
    for index, one in enumerate(found["cuda"]):
        yield f"CUDA {index}", f"{one['name']}, {one['memory_gib']:z.1f} GiB, capability {one['capability']}; {built}"


def _cores(found: Said) -> str:
    if found["cores_in_all"] in (None, found["cores"]):
        return f"{found['cores']} cores"
    return f"{found['cores']} of its {found['cores_in_all']} cores may be used"


def _compiler(found: Said) -> Lines:
    if found["path"] is None:
        yield "none", "trainer.compile on the processor needs one, such as g++; all else works without"
        return
    yield "C++", found["version"]
    if not found["python_headers"]:
        yield "headers", "those of Python are missing, which trainer.compile on the processor needs; all else works"


def _places(found: list[Said]) -> Lines:
    for one in found:
        state = "can be written to" if one["writable"] else "cannot be written to"
        new = "" if one["there"] else "not there yet, "
        free = "" if one["free_gib"] is None else f", {one['free_gib']:z.1f} GiB free"
        scarce = ", which is little" if one["free_gib"] is not None and one["free_gib"] < LEAST_GIB else ""
        yield one["name"], f"{one['path']}: {new}{state}{free}{scarce}"


def _choices(found: Said) -> Lines:
    if not found:
        yield "unknown", "see below"
        return
    yield "executor", f"{found['executor']}: processes of this machine"
    threads = "1 thread" if found["threads_each"] == 1 else f"{found['threads_each']} threads"
    yield "workers", f"{found['workers']} with {threads} each, as far as there are cells: {found['why']}"
    if found["measured_workers"]:
        yield "measured", f"workers that were fastest here for experiments: {', '.join(found['measured_workers'])}"
    for name, line in format_ratios(found["precisions"]):
        yield name, line
    for line in found["auto"]:
        yield "auto", line.removeprefix("auto: ")
    if not found["auto"]:
        when = "precision, attention and compile are timed when an experiment that asks for `auto` begins"
        yield "auto", f"{when}; nothing has been measured for this folder"
