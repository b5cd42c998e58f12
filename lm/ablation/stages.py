"""Seeds added in stages, until every confirmatory difference is settled or the seeds are spent."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Required, TypedDict

from lm.analysis.results import Results, paired
from lm.config.keys import Also, keys
from lm.config.plain import shown
from lm.config.reading import MOST_SEEDS
from lm.config.tree import InputError, nearest
from lm.stats.sequential import plan_looks, sequential
from lm.stats.tests import ALPHA

STAGES = 4


class Stages(TypedDict, total=False):
    """Seeds added in stages, until every confirmatory difference is found or the seeds are spent."""

    min: Required[Annotated[int, "Seeds before the first look.", Also(minimum=1)]]
    max: Required[Annotated[int, "Seeds at most.", Also(minimum=1, maximum=MOST_SEEDS)]]
    stages: Annotated[int, "Looks.", Also(minimum=1, maximum=MOST_SEEDS, default=STAGES)]


KEYS = keys(Stages)


def read_stages(value: Mapping[str, Any], comparisons: int, path: str) -> tuple[int, ...]:
    """The numbers of seeds after which to look, from `{min, max, stages}`. Raises InputError naming `path`."""
    for key in value:
        if key not in KEYS:
            raise InputError(f"{path}: no key {key!r}.{nearest(str(key), KEYS)} It takes {', '.join(KEYS)}")
    numbers = {"stages": STAGES, **value}
    for key in KEYS:
        number = numbers.get(key)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"{path}.{key}: expected a whole number from 1, found {shown(number)}")
    if numbers["min"] > numbers["max"]:
        raise InputError(f"{path}: min={numbers['min']} is more than max={numbers['max']}")
    if numbers["max"] > MOST_SEEDS:
        raise InputError(f"{path}.max: expected {MOST_SEEDS} seeds at most, found {numbers['max']}")
    if numbers["stages"] > MOST_SEEDS:
        found = numbers["stages"]
        raise InputError(f"{path}.stages: expected {MOST_SEEDS} at most, as every one adds a seed, found {found}")
    return plan_looks(numbers["min"], numbers["max"], numbers["stages"], ALPHA / max(1, comparisons))


def settled(results: Results, planned: tuple[int, ...], confirmatory: list[str]) -> dict[str, bool]:
    """For each confirmatory arm, whether its difference in the headline metric has been found."""
    found = {}
    for arm in confirmatory:
        differences = [x - y for x, y in paired(results, arm, results.headline)]
        differences = [difference for difference in differences if math.isfinite(difference)]
        look = sequential(differences, planned, planned[-1], ALPHA / (len(confirmatory) * len(results.judged)))
        found[arm] = look is not None and look.rejected
    return found
