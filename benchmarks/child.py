"""A process that exists to be measured: `python -m benchmarks.child KIND ARGUMENTS` prints one number."""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.memory import peak


def of_step(name: str, way: str, threads: int, checkout: str | None) -> float:
    """MiB: the peak of a process that trains in a way."""
    from benchmarks.step import memory_here

    memory_here(name, way, threads, checkout)
    return peak()


def of_size(point: dict[str, int], changes: dict[str, Any], way: str, threads: int) -> float:
    """MiB: the peak of a process that trains a model of a size in a way."""
    from benchmarks.by_size import memory_here

    memory_here(point, changes, way, threads)
    return peak()


def of_part(group: str, way: str, sizes: list[int], threads: int) -> float:
    """MiB that one pass through a part adds."""
    from benchmarks.parts import memory_here

    return memory_here(group, way, sizes, threads)


def of_metric(name: str, tokens: int) -> float:
    """MiB that a metric of calibration adds."""
    from benchmarks.calibration import memory_here

    return memory_here(name, tokens)


def of_text(what: str, *arguments: Any) -> float:
    """Seconds or MiB of preparing text in a way."""
    from benchmarks.text import measure_here

    return measure_here(what, *arguments)


KINDS: dict[str, Callable[..., float]] = {
    "step": of_step,
    "size": of_size,
    "part": of_part,
    "metric": of_metric,
    "text": of_text,
}


def main(kind: str, arguments: str) -> None:
    """Measures, and prints the number last; whatever else is printed meanwhile goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        found = KINDS[kind](*json.loads(arguments))
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
