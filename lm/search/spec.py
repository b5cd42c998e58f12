"""Sweep files: what a search draws, its objectives, and its methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict

from lm.analysis.results import HEADLINE
from lm.config.imported import add_module_folder
from lm.config.keys import Also, Changes, Text, ref
from lm.config.nodes import read_section
from lm.config.plain import shown
from lm.config.reading import Seeds, read_base, read_seeds, report_name, require_kind, resolve_file
from lm.config.tree import InputError, Tree, load_yaml, nearest, override
from lm.config.usual_names import suggest
from lm.search.space import Space, SpacePaths, read_space
from lm.store.metrics import METRICS, VALIDATION_METRICS

# samplers and their options, beside `seed`; named as Optuna names them
SAMPLERS: dict[str, tuple[str, ...]] = {
    "tpe": ("n_startup_trials", "n_ei_candidates"),
    "gp": ("n_startup_trials",),
    "cmaes": ("n_startup_trials", "sigma0", "popsize"),
    "nsga2": ("population_size", "crossover_prob", "mutation_prob", "swapping_prob"),
    "random": (),
    "qmc": ("qmc_type", "scramble"),
    "grid": (),
}
# domains of options: both ends of a range of numbers, or the words
OPTIONS: dict[str, tuple[Any, ...]] = {
    "seed": (0, 2**32 - 1),
    "n_startup_trials": (0, 1_000_000),
    "n_ei_candidates": (1, 100_000),
    "sigma0": (1e-12, 1e12),
    **dict.fromkeys(("popsize", "population_size", "reduction_factor"), (2, 1_000_000)),
    **dict.fromkeys(("crossover_prob", "mutation_prob", "swapping_prob"), (0.0, 1.0)),
    "qmc_type": ("sobol", "halton"),
    "scramble": (False, True),
    "n_warmup_steps": (0, 2**53),
    **dict.fromkeys(("interval_steps", "min_resource"), (1, 2**53)),
    "n_min_trials": (1, 1_000_000),
}

MOST_CELLS = 100_000  # largest number of cells of a search; more are refused as a typo
# Pruners and their options. Steps and resources are optimiser steps.
PRUNERS: dict[str, tuple[str, ...]] = {
    "median": ("n_startup_trials", "n_warmup_steps", "interval_steps", "n_min_trials"),
    "hyperband": ("min_resource", "reduction_factor"),
    "none": (),
}


Sampler = Annotated[str | dict[str, Any], ref("Sampler")]
Pruner = Annotated[str | dict[str, Any], ref("Pruner")]


class SweepFile(TypedDict, total=False):
    """A search over settings of a configuration."""

    title: Annotated[Text, "Title of the report; by default the file's name."]
    base: Required[Annotated[str, "The configuration that every trial starts from, relative to this file."]]
    common: Annotated[Changes, "Changes to the base, before anything is drawn."]
    space: Required[Annotated[SpacePaths, "What is searched."]]
    objectives: Annotated[
        dict[str, Literal["lower", "higher"] | None],
        "Quantities of the table, each with lower or higher; its own direction where that is null.",
        Also(propertyNames={"enum": list(METRICS)}, minProperties=1, default={HEADLINE: None}),
    ]
    trials: Annotated[
        Annotated[int, Also(minimum=1)] | None, "Number of trials, failed ones included; a grid needs none."
    ]
    seeds: Annotated[Seeds, "Every trial is trained with each, and their mean counts.", Also(default=[0])]
    sampler: Annotated[Sampler, "How values are drawn."]
    pruner: Annotated[Pruner, "How trials are stopped early."]
    storage: Annotated[Text, "An Optuna URL; by default a journal in the study's folder."]
    notes: Annotated[Text, "Printed under the table."]


@dataclass(frozen=True)
class Method:
    """Name and options of a sampler or a pruner."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"name": self.name, "seed": self.seed, **self.options}


@dataclass(frozen=True)
class SweepSpec:
    """A search, as `SweepFile` describes it; `tree` is the base with its changes."""

    name: str  # of the study, and of the folder its report goes to
    title: str
    tree: Tree
    space: Space
    objectives: dict[str, str]
    trials: int
    seeds: list[int]
    sampler: Method = Method("tpe")
    pruner: Method = Method("none")
    storage: str | None = None  # an Optuna URL, or None for a journal in the study's folder
    notes: str = ""

    def definition(self) -> dict[str, Any]:
        """Return the settings that make trials comparable; a study has trials of one definition only."""
        space = self.space.described()
        return {"base": self.tree, "space": space, "objectives": self.objectives, "seeds": self.seeds}


def load_sweep(path: Path, settings: Mapping[str, Any], trials: int | None = None) -> SweepSpec:
    """Read a sweep file, or a shipped one, with dotted changes and a number of trials. Raises InputError."""
    path = resolve_file(path, "sweep")
    add_module_folder(path.parent)
    tree = load_yaml(path)
    require_kind(tree, path, "sweep")
    tree = read_section(tree, SweepFile, f"{path}:")
    name, base, space = report_name(path), read_base(tree, path), read_space(tree["space"], f"{path}: space")
    for key in settings:
        for dimension in space.dimensions:
            if f"{key}.".startswith(f"{dimension.path}.") or f"{dimension.path}.".startswith(f"{key}."):
                raise InputError(f"{key}: is searched ({dimension.path} in {path}), so it cannot be set")
    spec = SweepSpec(
        name=name,
        title=tree.get("title") or path.stem,
        tree=override(base, settings),
        space=space,
        objectives=_objectives(tree["objectives"], f"{path}: objectives"),
        trials=1,
        seeds=read_seeds(tree["seeds"], f"{path}: seeds"),
        sampler=read_method(tree.get("sampler", "tpe"), SAMPLERS, f"{path}: sampler"),
        pruner=read_method(tree.get("pruner", "none"), PRUNERS, f"{path}: pruner"),
        storage=tree.get("storage") or None,
        notes=tree.get("notes", ""),
    )
    check_methods(spec, str(path))
    where, value = (f"{path}: trials", tree.get("trials")) if trials is None else ("--trials", trials)
    points = spec.space.points() if spec.sampler.name == "grid" else None
    if value is None and points is not None:
        return replace(spec, trials=points)
    if type(value) is not int or value < 1:
        raise InputError(f"{where}: expected a whole number from 1, found {shown(value)}")
    number = value if points is None else min(value, points)
    if number * len(spec.seeds) > MOST_CELLS:
        raise InputError(f"{where}: {number * len(spec.seeds):,} cells, expected {MOST_CELLS:,} at most")
    return replace(spec, trials=number)


def _objectives(value: Mapping[str, str | None], where: str) -> dict[str, str]:
    objectives = {}
    for name, direction in value.items():
        if name not in METRICS:
            choices = f"{suggest(name, list(METRICS), 'metrics')} Choose from {', '.join(METRICS)}"
            raise InputError(f"{where}: no quantity {name!r}.{choices}")
        if (direction := direction or METRICS[name].better) is None:
            raise InputError(f"{where}.{name}: neither more nor less is better; expected lower or higher")
        objectives[name] = direction
    return objectives


def accepted_options(methods: Mapping[str, Sequence[str]], name: str) -> tuple[str, ...]:
    """Return the options of a sampler or pruner; a sampler has a seed too."""
    return (*(("seed",) if methods is SAMPLERS else ()), *methods[name])


def read_method(value: Any, methods: Mapping[str, Sequence[str]], where: str) -> Method:
    """Parse a sampler or pruner, a name or `{name, seed, ...}`. Raises InputError with the nearest choice."""
    node = {"name": value} if isinstance(value, str) else value
    if not isinstance(node, Mapping) or "name" not in node:
        raise InputError(f"{where}: expected {{name, ...}}, found {shown(value)}")
    name = node["name"]
    if not isinstance(name, str) or name not in methods:
        listed = ", ".join(methods)
        raise InputError(f"{where}.name: no {name!r}.{nearest(str(name), list(methods))} Choose from {listed}")
    accepted = ("name", *accepted_options(methods, name))
    for key in node:
        if key not in accepted:
            listed = ", ".join(accepted)
            raise InputError(f"{where}: {name} has no option {key!r}.{nearest(key, accepted)} It takes {listed}")
        value, domain = node[key], OPTIONS.get(key, ())  # Optuna would reject some only in the middle of a search
        if domain and isinstance(domain[0], str | bool):
            if value not in domain or type(value) is not type(domain[0]):
                listed = ", ".join(map(str, domain))
                raise InputError(f"{where}.{key}: expected one of {listed}, found {shown(value)}")
        elif domain:
            low, high = domain
            is_whole = isinstance(low, int)
            if not ((type(value) is int or (isinstance(value, float) and not is_whole)) and low <= value <= high):
                kind = "whole number" if is_whole else "number"
                raise InputError(f"{where}.{key}: expected a {kind} from {low:,} to {high:,}, found {shown(value)}")
    return Method(name, {k: v for k, v in node.items() if k not in ("name", "seed")}, int(node.get("seed", 0)))


def check_methods(spec: SweepSpec, where: str) -> None:
    """Check that the sampler and the pruner support the objectives. Raises InputError."""
    several = len(spec.objectives) > 1
    if several and spec.sampler.name == "cmaes":
        raise InputError(f"{where}: sampler: cmaes knows one objective; use nsga2, tpe or gp for several")
    if several and spec.pruner.name != "none":
        raise InputError(f"{where}: pruner: trials can be pruned by one objective only; leave it out")
    if spec.pruner.name != "none" and (first := next(iter(spec.objectives))) not in VALIDATION_METRICS:
        choices = f"prune by one of {', '.join(VALIDATION_METRICS)}"
        raise InputError(f"{where}: pruner: {first} is not measured while a cell trains; {choices}")
