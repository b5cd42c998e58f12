"""What `import lm` changes in how two other packages are imported, so that nothing is imported before it is used."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_REGISTERED = "lm.inference.registered"  # adds our models to those of `transformers`

_Execute = Callable[[ModuleType], None]


class _Hook(importlib.abc.MetaPathFinder):
    """Executes one module of another package in a way of its own; costs nothing before that module is imported."""

    def __init__(self, name: str, around: Callable[[_Execute, ModuleType], None]) -> None:
        self._name, self._around = name, around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec with our way to execute it; None for other modules."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._around, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _register_after(execute: _Execute, module: ModuleType) -> None:
    """Register our models once `transformers` has its table of models."""
    execute(module)
    importlib.import_module(_REGISTERED)


class _Deferred:
    """A class of `transformers`, which is imported when an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        if name.startswith("__"):  # such as the path of a package, which the stand-in is none
            raise AttributeError(name)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # asked for by whoever looks through a module, not by a user of the class
            raise AttributeError(attribute)
        return getattr(getattr(importlib.import_module("transformers"), self._name), attribute)


def without_transformers(execute: _Execute, module: ModuleType) -> None:
    """Import BERTScore without the models it can load: `import torchmetrics` would take seconds for them."""
    if "transformers" in sys.modules:
        execute(module)
        return
    stand_in = ModuleType("transformers")
    stand_in.__getattr__ = _Deferred  # type: ignore[method-assign]
    sys.modules["transformers"] = stand_in
    try:
        execute(module)
    except ImportError:  # a version that imports more of it than classes
        del sys.modules["transformers"]
        execute(module)
    finally:
        if sys.modules.get("transformers") is stand_in:
            del sys.modules["transformers"]


def install() -> None:
    """Have our models registered when `transformers` is imported, and `torchmetrics` imported without it."""
    sys.meta_path.insert(0, _Hook("torchmetrics.functional.text.bert", without_transformers))
    if "transformers.models.auto.modeling_auto" in sys.modules:
        importlib.import_module(_REGISTERED)
    else:
        sys.meta_path.insert(0, _Hook("transformers.models.auto.modeling_auto", _register_after))
