"""Effects of the factors of a design on the headline metric, and shares of initial values and data order in its noise.

A least-squares fit of a mean for each seed, every factor and every pair of factors, coded to sum to zero. Seeds are
blocks, so what the cells of one seed share is no noise. In a balanced design an effect is a contrast of plain means.

Legend of the shares: i seeds, j orders.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from lm.analysis.results import Records, is_part, load, one_tokenizer, value
from lm.config.tree import path_name
from lm.stats.components import Components, components
from lm.stats.tests import benjamini_hochberg
from lm.store.metrics import describe

DESIGNS = ("factorial", "fractional")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FactorEffect:
    """A main effect or an interaction.

    For two levels `estimate` is a contrast in the unit of the metric: second level less first; for two factors, how
    much more the one does at the other's second level than at its first. With more levels it is NaN, and `means` holds
    the mean at each level, other factors evened out. `f`, `freedom`: type II F test. `q`: p, adjusted for all effects.
    """

    name: str
    contrast: str
    estimate: float
    low: float
    high: float
    f: float
    freedom: tuple[int, int]
    p: float
    q: float = math.nan
    aliases: list[str] = field(default_factory=list)
    means: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Effects:
    """Effects that the cells identify, the number of cells, and the effects that they do not identify."""

    effects: list[FactorEffect]
    cells: int
    left_out: list[str]


def effects(results: Records) -> Effects | None:
    """Estimate the effects on the headline metric; None without factors, or if arms cannot be compared."""
    if results.manifest.get("design", {}).get("kind") not in DESIGNS:
        return None
    if not one_tokenizer(results) and describe(results.headline).per_token:
        return None
    levels = {arm: dict(described.get("levels") or {}) for arm, described in results.manifest["arms"].items()}
    cells = [
        (seed, levels[arm], value(record, results.headline))
        for (arm, seed), record in results.records.items()
        if record is not None and levels[arm]
    ]
    cells = [cell for cell in cells if math.isfinite(cell[2])]
    baseline = levels[results.manifest["baseline"]]
    in_order = {
        factor: list(dict.fromkeys([first, *(of_arm[factor] for of_arm in levels.values())]))
        for factor, first in baseline.items()
    }
    return fit(cells, in_order, results.manifest["design"].get("aliases", []))


def fit(
    cells: Sequence[tuple[int, Mapping[str, str], float]], levels: Mapping[str, Sequence[str]], aliases: Sequence[str]
) -> Effects | None:
    """Fit the effects in (seed, level of each factor, value) cells; None where there are too few."""
    from statsmodels.regression.linear_model import OLS  # takes a second to import

    if not cells:
        return None
    seeds = sorted({seed for seed, _, _ in cells})
    blocks = np.array([[float(seed == block) for block in seeds] for seed, _, _ in cells])
    parts = {}  # coded to sum to zero: a level's own column is 1, and the first level is -1 in all
    for factor, (first, *others) in levels.items():
        chosen = [cell[1][factor] for cell in cells]
        coded = [[float(level == name) - float(level == first) for name in others] for level in chosen]
        parts[factor] = np.array(coded).reshape(len(cells), len(others))
    places: dict[tuple[str, ...], slice] = {}
    left_out, design = [], blocks
    all_terms: list[tuple[str, ...]] = [*((factor,) for factor in levels), *itertools.combinations(levels, 2)]
    for term in all_terms:
        columns = parts[term[0]]
        if len(term) == 2:
            columns = (columns[:, :, None] * parts[term[1]][:, None, :]).reshape(len(cells), -1)
        wider = np.hstack([design, columns])
        if np.linalg.matrix_rank(wider) < np.linalg.matrix_rank(design) + columns.shape[1]:
            left_out.append(_name(term))
            continue
        places[term], design = slice(design.shape[1], wider.shape[1]), wider
    if not places or len(cells) <= design.shape[1]:
        return None
    fitted = OLS(np.array([cell[2] for cell in cells]), design).fit()
    fitted_effects = []
    for term in places:
        effect = _effect(fitted, design, places, term, levels)
        same = [group for group in aliases if _name(term) in group.split(" = ")]
        others = [other for group in same for other in group.split(" = ") if other != _name(term)]
        fitted_effects.append(replace(effect, aliases=others))
    adjusted = zip(fitted_effects, benjamini_hochberg([effect.p for effect in fitted_effects]), strict=True)
    return Effects([replace(effect, q=q) for effect, q in adjusted], len(cells), left_out)


def _name(term: Sequence[str]) -> str:
    return " x ".join(term)


def _effect(
    fitted: Any,
    design: Array,
    places: Mapping[tuple[str, ...], slice],
    term: tuple[str, ...],
    levels: Mapping[str, Any],
) -> FactorEffect:
    """Summarise one term, by its contrast or a factor's means; F and p are of type II, given terms without it."""
    coefficients = np.asarray(fitted.params)[places[term]]
    columns, freedom = len(coefficients), int(fitted.df_resid)
    others = np.ones(design.shape[1], dtype=bool)
    for other, place in places.items():
        others[place] = other == term or not set(term) < set(other)
    with_term = _squares(fitted.model.endog, design[:, others])
    others[places[term]] = False
    explained = max(0.0, _squares(fitted.model.endog, design[:, others]) - with_term)
    noise = float(fitted.ssr) / freedom
    f = explained / columns / noise if noise else math.inf if explained else 0.0
    p, names, means = float(scipy.special.fdtrc(columns, freedom, f)), [list(levels[factor]) for factor in term], {}
    estimate, low, high, contrast = math.nan, math.nan, math.nan, f"{columns} contrasts"
    if columns == 1:
        scale = 2.0 ** len(term)
        estimate = scale * float(coefficients[0])
        low, high = (scale * float(end) for end in np.asarray(fitted.conf_int(0.05))[places[term]][0])
        contrast = f"{names[0][1]} - {names[0][0]}"
        if len(term) == 2:
            contrast = f"({contrast}) at {names[1][1]} less at {names[1][0]}"
    elif len(term) == 1:
        centre = float(np.mean(np.asarray(fitted.params)[: min(place.start for place in places.values())]))
        deviations = [-float(coefficients.sum()), *map(float, coefficients)]
        means = {name: centre + deviation for name, deviation in zip(names[0], deviations, strict=True)}
        contrast = ", ".join(names[0])
    return FactorEffect(_name(term), contrast, estimate, low, high, f, (columns, freedom), p, means=means)


def _squares(outcome: Array, design: Array) -> float:
    solution = np.linalg.lstsq(design, outcome, rcond=None)[0]
    return float(((outcome - design @ solution) ** 2).sum())


ENDING = ".orders"  # suffix of the experiment whose arms were trained with every seed in every order


def order_name(arm: str, order: int) -> str:
    """Return the name of an arm in an order of the data; the baseline's has none."""
    return f"{arm}.order_{order}" if arm else f"order_{order}"


@dataclass(frozen=True)
class Orders:
    """A headline, or a difference in it, for each seed whole in every order, and the parts of its variance.

    There are parts from two seeds and two orders on.
    """

    seeds: list[int]
    orders: int
    left_out: list[int]
    values_ij: Array
    parts: Components | None

    def error(self, seeds: int = 1, orders: int = 1) -> float:
        """Return the standard error of the mean with so many times the seeds, and the orders."""
        assert self.parts is not None
        i, j = seeds * len(self.seeds), orders * self.orders
        return math.sqrt(self.parts.first / i + self.parts.second / j + self.parts.rest / (i * j))


def orders(results: Records) -> dict[str, Orders] | None:
    """Load the orders of an experiment: the baseline's headline and, if they were trained, differences of arms to it.

    None where no order was trained. Raises InputError where they are damaged.
    """
    name = path_name(f"{results.manifest['name']}{ENDING}", "experiment")
    folder = results.store.out / name
    if not is_part(results, folder):
        return None
    grid = load(folder)
    by_arm: dict[str, list[str]] = {}
    for arm in grid.arms:
        by_arm.setdefault(arm.rpartition("order_")[0].removesuffix("."), []).append(arm)
    values = {arm: _values(grid, names) for arm, names in by_arm.items()}
    base = values.pop("")
    differences = {arm: _orders(grid.manifest["seeds"], values_ij - base) for arm, values_ij in values.items()}
    return {results.manifest["baseline"]: _orders(grid.manifest["seeds"], base), **differences}


def _values(grid: Records, names: Sequence[str]) -> Array:
    cells = [[grid.records[arm, seed] for arm in names] for seed in grid.manifest["seeds"]]
    return np.array([[np.nan if record is None else value(record, grid.headline) for record in row] for row in cells])


def _orders(seeds: Sequence[int], values_ij: Array) -> Orders:
    whole = np.asarray(np.isfinite(values_ij).all(axis=1))
    whole_seeds = [seed for seed, good in zip(seeds, whole, strict=True) if good]
    enough = len(whole_seeds) > 1 and values_ij.shape[1] > 1
    parts = components(values_ij[whole]) if enough else None
    left_out = [seed for seed in seeds if seed not in whole_seeds]
    return Orders(whole_seeds, values_ij.shape[1], left_out, values_ij[whole], parts)
