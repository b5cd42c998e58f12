"""Plans of experiments from the cache, without torch.

A stored plan is used only where every text has the fingerprint that it had, and for training where every cell of it is
finished. Code, versions and accelerators are part of its key. Experiments with own classes, callbacks, further context
lengths, or other texts and tokenizers than those of CORPORA and TOKENIZERS are not stored.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan, make_plan
from lm.config.fingerprint import dotted_classes
from lm.config.tree import InputError, Tree, canonical
from lm.data import corpus, splits, synthetic
from lm.data.tokens import TextStats
from lm.execution.machine import device_files
from lm.execution.scheduler import Planned
from lm.store.store import Store
from lm.store.user_cache import cache_folder, forget, remember
from lm.training.identified import Cell, Sizes

KIND = "plan"
CORPORA: dict[str, type[corpus.Corpus]] = {
    cls.__name__: cls for cls in (corpus.StdlibText, corpus.LocalText, synthetic.MarkovText, synthetic.BracketText)
}
"""Corpora whose text can be read again without torch and without a network."""

TOKENIZERS = ("BPE", "Bytes", "Characters", "Unigram", "WordPiece")
"""Tokenizers that depend on no file but the text."""


def plan_experiment(
    experiment: Experiment,
    store: Store,
    seconds: Callable[[Cell], float] | None,
    stored: bool,
    to_show: bool = False,
    before_new: Callable[[], object] = lambda: None,
) -> Plan:
    """Return the plan of an experiment, from the cache if all its cells are finished or `to_show`. Raises InputError.

    Args:
        experiment: what is planned.
        store: the results folder.
        seconds: returns the seconds of a step of a cell; None where none is timed.
        stored: whether a stored plan may be used.
        to_show: whether nothing is trained, so that cells may be missing.
        before_new: called before a plan is made, which takes seconds.
    """
    inference, plans = experiment.inference, list[Plan]()
    arms = [[arm, list(changes.items())] for arm, changes in experiment.arms.items()]
    claimed = [[claim.metric, claim.arms] for claim in experiment.claims if claim.at(experiment.tier or "C")]
    judged = [inference.metric, inference.secondary, inference.equal, claimed]
    devices = [device_files(), os.environ.get("CUDA_VISIBLE_DEVICES")]
    question = [str(cache_folder()), devices, experiment.tree, arms, experiment.baseline, experiment.seeds, judged]

    def make() -> Plan:
        before_new()
        return make_plan(experiment, seconds)

    def describe() -> Any:
        plans.append(make())
        return _described(plans[0])

    try:
        canonical(question)
    except (TypeError, ValueError):  # a value that JSON does not hold
        stored = False
    if not stored or inference.equal == "seconds":
        return make()
    answer = remember(KIND, question, describe)
    if not plans and answer is not None:
        plan = _restored(experiment, answer)
        if not _has_same_texts(plan):
            forget(KIND, question)
            remember(KIND, question, describe)
        elif to_show or all(store.finished(planned.cell.id) for planned in plan.distinct):
            return plan
    return plans[0] if plans else make()


def _described(plan: Plan) -> Any:
    """Return a plan as JSON holds it; None for one that is not stored."""
    first = {arm: plan.first(arm) for arm in plan.by_arm}
    if not all(_is_storable(cell.config) for cell in first.values()):
        return None
    arms = {
        arm: {
            "config": cell.config,
            "facts": asdict(cell.facts),
            "sizes": asdict(plan.sizes(arm)),
            "ids": {planned.seed: planned.cell.id for planned in plan.by_arm[arm]},
        }
        for arm, cell in first.items()
    }
    try:
        answer = json.loads(canonical(arms))
    except (TypeError, ValueError):
        return None
    return answer if _restored(plan.experiment, answer).cells == plan.cells else None


def _is_storable(config: Tree) -> bool:
    """Return True for a configuration of this package's parts whose text can be read without torch."""
    data, options = config["data"]["class_path"], config["data"]["init_args"]
    return (
        data in ("TextData", "PaddedRows")
        and options["corpus"]["class_path"] in CORPORA
        and options["tokenizer"]["class_path"] in TOKENIZERS
        and not dotted_classes(config)
        and not config["trainer"]["callbacks"]
        and "init_from" not in config["trainer"]
        and not (config.get("evaluate") or {}).get("lengths")
        and not (config.get("evaluate") or {}).get("tasks")
    )


def _restored(experiment: Experiment, answer: Any) -> Plan:
    """Return the plan that was described."""
    cells: list[Planned] = []
    for seed in experiment.seeds:
        for arm in experiment.arms:
            stored = answer[arm]
            cell = Cell({**stored["config"], "seed": seed}, TextStats(**stored["facts"]), stored["ids"][str(seed)])
            cells.append(Planned(arm, seed, cell, f"{experiment.name}/{arm}/{seed}"))
    return Plan(experiment, cells, {arm: Sizes(**answer[arm]["sizes"]) for arm in experiment.arms})


def _has_same_texts(plan: Plan) -> bool:
    """Return True if each text of a plan, read again, has the fingerprint that the plan was made with."""
    texts: dict[str, tuple[Tree, str]] = {}
    for arm in plan.by_arm:
        cell = plan.first(arm)
        texts[canonical([cell.config["data"]["init_args"], cell.facts.fingerprint])] = (
            cell.config["data"]["init_args"],
            cell.facts.fingerprint,
        )
    for options, expected in texts.values():
        source = options["corpus"]
        try:
            text = splits.SplitText(CORPORA[source["class_path"]](**source["init_args"]), options["split"])
            if splits.text_facts(text).fingerprint != expected:
                return False
        except (InputError, ValueError, OSError):
            return False
    return True
