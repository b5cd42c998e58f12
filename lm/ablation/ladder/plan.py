"""Plan of a ladder: its rungs as experiments of their own, all of their cells, and what `ladder.json` holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.ablation.derived import read_rates
from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan, make_plan, stored_command, with_autotuned_settings, write_manifest
from lm.ablation.sections import RungSpec
from lm.analysis.ladder import FILE
from lm.analysis.rates import RateCurve
from lm.config.components import resolve
from lm.config.nodes import one_of
from lm.config.tree import InputError, Tree, override, prefix_errors
from lm.execution.estimate import Stopwatch
from lm.execution.scheduler import Planned
from lm.store.files import to_json, write_atomic
from lm.store.formats import LADDER
from lm.store.record import ArmSize, RateAt, RungOf
from lm.store.store import Store
from lm.training.cell import check, sizes, steps_for
from lm.training.identified import auto_settings_requested
from lm.training.run import RunConfig

Changes = dict[str, Any]


def expand_rungs(
    experiment: Experiment, autotune: Callable[[Experiment], Experiment] = lambda rung: rung
) -> list[Experiment]:
    """Return every rung of a ladder as an experiment `NAME.RUNG`, whose folder lies beside the ladder's.

    `autotune` replaces settings that are `auto`, on the top rung, which takes most of the time; all rungs use them.
    Raises InputError naming the rung.
    """
    ladder = experiment.ladder
    assert ladder is not None
    top: Experiment | None = None
    expanded: list[Experiment] = []
    for name, spec in reversed(ladder.rungs.items()):
        with prefix_errors(f"rung {name}"):
            for arm in spec.rates:
                one_of(arm, experiment.arms, "rates", "arm")
            arms = {
                arm: {**own, "optim.lr": spec.rates.get(arm)} if arm in spec.rates else own
                for arm, own in experiment.arms.items()
            }
            tree = override(override(experiment.tree, spec.changes), ladder.settings)
            rung = replace(
                experiment,
                name=f"{experiment.name}.{name}",
                title=f"{experiment.title}, rung {name}",
                tree=tree,
                design=replace(experiment.design, arms=experiment.arms if "optim.lr" in ladder.settings else arms),
                seeds=spec.seeds,
                ladder=None,
                declared_seeds=(),
            )
            top = top or autotune(rung)
            chosen = {} if top.autotuned is None else top.autotuned["chosen"]
            settings = auto_settings_requested(tree)
            if own := [setting for setting in settings if setting not in chosen]:
                raise InputError(f"trainer.{own[0]}: auto is decided on the top rung, which names its own")
            tree = override(tree, {f"trainer.{setting}": chosen[setting] for setting in settings})
            rung = replace(rung, tree=tree, autotuned=top.autotuned)
            expanded.append(replace(rung, tree=_with_steps(rung, spec, ladder.warmup, ladder.settings)))
    return expanded[::-1]


def _with_steps(rung: Experiment, spec: RungSpec, warmup: float | None, settings: dict[str, Any]) -> Tree:
    """Return a rung's configuration with the steps that its tokens take, warm-up and validations in proportion."""
    tree = rung.tree
    if "trainer.max_steps" not in settings and (spec.tokens or spec.tokens_per_parameter):
        base = check(override(tree, {**rung.arms[rung.baseline], "seed": rung.seeds[0]}))
        size = sizes(base)
        tokens = spec.tokens or (spec.tokens_per_parameter or 0.0) * size.parameters
        steps = steps_for(base, tokens)
        changes: Changes = {"trainer.max_steps": steps}
        before, every = base.config["trainer"]["max_steps"], base.config["trainer"]["val_check_interval"]
        own = "trainer.val_check_interval" in {**spec.changes, **settings}
        if isinstance(every, int) and not own:  # keeps the number of validations
            changes["trainer.val_check_interval"] = max(1, round(every * steps / before))
        tree = override(tree, changes)
    if warmup is not None and "optim.schedule.warmup" not in settings:
        steps = tree.get("trainer", {}).get("max_steps")
        if not isinstance(steps, int):
            raise InputError("ladder.warmup: is a share of the steps, and trainer.max_steps is not known")
        tree = override(tree, {"optim.schedule.warmup": max(1, round(warmup * steps)) if warmup else 0})
    return tree


def plan_ladder(experiment: Experiment, out: Path, workers: int | None) -> list[Plan]:
    """Return the plans of all rungs, which grow in compute. Raises InputError."""
    ladder = experiment.ladder
    assert ladder is not None
    plans: list[Plan] = []
    before: dict[tuple[str, float | str | None], float] = {}  # compute of the last rung of each size and each length
    for rung in expand_rungs(experiment, lambda rung: with_autotuned_settings(rung, out, workers)):
        name = rung.name.removeprefix(f"{experiment.name}.")
        with prefix_errors(f"rung {name}"):
            plans.append(make_plan(rung, Stopwatch(out / rung.name / "seconds.json")))
            compute, spec = training_flops(plans[-1], experiment.baseline), ladder.rungs[name]
        lines = (("size", spec.size), ("length", spec.tokens_per_parameter)) if spec.size else (("", ""),)
        for line in lines:
            if line in before and compute <= before[line]:
                hint = f"found {name} with {compute:z.3g} FLOPs after one with {before[line]:z.3g}"
                raise InputError(
                    f"{experiment.name}: ladder.rungs: expected from the least compute to the most, {hint}"
                )
            before[line] = compute
    return plans


def training_flops(plan: Plan, arm: str) -> float:
    """Return the training FLOPs of a run of an arm. Raises InputError where they cannot be counted."""
    cell = plan.first(arm)
    size = sizes(cell)
    if size.flops_per_token is None:
        raise InputError(f"arm {arm}: a ladder goes by FLOPs, and this model has parts without a count of FLOPs")
    return float(size.tokens_per_step * size.flops_per_token * cell.config["trainer"]["max_steps"])


def merge_plans(experiment: Experiment, plans: Sequence[Plan]) -> Plan:
    """Return the cells of all rungs as one plan, from the least compute to the most; arms become RUNG.ARM."""
    cells = []
    for plan in plans:
        rung = plan.experiment.name.removeprefix(f"{experiment.name}.")
        cells += [
            Planned(f"{rung}.{planned.arm}", planned.seed, planned.cell, planned.called) for planned in plan.cells
        ]
    return Plan(experiment, cells)


def write_ladder_manifest(
    experiment: Experiment, plans: Sequence[Plan], store: Store, command: Sequence[str] = ()
) -> Path:
    """Write `ladder.json` and the manifests of the rungs; return the ladder's folder."""
    ladder, autotuned = experiment.ladder, plans[0].experiment.autotuned
    assert ladder is not None
    for plan in plans:
        write_manifest(plan, store, command)
    folder, curves = store.out / experiment.name, trained_curves(store.out)
    manifest = {
        "name": experiment.name,
        "title": experiment.title,
        "notes": experiment.notes,
        "command": stored_command(command),
        "baseline": experiment.baseline,
        "arms": list(experiment.arms),
        "metric": experiment.inference.metric,
        "margin": ladder.margin,
        "forecast": ladder.forecast,
        **({} if autotuned is None else {"ways": autotuned}),
        "rungs": [
            {**describe_rung(name, plan), "rates": rates_at(plan, curves), **describe_length(spec, plan)}
            for (name, spec), plan in zip(ladder.rungs.items(), plans, strict=True)
        ],
    }
    write_atomic(folder / FILE, to_json(LADDER.stamped(manifest)))
    return folder


def describe_rung(name: str, plan: Plan) -> RungOf:
    """Return a rung as `ladder.json` has it, without its learning rates."""
    base = plan.first(plan.experiment.baseline)
    size, steps = sizes(base), int(base.config["trainer"]["max_steps"])
    return {
        "name": name,
        "experiment": plan.experiment.name,
        "seeds": plan.experiment.seeds,
        "parameters": size.parameters,
        "tokens": size.tokens_per_step * steps,
        "steps": steps,
        "compute": {arm: training_flops(plan, arm) for arm in plan.experiment.arms},
    }


def describe_length(spec: RungSpec, plan: Plan) -> Changes:
    """Return what `ladder.json` adds to a rung of a ladder that trains sizes at several lengths."""
    if not spec.size:
        return {}
    sizes_of: dict[str, ArmSize] = {}
    for arm in plan.experiment.arms:
        cell = plan.first(arm)
        size, steps = sizes(cell), int(cell.config["trainer"]["max_steps"])
        sizes_of[arm] = {"parameters": size.parameters, "tokens": size.tokens_per_step * steps}
    return {"size": spec.size, "tokens_per_parameter": spec.tokens_per_parameter, "sizes": sizes_of}


#
# An arm whose best rate moves with size seems to gain or to fade by the rate alone if all rungs use one rate. So a rate
# counts as the best one at a rung only where a curve of the same configuration has it between two worse ones.

# settings of the trainer that the best rate depends on; precision and implementations are none of them
TRAINER_SETTINGS = ("max_steps", "gradient_clip_val", "accumulate_grad_batches")


@dataclass(frozen=True)
class TrainedCurve:
    """Losses of an arm over learning rates, its experiment, and its configuration as `setting_of` returns it."""

    experiment: str
    setting: Tree
    curve: RateCurve


def setting_of(config: Tree) -> Tree:
    """Return the part of a resolved configuration that the best learning rate depends on, without the rate itself."""
    optim = {key: value for key, value in config["optim"].items() if key != "lr"}
    trainer = {key: config["trainer"].get(key) for key in TRAINER_SETTINGS}
    return {"data": config["data"], "model": config["model"], "optim": optim, "trainer": trainer}


def trained_curves(out: Path) -> list[TrainedCurve]:
    """Return the curves of learning rates of all experiments under `out`; one that cannot be read is left out."""
    curves = []
    for path in sorted(out.glob("*/lr_curve.json")):
        try:
            arms = read_rates(path.parent)
        except InputError:
            continue
        for config, curve in arms.values():
            try:
                setting = setting_of(resolve(config, RunConfig))
            except (InputError, KeyError):  # of another version, or with classes that are gone
                continue
            curves.append(TrainedCurve(path.parent.name, setting, curve))
    return curves


def rates_at(plan: Plan, curves: Sequence[TrainedCurve]) -> dict[str, RateAt]:
    """Return the learning rate of each arm of a rung, with the curve of the most seeds that brackets it, if any."""
    rates: dict[str, RateAt] = {}
    for arm in plan.experiment.arms:
        config = plan.first(arm).config
        rate, setting = float(config["optim"]["lr"]), setting_of(config)
        rates[arm] = {"rate": rate, "curve": None, "lower": None, "higher": None, "seeds": 0}
        matches = [trained for trained in curves if trained.setting == setting and trained.curve.best is not None]
        trained = max(matches, key=lambda match: match.curve.values_rs.shape[1], default=None)
        if trained is None or (best := trained.curve.best) is None or trained.curve.edge:
            continue
        grid, seeds = trained.curve.rates, int(trained.curve.values_rs.shape[1])
        if abs(grid[best] - rate) <= 1e-9 * rate:
            lower, higher = grid[best - 1], grid[best + 1]
            rates[arm] = {"rate": rate, "curve": trained.experiment, "lower": lower, "higher": higher, "seeds": seeds}
    return rates
