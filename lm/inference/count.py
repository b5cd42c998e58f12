"""`lm count`: what a configuration costs, before anything is trained."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from lm.config.components import blame
from lm.config.tree import Tree
from lm.model.flops import activation_bytes, active_parameters, cache_bytes, flops_per_token, parameters, shape_of
from lm.model.position import Position
from lm.model.transformer import Model
from lm.training.cell import check


def count(tree: Tree, context: int | None, batch: int | None) -> dict[str, Any]:
    """Return all counts of a configuration, at the data's context and batch unless others are given."""
    cell = check(tree)
    built = cell.open()
    data = built.data
    rows = len(next(iter(data.training_batches(0, 1))).rows_b) if batch is None else batch
    time = data.context if context is None else context
    make_model = functools.partial(built.run.model, cell.facts.vocabulary, data.context)
    with torch.device("meta"), blame("--context"):  # an encoding that cannot go on as far says so
        model = make_model()
        for position in (module for module in model.modules() if isinstance(module, Position)):
            position.embed(torch.empty(1, time, shape_of(model).width))
    return counted(make_model, time, rows)


def counted(make_model: Callable[[], Model], context: int, batch: int) -> dict[str, Any]:
    """Return all counts of a model."""
    with torch.device("meta"):
        model = make_model()
    parts, flops = parameters(model), flops_per_token(model, context)
    named = {name: getattr(flops, name) for name in ("linear", "attention", "useful", "forward", "backward", "total")}
    return {
        "context": context,
        "batch": batch,
        "parameters": {
            "parts": parts,
            "total": sum(sum(kinds.values()) for kinds in parts.values()),
            "active": active_parameters(model),
        },
        "flops_per_token": named,
        "cache_bytes": cache_bytes(model, context, batch),
        "activation_bytes": activation_bytes(make_model, context, batch),
    }
