"""Two hooks that `import lm` installs, and that import neither package.

`transformers` gets our models when it is imported. `torchmetrics` is imported without it, which would take seconds.
"""

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
    """Finder of one module; when that is imported, `around(execute, module)` runs in place of `execute(module)`."""

    def __init__(self, name: str, around: Callable[[_Execute, ModuleType], None]) -> None:
        self._name, self._around = name, around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec with our way to execute it; None for other modules."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)  # else the next line would come back here
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._around, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _register_after(execute: _Execute, module: ModuleType) -> None:
    """Register our models once `transformers` has its table of models."""
    execute(module)
    importlib.import_module(_REGISTERED)


class _Deferred:
    """Placeholder of a class of `transformers`: to read an attribute imports the package and returns the real one."""

    def __init__(self, name: str) -> None:
        if name.startswith("__"):  # such as __path__: the stand-in is a module, no package
            raise AttributeError(name)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # asked for by tools that look through modules
            raise AttributeError(attribute)
        return getattr(getattr(importlib.import_module("transformers"), self._name), attribute)


def without_transformers(execute: _Execute, module: ModuleType) -> None:
    """Execute the module of BERTScore with a stand-in for `transformers`, unless that is imported already."""
    if "transformers" in sys.modules:
        execute(module)
        return
    stand_in = ModuleType("transformers")
    stand_in.__getattr__ = _Deferred  # type: ignore[method-assign]
    sys.modules["transformers"] = stand_in
    try:
        execute(module)
    except ImportError:  # of a torchmetrics that needs more of it than classes
        del sys.modules["transformers"]
        execute(module)
    finally:
        if sys.modules.get("transformers") is stand_in:
            del sys.modules["transformers"]


def install() -> None:
    """Install both hooks; `modeling_auto` of `transformers` holds the table that our models are added to."""
    sys.meta_path.insert(0, _Hook("torchmetrics.functional.text.bert", without_transformers))
    if "transformers.models.auto.modeling_auto" in sys.modules:
        importlib.import_module(_REGISTERED)
    else:
        sys.meta_path.insert(0, _Hook("transformers.models.auto.modeling_auto", _register_after))
