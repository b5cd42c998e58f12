"""The cases by name: what each measures, and what measures it."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.asked import Asked
from benchmarks.rows import Measured, Row
from lm.config.tree import InputError, nearest


@dataclass(frozen=True)
class Case:
    """A case: what it measures, in a line. A module here of its name has a function of its name that measures it."""

    name: str
    about: str

    def measured(self, asked: Asked) -> Measured:
        """Its rows."""
        measure: Callable[[Asked], list[Row]] = getattr(importlib.import_module(f"benchmarks.{self.name}"), self.name)
        return {"about": self.about, "rows": measure(asked)}


CASES = {
    name: Case(name, about)
    for name, about in (
        ("step", "a training step: bare loop, lm fit and other implementations, fp32 and bf16"),
        ("roofline", "where a step spends its time: each operation's FLOPs and bytes beside what the machine can do"),
        ("parts", "norms, positions, attention, MLPs and calibration, forward and backward"),
        ("losses", "ways to compute the loss, at vocabularies of 8,192 and 32,768: time and memory"),
        (
            "by_size",
            "seconds and memory of a step over width, depth, context and vocabulary, beside other implementations",
        ),
        ("text", "preparing text beside numpy, encode_batch_fast, nanoGPT's way and datasets.map: MB/s and memory"),
        ("generation", "tokens with and without a cache of keys and values"),
        ("start", "lm --help, and lm fit until its first step, beside importing torch"),
        ("cells", "what a cell of the quickstart takes beyond its training"),
        ("gpu", "a training step on a CUDA device, beside nanoGPT's, compiled too"),
        ("gpu_cells", "small cells on a CUDA device by the number of processes that share it, with and without MPS"),
        ("scale", "planning 10,000 cells and reporting on 1,000, against their limits"),
    )
}


def chosen(names: Sequence[str]) -> dict[str, Case]:
    """The cases of these names, all of them where none is given. Raises InputError for one that is not there."""
    for name in names:
        if name not in CASES:
            raise InputError(f"no case {name!r}.{nearest(name, list(CASES))} Choose from {', '.join(CASES)}")
    return {name: case for name, case in CASES.items() if not names or name in names}


def require_checkout(path: Path | None) -> None:
    """Raises InputError unless a checkout of nanoGPT lies at `path`."""
    if path is not None and not (path / "model.py").is_file():
        raise InputError(f"--nanogpt {path}: no model.py in it; expected a checkout of nanoGPT")
