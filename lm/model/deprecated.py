"""Old names that go on working for one release, with a DeprecationWarning."""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar


def resolve_old_name(module: str, name: str, new_names: Mapping[str, str]) -> Any:
    """Return what a module's old name stands for now, by dotted paths; called by the module's `__getattr__`."""
    if name not in new_names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is now {new_names[name]}", DeprecationWarning, stacklevel=3)
    owner, _, new_name = new_names[name].rpartition(".")
    return getattr(importlib.import_module(owner), new_name)


class OldAttribute:
    """A class attribute under its old name, of the value under its new name; it warns with `text` when it is read."""

    def __init__(self, value: Any, text: str) -> None:
        self.value, self.text = value, text

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        warnings.warn(self.text, DeprecationWarning, stacklevel=2)
        return self.value.__get__(instance, owner) if hasattr(self.value, "__get__") else self.value


class RenamedAttributes:
    """A base class whose subclasses may define and read attributes by their old names.

    Each class has both names for what it defines, so that `super()` finds the next definition by either of them.
    """

    new_names: ClassVar[Mapping[str, str]] = {}  # new names by old name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for old, new in cls.new_names.items():
            defined = vars(cls)
            if old in defined and new not in defined:
                text = f"{cls.__qualname__}.{old}: {old} is called {new} now"
                warnings.warn(text, DeprecationWarning, stacklevel=3)  # past the metaclass
                setattr(cls, new, defined[old])
            elif new in defined:
                setattr(cls, old, OldAttribute(defined[new], f"{cls.__qualname__}.{old} is called {new} now"))
