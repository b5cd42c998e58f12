"""Shares of initialisation and of data order in the variance of the loss.

Legend: i seeds, j orders.
"""

from dataclasses import dataclass

import numpy as np

from lm.analysis.results import Results, load, value
from lm.config.tree import path_name
from lm.stats.components import Array, Components, components

ENDING = ".orders"
"""Suffix of the experiment in which the baseline was trained with every seed in every order."""


@dataclass(frozen=True)
class Orders:
    """The headline quantity of the baseline for each seed and order.

    Args:
        seeds: that ended well in every order.
        orders: how many.
        left_out: seeds that lack a cell, or have one that did not end well.
        values_ij: of these seeds.
        parts: of their variance; None for fewer than two seeds.
    """

    seeds: list[int]
    orders: int
    left_out: list[int]
    values_ij: Array
    parts: Components | None


def orders(results: Results) -> Orders | None:
    """Load the orders of an experiment; None where it has none, or none was trained.

    Raises:
        InputError: where they are damaged.
    """
    name = path_name(f"{results.manifest['name']}{ENDING}", "experiment")
    folder = results.store.out / name
    if not (folder / "experiment.json").is_file():
        return None
    grid = load(folder)
    seeds = grid.manifest["seeds"]
    cells = [[grid.records[arm, seed] for arm in grid.arms] for seed in seeds]
    values = np.array([[np.nan if record is None else value(record, grid.headline) for record in row] for row in cells])
    whole = np.isfinite(values).all(axis=1)
    whole_seeds = [seed for seed, good in zip(seeds, whole, strict=True) if good]
    enough = len(whole_seeds) > 1 and values.shape[1] > 1
    return Orders(
        whole_seeds,
        values.shape[1],
        [seed for seed in seeds if seed not in whole_seeds],
        values[whole],
        components(values[whole]) if enough else None,
    )
