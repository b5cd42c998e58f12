"""Ablations for transformer language models: paired, honest, resumable."""

import importlib
from typing import Any

from lm.import_hooks import install

__version__ = "0.9.0"

_PUBLIC = (
    "InputError", "Ladder", "Results", "Run", "Trained", "ablate", "figure", "fit", "generate", "load", "load_model",
)  # fmt: skip
"""What `lm.api` holds for others, imported when it is first asked for; `__init__.pyi` tells type checkers of it."""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lm' has no attribute {name!r}")
    return getattr(importlib.import_module("lm.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


install()
