"""An experiment file: a baseline, arms or a design, seeds, how differences are judged, claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm.ablation.design import MOST_ARMS, Design, read_design
from lm.ablation.files import ExperimentFile, Tier
from lm.ablation.inference import Inference, one_of, read_inference
from lm.ablation.rates import Grid, read_grid
from lm.ablation.rungs import LadderSpec, read_ladder
from lm.ablation.stages import read_stages
from lm.ablation.tuning import Tuning, read_tuning
from lm.analysis.claims import Claim, read_claims
from lm.config.imported import add_module_folder
from lm.config.keys import keys, required
from lm.config.reading import (
    read_base,
    read_changes,
    read_mapping,
    read_seeds,
    read_text,
    report_name,
    require_kind,
    resolve_file,
)
from lm.config.tree import InputError, Tree, load_yaml, nearest, override, path_name
from lm.stats.tests import ALPHA, seeds_needed, smallest_p

KEYS, TIER_KEYS = keys(ExperimentFile), keys(Tier)


@dataclass(frozen=True)
class Experiment:
    """One ablation: a baseline and the arms that differ from it.

    Args:
        name: of the file, and of the folder its report goes to.
        title: what the report is headed with.
        tree: the configuration that every arm starts from.
        design: the baseline, and for each arm dotted paths and what to put there.
        seeds: every arm is trained with each.
        inference: how differences are judged.
        claims: what the results are to bear out.
        notes: printed under the table.
        tier: the size, where it is not the file's own.
        tuning: the search that each arm's nuisance parameters get, if any.
        grid: the learning rates that each arm is trained over, if any.
        ladder: its sizes, where it has several.
        data_seeds: orders of the data that the baseline is trained in with every seed, if any.
        ways: what `auto` came to, and what was timed for it (`lm.inference.ways.Decision`), where anything was.
    """

    name: str
    title: str
    tree: Tree
    design: Design
    seeds: list[int]
    inference: Inference = field(default_factory=Inference)
    claims: tuple[Claim, ...] = ()
    notes: str = ""
    tier: str = ""
    tuning: Tuning | None = None
    grid: Grid | None = None
    ladder: LadderSpec | None = None
    data_seeds: tuple[int, ...] = ()
    ways: dict[str, Any] | None = None

    @property
    def baseline(self) -> str:
        """The arm the others are compared with."""
        return self.design.baseline

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """For each arm, dotted paths and what to put there."""
        return self.design.arms


def load_experiment(
    path: Path,
    settings: Mapping[str, Any],
    seeds: Any = None,
    tier: str = "",
    called: Callable[[str], str] = lambda name: f"--{name}",
) -> Experiment:
    """Reads an experiment file.

    Args:
        path: the YAML file, or the name of a shipped one; `base` in it is relative to it.
        settings: dotted changes to the base, applied to every arm before its own.
        seeds: instead of the file's, in the same grammar.
        tier: another size of the same experiment, one of its `tiers`; its name is added to the experiment's.
        called: what the person who gave `seeds` or `tier` calls them.

    Raises:
        InputError: naming the place.
    """
    path = resolve_file(path, "experiment")
    add_module_folder(path.parent)
    tree = load_yaml(path)
    require_kind(tree, path, "experiment")
    tree = at_tier(tree, tier, path, called("tier"))
    for key in tree:
        if key not in KEYS:
            raise InputError(f"{path}: no key {key!r} in an experiment.{nearest(key, KEYS)} It takes {', '.join(KEYS)}")
    for key in required(ExperimentFile):
        if key not in tree:
            raise InputError(f"{path}: {key} is missing; an experiment needs base, seeds, and arms or a design")
    name = report_name(path, tier)
    design = _design(tree, path)
    base = read_base(tree, path)
    inference = read_inference(tree, design, path)
    given, where = (tree["seeds"], f"{path}: seeds") if seeds is None else (seeds, called("seeds"))
    if isinstance(given, Mapping):
        if tree.get("claims"):
            raise InputError(
                f"{where}: stages end where differences are found, so that no claim's test would hold its level; "
                "give a number of seeds, or leave the claims to another experiment"
            )
        inference = replace(inference, looks=read_stages(given, inference.comparisons, where))
        given = list(range(inference.looks[-1]))
    chosen = read_seeds(given, where)
    declared = [] if isinstance(tree["seeds"], Mapping) else read_seeds(tree["seeds"], f"{path}: seeds")
    claims = read_claims(
        [] if tree.get("claims") is None else tree["claims"],
        list(design.arms),
        design.baseline,
        f"{path}: claims",
        declared or chosen,
    )
    if "tune" in tree and "lr_curve" in tree:
        raise InputError(f"{path}: tune and lr_curve both choose a rate for each arm; expected one of them")
    ladder = read_ladder(tree, chosen, inference.metric, settings, str(path), same_seeds=seeds is not None)
    return Experiment(
        name=name,
        title=read_text(tree, "title", path) or path.stem,
        tree=override(base, settings),
        design=design,
        seeds=chosen,
        inference=inference,
        claims=tuple(claims),
        notes=read_text(tree, "notes", path),
        tier=tier,
        tuning=read_tuning(tree["tune"], inference.metric, chosen, f"{path}: tune") if "tune" in tree else None,
        grid=read_grid(tree["lr_curve"], inference.metric, chosen, f"{path}: lr_curve") if "lr_curve" in tree else None,
        ladder=ladder,
        data_seeds=_data_seeds(tree, chosen, inference, path) if "data_seeds" in tree else (),
    )


def _data_seeds(tree: Tree, seeds: Sequence[int], inference: Inference, path: Path) -> tuple[int, ...]:
    """The orders that are crossed with the seeds."""
    found = read_seeds(tree["data_seeds"], f"{path}: data_seeds")
    if len(found) < 2 or len(seeds) < 2 or inference.looks:
        raise InputError(
            f"{path}: data_seeds: expected two orders or more and two seeds or more, not in stages, found "
            f"{len(found)} and {'stages' if inference.looks else len(seeds)}; with fewer no variance can be shared out"
        )
    return tuple(found)


def at_tier(tree: Tree, tier: str, path: Path, where: str = "--tier") -> Tree:
    """The experiment at another size: `tiers` may give another base, more common changes, other seeds."""
    tiers = read_changes(tree.get("tiers"), f"{path}: tiers")
    for name, changes in tiers.items():
        path_name(name, f"{path}: tiers")
        for key in read_mapping(changes, f"{path}: tiers.{name}"):
            if key not in TIER_KEYS:
                raise InputError(f"{path}: tiers.{name}: no key {key!r}. It takes {', '.join(TIER_KEYS)}")
        read_changes(changes.get("common"), f"{path}: tiers.{name}.common")
    if not tier:
        return tree
    if path_name(tier, where) not in tiers:
        raise InputError(f"{path}: has no tier {tier!r}; {'it has ' + ', '.join(tiers) if tiers else 'it has none'}")
    changes = tiers[tier]
    common = {
        **read_changes(tree.get("common"), f"{path}: common"),
        **read_changes(changes.get("common"), f"{path}: tiers.{tier}.common"),
    }
    return {**tree, **changes, "common": common}


def _design(tree: Tree, path: Path) -> Design:
    """The arms, given one by one or by a design; a baseline may be named in either case."""
    if ("arms" in tree) == ("design" in tree):
        raise InputError(f"{path}: expected arms or a design, found {'both' if 'arms' in tree else 'neither'}")
    if "design" in tree:
        design = read_design(tree["design"], f"{path}: design")
    elif "baseline" in tree:
        arms = {
            name: read_changes(changes, f"{path}: arms.{name}")
            for name, changes in read_mapping(tree["arms"], f"{path}: arms").items()
        }
        if len(arms) > MOST_ARMS:
            raise InputError(f"{path}: arms: expected {MOST_ARMS} at most, found {len(arms)}")
        design = Design("arms", arms, str(tree["baseline"]))
    else:
        raise InputError(f"{path}: baseline is missing; name the arm that the others are compared with")
    design = replace(design, baseline=str(tree.get("baseline", design.baseline)))
    for name, changes in design.arms.items():
        path_name(name, f"{path}: arms")
        for key in ("seed", "data_seed"):
            if key in changes:
                raise InputError(
                    f"{path}: arms.{name}.{key}: seeds belong to the experiment, so that arms are paired; use {key}s"
                )
    one_of(design.baseline, design.arms, f"{path}: baseline", "arm")
    return design


def shortage(experiment: Experiment) -> str:
    """Return why the seeds bear out no verdict, and how many it takes; an empty string where they can bear one out."""
    seeds, judged = len(experiment.seeds), experiment.inference.comparisons or min(1, len(experiment.arms) - 1)
    if not judged or smallest_p(seeds) <= ALPHA / judged:
        return ""
    return (
        f"{seeds} seed{'s bear' if seeds > 1 else ' bears'} out no verdict: no p of so few is below "
        f"{smallest_p(seeds):z.3g}; a difference takes {seeds_needed(judged)} seeds"
    )


def check_power(experiment: Experiment) -> None:
    """Raises InputError where the confirmatory comparisons cannot reach significance with the seeds there are."""
    comparisons, seeds = experiment.inference.comparisons, len(experiment.seeds)
    if comparisons and smallest_p(seeds) > ALPHA / comparisons:
        few = f"{seeds} seed{'s' if seeds > 1 else ''} cannot reach significance in {comparisons} "
        raise InputError(
            f"{experiment.name}: {few}comparison{'s' if comparisons > 1 else ''} ({seeds_needed(comparisons)} could); "
            "give more seeds, set confirmatory: false or list fewer arms there, or go on with --underpowered"
        )
