"""Whether a search can be carried out: each choice and the ends of each range are built before anything is trained."""

from typing import Any

import optuna

from lm.config.components import resolve
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, override
from lm.search.space import Space
from lm.training.cell import check
from lm.training.run import Run

TRIES = 20
"""Draws of the other dimensions with which a value that does not go with the base's is tried."""


def check_space(space: Space, tree: Tree) -> None:
    """Finds what no trial could be trained with: misspelt paths and names, wrong types, values outside their domain.

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
    """Why the changes can be built with nothing else that may be drawn; an empty string where they can."""
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
    return f"{path}.".startswith(f"{start}.")
