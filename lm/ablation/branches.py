"""Shares of the training that branch off the whole one, where both compute the same until the rate of one descends.

Hagele et al. 2024, https://arxiv.org/abs/2405.18392: what a schedule such as warm-up, stable, decay is for. The numbers
are those of a training from the start; only the steps before the descent are not taken again.
"""

from collections.abc import Iterable
from dataclasses import replace

from lm.ablation.derived import DESCENT
from lm.ablation.plan import Plan
from lm.config.choices import find_class
from lm.config.components import build
from lm.config.fingerprint import dotted_classes
from lm.config.tree import Tree, differences
from lm.store.store import Store, branch_checkpoint
from lm.training.schedule import Schedule


def with_branches(plan: Plan, parts: Iterable[Plan], store: Store) -> tuple[Plan, list[Plan]]:
    """Return a plan whose missing cells leave checkpoints for those of its parts, and the parts that begin there."""
    is_missing = {planned.cell.id for planned in plan.missing(store)}
    branches: dict[str, list[tuple[int, str]]] = {}
    branching_parts = []
    for part in parts:
        arms = [arm for arm in part.by_arm if arm in plan.by_arm]
        step_by_arm = {arm: branch_step(plan.first(arm).config, part.first(arm).config) for arm in arms}
        whole = {(planned.arm, planned.seed): planned.cell.id for planned in plan.cells}
        cells = []
        for planned in part.cells:
            step, source = step_by_arm.get(planned.arm, 0), whole.get((planned.arm, planned.seed))
            if step and source in is_missing and not store.finished(planned.cell.id):
                branches.setdefault(source, []).append((step, planned.cell.id))
            elif not branch_checkpoint(store.cells, planned.cell.id).is_file():
                step = 0
            cells.append(replace(planned, branched=step))
        branching_parts.append(replace(part, cells=cells))
    cells = [replace(planned, branches=tuple(branches.get(planned.cell.id, ()))) for planned in plan.cells]
    return replace(plan, cells=cells), branching_parts


def branch_step(longer: Tree, shorter: Tree) -> int:
    """Return the optimiser step after which a shorter training can branch off a longer one; 0 where it cannot.

    It is the last one whose next step, of which a checkpoint holds the rate, has the same rate in both too, and after
    which neither validates: a run that goes on from a checkpoint would leave that out. Both configurations are
    resolved. What a user's own data or callbacks make of the length of training is not known, so these give 0.
    """
    settings = shorter["trainer"]
    if settings.get("callbacks") or dotted_classes(shorter["data"]) or differences(longer, shorter).keys() - {*DESCENT}:
        return 0
    batches, interval = settings["accumulate_grad_batches"], settings["val_check_interval"]
    step = max(0, _equal_rates(longer, shorter) - 1)
    while step and interval and step * batches % interval == 0:
        step -= 1
    return step


def _equal_rates(longer: Tree, shorter: Tree) -> int:
    """Return the number of steps, from the first on, at which two configurations have the same learning rate."""
    schedules, totals = list[Schedule](), [config["trainer"]["max_steps"] for config in (longer, shorter)]
    for config in (longer, shorter):
        node = config["optim"]["schedule"]
        schedules.append(build(node["init_args"], find_class(node["class_path"], Schedule, "optim.schedule")))
    if totals[0] <= totals[1]:
        return 0
    for step in range(1, totals[1] + 1):
        if len({schedule.factor(step, total) for schedule, total in zip(schedules, totals, strict=True)}) > 1:
            return step - 1
    return totals[1]
