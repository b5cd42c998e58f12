"""Ablations for transformer language models: paired, honest, resumable."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

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


_REGISTERED = "lm.inference.registered"  # adds our models to those of `transformers`


class _Registration(importlib.abc.MetaPathFinder):
    """Registers our models once `transformers` looks for the classes of models, and costs nothing before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, which registers our models after it has run; None for other modules."""
        if fullname != "transformers.models.auto.modeling_auto":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                importlib.import_module(_REGISTERED)

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


if "transformers.models.auto.modeling_auto" in sys.modules:
    importlib.import_module(_REGISTERED)
else:
    sys.meta_path.insert(0, _Registration())
