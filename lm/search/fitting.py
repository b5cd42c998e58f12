"""Check of a search before it runs: each choice and the ends of each range are built."""

from typing import Any

import optuna

from lm.config.components import resolve
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, override
from lm.search.space import Space
from lm.training.cell import check
from lm.training.run import Run

TRIES = 20
"""Draws of the other dimensions with which a value that does not fit the base is built."""


def check_space(space: Space, tree: Tree) -> None:
    """Check that every choice and both ends of every range can be trained.

    A value that cannot be built with the other values of the base is tried with others drawn from the space.

    Raises:
        InputError: naming the path.
    """
    resolve(tree, Run)
    examples = space.examples()
    for changes in examples:
        try:
            resolve(override(tree, changes), Run)
        except InputError as error:
            hint = " (int: true draws whole numbers)" if "expected a whole number" in str(error) else ""
            raise InputError(f"space: {error}{hint}") from None
    for changes in examples:
        if problem := _problem(space, tree, changes):
            drawn = ", ".join(f"{path}={shown(value)}" for path, value in changes.items())
            raise InputError(f"space: {drawn} cannot be trained: {problem}")


def _problem(space: Space, tree: Tree, changes: dict[str, Any]) -> str:
    """Return why the changes cannot be built with any other values of the space; empty if they can."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, problem = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)), ""
    for attempt in range(1 + TRIES if len(space.dimensions) > 1 else 1):
        drawn = space.suggest(study.ask()) if attempt else {}
        others = {path: value for path, value in drawn.items() if not any(_under(path, changed) for changed in changes)}
        try:
            check(override(tree, {**others, **changes}))
            return ""
        except InputError as error:
            problem = problem or str(error)
    return problem


def _under(path: str, start: str) -> bool:
    """Return True if a dotted path is `start` or lies below it."""
    return f"{path}.".startswith(f"{start}.")
