"""What is refused, or warned of, before an experiment is trained: by its plan, its registration and its training."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lm.ablation.derived import expand_budgets, expand_orders
from lm.ablation.experiment import Experiment, shortage, shortage_over_budget
from lm.ablation.plan import Plan, design_of, idle_arms
from lm.ablation.registration import registration_of
from lm.analysis.results import read_manifest
from lm.config.fingerprint import dotted_classes
from lm.config.tree import InputError, override
from lm.store.archive import REGISTRATION, RIVALS, SHARED
from lm.store.store import Store

if TYPE_CHECKING:
    from lm.search.sweep import SearchJob

TUNING_FOLDER = "tune"
MAX_TRIALS = 10_000
STEPS = "trainer.max_steps"
OTHERS = {"study.json": "a search", "ladder.json": "a ladder"}  # reports that are shown in an experiment's place


def check_before_training(plan: Plan, store: Store) -> None:
    """Refuse what training would refuse when it has begun, or report wrongly. Raises InputError.

    That is a folder with the report of something else, a damaged registration, a search that cannot be carried out.
    """
    experiment, folder = plan.experiment, plan.manifest(store).parent
    for file, kind in OTHERS.items():
        if (folder / file).exists():
            hint = "name the experiment's file otherwise, or another --out"
            raise InputError(f"{folder}: holds the report of {kind}; {hint}")
    for arm in plan.by_arm:
        if own_classes := [name for name in dotted_classes(plan.first(arm).config) if name.startswith("__main__.")]:
            own = own_classes[0].partition(".")[2]
            remedy = f"put it into a file, such as my_parts.py, and name my_parts.{own}"
            problem = "other processes train cells, and have no classes of a script or notebook"
            raise InputError(f"arm {arm}: {own_classes[0]}: {problem}; {remedy}")
    registration_of(design_of(plan), folder / REGISTRATION)
    if (tuning := experiment.tuning) is None:
        return
    if tuning.trials > MAX_TRIALS:
        raise InputError(f"tune.trials: expected at most {MAX_TRIALS}, found {tuning.trials}")
    if experiment.inference.equal != "steps" and STEPS in [of.path for of in tuning.space.dimensions]:
        raise InputError(f"tune.space: {STEPS} is set by equal: {experiment.inference.equal}; leave one of them out")
    from lm.search.sweep import check_search  # takes seconds

    for job in searches_of(experiment, plan, store.out):
        check_search(job.spec, job.folder)


def check_texts_differ(plan_by_text: Mapping[str, Plan]) -> None:
    """Refuse texts of which two are the same: a mean over texts would count its seeds twice. Raises InputError."""
    names: dict[str, str] = {}
    for name, plan in plan_by_text.items():
        other = names.setdefault(plan.first(plan.experiment.baseline).facts.fingerprint, name)
        if other != name:
            raise InputError(f"corpora.{name}: is the text of corpora.{other}; expected another data.corpus")


def warnings_of(plan: Plan) -> list[str]:
    """Return what a plan warns of: arms that may change nothing, seeds that cannot reach a verdict."""
    of_seeds = shortage(plan.experiment) or shortage_over_budget(plan.experiment)
    return [*idle_arms(plan).values(), *filter(None, [of_seeds])]


def parts_beside(experiment: Experiment) -> dict[str, Experiment]:
    """Return what is trained beside an experiment by titles: orders of the data, smaller budgets."""
    parts = {}
    if experiment.data_seeds:
        which = "every arm" if experiment.crossed else "the baseline"
        parts[f"{which} in {len(experiment.data_seeds)} orders"] = expand_orders(experiment)
    for percent, part in zip(experiment.budgets, expand_budgets(experiment), strict=True):
        parts[f"every arm with {percent} % of the training"] = part
    return parts


def searches_of(experiment: Experiment, plan: Plan, out: Path) -> "list[SearchJob]":
    """Return the search of every arm, with the same budget."""
    from lm.search.sweep import SearchJob

    tuning, folder = experiment.tuning, out / experiment.name / TUNING_FOLDER
    assert tuning is not None
    jobs = []
    for arm, changes in experiment.arms.items():
        if experiment.inference.equal != "steps":  # a search trains for as long as the arm it is for
            changes = {**changes, STEPS: plan.first(arm).config["trainer"]["max_steps"]}
        spec = tuning.spec(arm, f"{experiment.title}: {arm}", override(experiment.tree, changes))
        jobs.append(SearchJob(spec, folder / arm, f"{arm} ", f"{experiment.name}.tune/{arm}.trial_"))
    return jobs


def asked_before(experiments: Sequence[Experiment], store: Store) -> tuple[list[int], bool]:
    """Return the seeds that were asked for, and True if all that is made with them is trained.

    That is each experiment and what is made of it: orders, budgets, arms at the shared rate, tuned or at other rates. A
    command that was killed between two of them has given some the new seeds and others not.
    """
    manifests = [read_manifest(store.out / experiment.name) for experiment in experiments]
    folders, rivals = list[Path](), list[Path]()
    for experiment in experiments:
        names = [part.name for part in parts_beside(experiment).values()]
        names += [f"{experiment.name}{SHARED}"] * (experiment.bracket is not None)
        names += [f"{experiment.name}.tuned"] * (experiment.tuning is not None or experiment.grid is not None)
        folders += [store.out / name for name in names]
        rivals.append(store.out / f"{experiment.name}{RIVALS}")
    are_there = [(folder / "experiment.json").is_file() for folder in folders]
    manifests += [read_manifest(folder) for folder in itertools.compress(folders, are_there)]
    seeds = list(dict.fromkeys(seed for manifest in manifests for seed in manifest["seeds"]))
    is_complete = all(are_there) and all({*manifest["seeds"]} == {*seeds} for manifest in manifests)
    manifests += [read_manifest(folder) for folder in rivals if (folder / "experiment.json").is_file()]
    cells = (cell for manifest in manifests for arm in manifest["arms"].values() for cell in arm["cells"].values())
    return seeds, is_complete and all(map(store.finished, cells))
