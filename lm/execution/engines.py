"""The executors by name."""

from collections.abc import Callable, Mapping

from lm.config.tree import InputError, nearest
from lm.execution.executor import Executor
from lm.execution.local import Local
from lm.store.locks import Say, to_stderr
from lm.store.store import Store

EXECUTORS: Mapping[str, Callable[[Store, int, Say], Executor]] = {"local": Local}
"""Each made from the store, how many cells may be in its hands, and whom to tell what keeps it from starting one."""


def make(name: str, store: Store, capacity: int, say: Say = to_stderr) -> Executor:
    """The executor of this name. Raises InputError where there is none."""
    if name not in EXECUTORS:
        raise InputError(f"no executor {name!r}.{nearest(name, list(EXECUTORS))} Choose from {', '.join(EXECUTORS)}")
    return EXECUTORS[name](store, capacity, say)
