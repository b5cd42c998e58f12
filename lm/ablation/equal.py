"""Holding tokens, FLOPs or seconds equal: arms train for as many steps as those of their baseline pay for."""

from collections.abc import Callable, Mapping

from lm.config.tree import InputError
from lm.training.cell import Cell, Sizes, sizes

KINDS = ("steps", "tokens", "flops", "seconds")


def cost_per_step(cell: Cell, kind: str, seconds: Callable[[Cell], float]) -> float:
    """What an optimiser step of the cell costs."""
    if kind == "seconds":
        return seconds(cell)
    of: Sizes = sizes(cell)
    if kind == "tokens":
        return of.tokens_per_step
    if of.flops_per_token is None:
        raise InputError("equal: flops: this model has parts whose FLOPs nobody has counted; hold tokens equal")
    return of.tokens_per_step * of.flops_per_token


def equal_steps(
    cells: Mapping[str, Cell], baseline: str, kind: str, seconds: Callable[[Cell], float]
) -> dict[str, int]:
    """Optimiser steps for each arm, so that all cost what the baseline's do.

    Raises:
        InputError: for an arm that sets its steps itself.
    """
    steps = {arm: cell.config["trainer"]["max_steps"] for arm, cell in cells.items()}
    if kind == "steps":
        return steps
    own = next((arm for arm in cells if steps[arm] != steps[baseline]), None)
    if own is not None:
        raise InputError(f"arm {own}: trainer.max_steps is set by the arm, and by equal: {kind}; leave one of them out")
    budget = steps[baseline] * cost_per_step(cells[baseline], kind, seconds)
    costs = {arm: cost_per_step(cell, kind, seconds) for arm, cell in cells.items() if arm != baseline}
    return {arm: max(1, round(budget / costs[arm])) if arm in costs else steps[arm] for arm in cells}
