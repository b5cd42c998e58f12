"""Experiments made from an experiment: on each text, over learning rates or orders of the data, with arms' winners.

Each is an experiment like any other: its cells are identified by what they compute, and one that was interrupted
resumes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan
from lm.ablation.sections import RATE
from lm.analysis.budgets import budget_ending
from lm.analysis.effects import ENDING, order_name
from lm.analysis.rates import BEHIND, RateCurve, misses, rate_curve
from lm.analysis.results import arm_at_rate, load
from lm.config.choices import find_class
from lm.config.tree import InputError, Tree, flatten, override
from lm.report.tuning import DESCRIBED
from lm.store.archive import CURVE, RIVALS, SHARED
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import RATES
from lm.store.record import ArmRate
from lm.store.store import Store
from lm.training.schedule import Schedule, in_steps

RatesByArm = Mapping[str, Sequence[float]]


def _without_verdicts(experiment: Experiment, arms: dict[str, dict[str, Any]], baseline: str) -> Experiment:
    """Return the experiment with other arms, of which it judges none."""
    inference = replace(experiment.inference, confirmatory=[], declared={}, axes={}, secondary=[], margin={}, looks=())
    design = replace(experiment.design, kind="arms", arms=arms, baseline=baseline, levels={}, aliases=[])
    return replace(_alone(experiment), design=design, inference=inference)


def _alone(experiment: Experiment) -> Experiment:
    """Return the experiment without claims, and without other experiments that are made of it."""
    nothing: dict[str, Any] = {"tuning": None, "grid": None, "bracket": None, "rates": {}, "budgets": ()}
    return replace(experiment, claims=(), data_seeds=(), made_of=experiment.origin, **nothing)


def grid_rates(experiment: Experiment) -> RatesByArm:
    """Return the learning rates of every arm in the grid of a file."""
    assert experiment.grid is not None
    return dict.fromkeys(experiment.arms, experiment.grid.rates)


def expand_rates(experiment: Experiment, rates: RatesByArm) -> Experiment:
    """Return an experiment over learning rates, with an arm for each arm and each of its rates."""
    search = experiment.grid or experiment.bracket
    assert search is not None
    pairs = [(arm, rate) for arm in experiment.arms for rate in rates[arm]]
    arms = {arm_at_rate(arm, rate): {**experiment.arms[arm], RATE: rate} for arm, rate in pairs}
    return replace(
        _without_verdicts(experiment, arms, arm_at_rate(experiment.baseline, rates[experiment.baseline][0])),
        name=f"{experiment.name}{CURVE}",
        title=f"{experiment.title} (over learning rates)",
        seeds=search.seeds,
    )


def expand_corpora(experiment: Experiment) -> list[Experiment]:
    """Return the experiment on each of its texts, called `NAME.TEXT`; itself where its file names none."""
    return [
        replace(
            experiment,
            name=f"{experiment.name}.{text}",
            title=f"{experiment.title} ({text})",
            tree=override(experiment.tree, changes),
            corpora={},
            texts=tuple(experiment.corpora),
        )
        for text, changes in experiment.corpora.items()
    ] or [experiment]


# settings in steps, which shrink with the budget; those below 1 are shares of the steps and do so by themselves
IN_STEPS = (
    "trainer.max_steps",
    "trainer.val_check_interval",
    "optim.schedule.warmup",
    "optim.schedule.decay",
    "data.context_warmup.batches",
)
DESCENT = ("trainer.max_steps", "optim.schedule.decay")  # those of them that the end of training determines


def _shortened(whole: Tree, percent: int) -> dict[str, int | float]:
    """Return the settings in steps of a share of the training, those that are shares of the steps as they are.

    Where the rate does not depend on the length of training, only the steps and those of a descent are fewer: the share
    takes the first steps of the whole training, with its warm-up, growth of the context and validations.
    """
    flat = flatten(_resolved(whole))
    counts = {path: flat[path] for path in IN_STEPS if isinstance(flat.get(path), int | float)}
    scaled = {path: count if count < 1 else max(1, round(count * percent / 100)) for path, count in counts.items()}
    schedule: Any = find_class(flat["optim.schedule"], Schedule, "optim.schedule")
    if not schedule.same_at_any_length:
        return scaled
    steps = scaled["trainer.max_steps"]
    unchanged = {path: count for path, count in counts.items() if path not in DESCENT}
    if "optim.schedule.warmup" in unchanged:
        unchanged["optim.schedule.warmup"] = in_steps(unchanged["optim.schedule.warmup"], counts["trainer.max_steps"])
    if "trainer.val_check_interval" in unchanged:
        batches = steps * flat["trainer.accumulate_grad_batches"]
        unchanged["trainer.val_check_interval"] = min(unchanged["trainer.val_check_interval"], batches)
    return scaled | unchanged


def _resolved(tree: Tree) -> Tree:
    from lm.config.components import resolve
    from lm.training.run import RunConfig  # takes seconds, which a plan that is known does not need

    return resolve(tree, RunConfig)


def expand_budgets(experiment: Experiment) -> list[Experiment]:
    """Return the experiment with each smaller share of the training; the schedule of each ends with it."""
    inference = replace(experiment.inference, secondary=[], margin={})

    def shortened(whole: Tree, shorter: Tree, percent: int) -> dict[str, int | float]:
        """Return what makes a configuration in steps a share of the whole one."""
        now = flatten(_resolved(shorter))
        return {path: count for path, count in _shortened(whole, percent).items() if now.get(path) != count}

    parts = []
    for percent in experiment.budgets:
        tree = override(experiment.tree, shortened(experiment.tree, experiment.tree, percent))
        arms = {
            arm: {**changes, **shortened(override(experiment.tree, changes), override(tree, changes), percent)}
            for arm, changes in experiment.arms.items()
        }
        parts.append(
            replace(
                _alone(experiment),
                name=f"{experiment.name}{budget_ending(percent)}",
                title=f"{experiment.title} ({percent} % of the training)",
                tree=tree,
                design=replace(experiment.design, arms=arms),
                inference=inference,
            )
        )
    return parts


def expand_orders(experiment: Experiment) -> Experiment:
    """Return the baseline, or all arms, with every seed in each order of the data; some cells are the experiment's.

    Each arm and order is an arm: `order_0` of the baseline, `ARM.order_0` of another one.
    """
    grid = itertools.product(experiment.arms.items(), experiment.data_seeds)
    arms = {
        order_name("" if arm == experiment.baseline else arm, order): {**changes, "data_seed": order}
        for (arm, changes), order in grid
        if experiment.crossed or arm == experiment.baseline
    }
    first = order_name("", experiment.data_seeds[0])
    return replace(
        _without_verdicts(experiment, arms, first),
        name=f"{experiment.name}{ENDING}",
        title=f"{experiment.title} (orders of the data)",
    )


def with_winners(experiment: Experiment, winners: Mapping[str, Any]) -> Experiment:
    """Return the experiment with each arm's winning changes; an arm without a winner keeps the shared values."""
    arms = {arm: {**changes, **(winners[arm]["changes"] or {})} for arm, changes in experiment.arms.items()}
    design, name, title = replace(experiment.design, arms=arms), f"{experiment.name}.tuned", experiment.title
    return replace(_alone(experiment), name=name, title=f"{title} (each arm tuned)", design=design)


def at_shared_rate(plan: Plan) -> Plan:
    """Return the plan of an experiment whose arms get rates of their own, before they do: `NAME.shared`."""
    experiment = plan.experiment
    name, title = f"{experiment.name}{SHARED}", f"{experiment.title} (at one shared learning rate)"
    return replace(plan, experiment=replace(_alone(experiment), name=name, title=title), registered=plan)


def at_best_rates(experiment: Experiment, rates: dict[str, ArmRate]) -> Experiment:
    """Return the experiment with each arm at its best learning rate, or the shared one where it has none."""
    best = {arm: {} if (rate := rates[arm]["best"]) is None else {RATE: rate} for arm in experiment.arms}
    arms = {arm: {**changes, **best[arm]} for arm, changes in experiment.arms.items()}
    inference = replace(experiment.inference, axes={RATE: "nuisance", **experiment.inference.axes})
    design = replace(experiment.design, arms=arms)
    return replace(experiment, design=design, inference=inference, rates=rates, made_of=experiment.origin)


def expand_rivals(plan: Plan, seeds: list[int]) -> Experiment | None:
    """Return the arms of an experiment at the rates that may be as good as theirs, as long as these; None without any.

    An arm that is not judged, as its best rate or that of the baseline was not found, has none.
    """
    experiment, arms = plan.experiment, dict[str, dict[str, Any]]()
    bracketed = {arm: rate for arm, rate in experiment.rates.items() if rate["best"] is not None and not rate["end"]}
    for arm, rate in bracketed.items() if experiment.baseline in bracketed else ():
        steps = {"trainer.max_steps": plan.first(arm).config["trainer"]["max_steps"]}
        own = {**experiment.arms[arm], **(steps if experiment.inference.equal != "steps" else {})}
        arms |= {arm_at_rate(arm, rival): {**own, RATE: rival} for rival in rate.get("rivals", ())}
    if not arms:
        return None
    alone = _without_verdicts(experiment, arms, next(iter(arms)))
    name, title = f"{experiment.name}{RIVALS}", f"{experiment.title} (at rates that may be as good)"
    return replace(alone, name=name, title=title, seeds=seeds, inference=replace(alone.inference, equal="steps"))


def rates_around(plan: Plan, low: int, high: int) -> RatesByArm:
    """Return the rates of every arm from some steps below its own to some above."""
    bracket = plan.experiment.bracket
    assert bracket is not None
    shared = {arm: float(plan.first(arm).config["optim"]["lr"]) for arm in plan.by_arm}
    return {arm: [bracket.rate(rate, step) for step in range(low, high + 1)] for arm, rate in shared.items()}


def curves_of(experiment: Experiment, rates: RatesByArm, store: Store) -> dict[str, RateCurve]:
    """Return the curve of each arm over its rates, as far as they are trained."""
    results = load(store.out / expand_rates(experiment, rates).name)
    return {arm: rate_curve(results, {rate: arm_at_rate(arm, rate) for rate in rates[arm]}) for arm in experiment.arms}


def best_rates(plan: Plan, rates: RatesByArm, store: Store) -> dict[str, ArmRate]:
    """Return the shared and the best learning rate of each arm of an experiment whose rates were trained."""
    ends = {"low": "lowest", "high": "highest"}
    curves = curves_of(plan.experiment, rates, store)
    missed = misses(curves, BEHIND / max(1, len(curves) - 1))
    return {
        arm: ArmRate(
            shared=float(plan.first(arm).config["optim"]["lr"]),
            best=None if curve.best is None else curve.rates[curve.best],
            end=ends.get(curve.edge, ""),
            regret=max(missed[arm].values(), default=0.0),
            rivals=sorted(missed[arm]),
        )
        for arm, curve in curves.items()
    }


def write_rates(rate_of_arm: Mapping[str, ArmRate], rates: RatesByArm, plan: Plan, store: Store) -> None:
    """Write `lr_curve.json`: where the curve of each arm is, for the report of an experiment."""
    name = plan.experiment.name
    arms = {
        arm: {
            "shared": rate["shared"],
            "best": rate["best"],
            "names": {repr(value): arm_at_rate(arm, value) for value in rates[arm]},
        }
        for arm, rate in rate_of_arm.items()
    }
    content = RATES.stamped({"experiment": f"{name}{CURVE}", "arms": arms})
    write_atomic(store.out / name / DESCRIBED, to_json(content))


def read_rates(folder: Path) -> dict[str, tuple[Tree, RateCurve]]:
    """Return the curve of each arm, with the configuration of a cell. Raises InputError for a damaged file."""
    path = folder / DESCRIBED
    content = RATES.read(read_json(path), path)
    try:
        grid = load(folder.parent / f"{folder.name}{CURVE}")
        curves = {}
        for arm, entry in content["arms"].items():
            names = {float(rate): str(name) for rate, name in entry["names"].items()}
            config = next(filter(None, map(grid.configuration, names.values())), None)
            if config is not None:
                curves[str(arm)] = config, rate_curve(grid, names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__}); run `lm ablate` again") from None
    return curves
