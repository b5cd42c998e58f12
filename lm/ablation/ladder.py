"""A ladder planned: its rungs as experiments of their own, and all of their cells as one plan."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm.ablation.auto import with_ways
from lm.ablation.brackets import rates_at, trained_curves
from lm.ablation.equal import cost_per_step
from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan, make_plan, untimed, write_manifest
from lm.ablation.rungs import RungSpec
from lm.analysis.ladder import FILE
from lm.config.plain import is_text, shown
from lm.config.tree import InputError, nearest, override
from lm.execution.cell_queue import Planned
from lm.execution.estimate import Stopwatch
from lm.inference.ways import asked
from lm.store.files import to_json, write_atomic
from lm.store.formats import LADDER
from lm.store.record import RungOf
from lm.store.redaction import redacted
from lm.store.store import Store
from lm.training.cell import check, sizes

Changes = dict[str, Any]

FEWEST_SEEDS = 2
"""Of a rung: with one nothing is known of the noise, and there is no interval."""


def rungs_of(experiment: Experiment, ways: Callable[[Experiment], Experiment] = lambda one: one) -> list[Experiment]:
    """Every rung of a ladder as an experiment of its own, called after both; `NAME.RUNG` lies beside the ladder.

    Args:
        experiment: with a ladder.
        ways: decides what is `auto`, on the top rung, which takes most of the time; all rungs are computed alike.

    Raises:
        InputError: naming the rung.
    """
    ladder = experiment.ladder
    assert ladder is not None
    top: Experiment | None = None
    found: list[Experiment] = []
    for name, rung in reversed(ladder.rungs.items()):
        try:
            tree = override(override(experiment.tree, rung.changes), ladder.settings)
            one = replace(
                experiment,
                name=f"{experiment.name}.{name}",
                title=f"{experiment.title}, rung {name}",
                tree=tree,
                design=replace(experiment.design, arms=_at_rates(experiment.arms, rung.rates, ladder.settings)),
                seeds=rung.seeds,
                ladder=None,
            )
            top = top or ways(one)
            one = _computed_as(top, one)
            found.append(replace(one, tree=_with_steps(one, rung, ladder.warmup, ladder.settings)))
        except InputError as error:
            raise InputError(f"rung {name}: {error}") from None
    return found[::-1]


def _computed_as(top: Experiment, one: Experiment) -> Experiment:
    """A rung with each `auto` of its own as it was decided on the top one. Raises InputError where it was not."""
    chosen = {} if top.ways is None else top.ways["chosen"]
    names = asked(one.tree)
    for name in names:
        if name not in chosen:
            raise InputError(f"trainer.{name}: auto is decided on the top rung, which names its own")
    return replace(one, tree=override(one.tree, {f"trainer.{name}": chosen[name] for name in names}), ways=top.ways)


def _at_rates(arms: dict[str, Changes], rates: dict[str, float], settings: Changes) -> dict[str, Changes]:
    """The arms with a rung's learning rates, but where the command gives one. Raises InputError for another arm."""
    for arm in rates:
        if arm not in arms:
            raise InputError(f"rates: no arm {shown(arm)}.{nearest(arm, list(arms))} Choose from {', '.join(arms)}")
    if "optim.lr" in settings:
        return arms
    return {arm: {**own, "optim.lr": rates[arm]} if arm in rates else own for arm, own in arms.items()}


def _with_steps(
    one: Experiment, rung: RungSpec, warmup: float | None, settings: dict[str, object]
) -> dict[str, object]:
    """The rung's configuration with as many steps as its tokens are, warm-up and validations in proportion."""
    tree = one.tree
    if "trainer.max_steps" not in settings and (rung.tokens or rung.per_parameter):
        base = check(override(tree, {**one.arms[one.baseline], "seed": one.seeds[0]}))
        of = sizes(base)
        tokens = rung.tokens or (rung.per_parameter or 0.0) * of.parameters
        steps = max(1, round(tokens / of.tokens_per_step))
        changes: dict[str, Any] = {"trainer.max_steps": steps}
        before, every = base.config["trainer"]["max_steps"], base.config["trainer"]["val_check_interval"]
        own = "trainer.val_check_interval" in {**rung.changes, **settings}
        if isinstance(every, int) and not own:  # as many validations on the way as there were
            changes["trainer.val_check_interval"] = max(1, round(every * steps / before))
        tree = override(tree, changes)
    if warmup is not None and "optim.schedule.warmup" not in settings:
        steps = tree.get("trainer", {}).get("max_steps")
        if not isinstance(steps, int):
            raise InputError("ladder.warmup: is a share of the steps, and trainer.max_steps is not known")
        tree = override(tree, {"optim.schedule.warmup": max(1, round(warmup * steps)) if warmup else 0})
    return tree


def compute_of(plan: Plan, arm: str) -> float:
    """Training FLOPs of a run of an arm. Raises InputError where nobody has counted them."""
    cell = plan.first(arm)
    try:
        return float(cost_per_step(cell, "flops", untimed) * cell.config["trainer"]["max_steps"])
    except InputError:
        raise InputError(
            f"arm {arm}: a ladder goes by FLOPs, and this model has parts whose FLOPs nobody has counted"
        ) from None


def plan_ladder(experiment: Experiment, out: Path, workers: int | None) -> list[Plan]:
    """The plans of all rungs, which grow in compute. Raises InputError."""
    plans: list[Plan] = []
    for one in rungs_of(experiment, lambda one: with_ways(one, out, workers)):
        name = one.name.removeprefix(f"{experiment.name}.")
        try:
            plans.append(make_plan(one, Stopwatch(out / one.name / "seconds.json")))
            computes = [compute_of(plan, experiment.baseline) for plan in plans]
        except InputError as error:
            raise InputError(f"rung {name}: {error}") from None
        if len(plans) > 1 and computes[-1] <= computes[-2]:
            raise InputError(
                f"{experiment.name}: ladder.rungs: expected from the least compute to the most, found {name} with "
                f"{computes[-1]:z.3g} FLOPs after one with {computes[-2]:z.3g}"
            )
    return plans


def check_seeds(experiment: Experiment) -> None:
    """Raises InputError where a rung has too few seeds for an interval."""
    assert experiment.ladder is not None
    for name, rung in experiment.ladder.rungs.items():
        if len(rung.seeds) < FEWEST_SEEDS:
            raise InputError(
                f"{experiment.name}: rung {name} has {len(rung.seeds)} seed, of which no interval comes; give "
                f"{FEWEST_SEEDS} or more (6 for a verdict), or go on with --underpowered"
            )


def together(experiment: Experiment, plans: Sequence[Plan]) -> Plan:
    """The cells of all rungs as one plan, from the least compute to the most; an arm is called after its rung too."""
    cells = [
        Planned(f"{plan.experiment.name.removeprefix(f'{experiment.name}.')}.{planned.arm}", planned.seed, planned.cell)
        for plan in plans
        for planned in plan.cells
    ]
    return Plan(experiment, cells)


def write_ladder(experiment: Experiment, plans: Sequence[Plan], store: Store, command: Sequence[str] = ()) -> Path:
    """Leaves `ladder.json` and the manifests of the rungs; returns the ladder's folder."""
    ladder = experiment.ladder
    assert ladder is not None
    for plan in plans:
        write_manifest(plan, store, command)
    folder, curves = store.out / experiment.name, trained_curves(store.out)
    manifest = {
        "name": experiment.name,
        "title": experiment.title,
        "notes": experiment.notes,
        "command": [redacted(text) for text in command] if command and all(map(is_text, command)) else None,
        "baseline": experiment.baseline,
        "arms": list(experiment.arms),
        "metric": experiment.inference.metric,
        "margin": ladder.margin,
        "forecast": ladder.forecast,
        **({} if plans[0].experiment.ways is None else {"ways": plans[0].experiment.ways}),
        "rungs": [
            {**described(name, plan), "rates": rates_at(plan, curves)}
            for name, plan in zip(ladder.rungs, plans, strict=True)
        ],
    }
    write_atomic(folder / FILE, to_json(LADDER.stamped(manifest)))
    return folder


def described(name: str, plan: Plan) -> RungOf:
    """A rung as `ladder.json` has it."""
    base = plan.first(plan.experiment.baseline)
    of, steps = sizes(base), int(base.config["trainer"]["max_steps"])
    return {
        "name": name,
        "experiment": plan.experiment.name,
        "seeds": plan.experiment.seeds,
        "parameters": of.parameters,
        "tokens": of.tokens_per_step * steps,
        "steps": steps,
        "compute": {arm: compute_of(plan, arm) for arm in plan.experiment.arms},
    }
