"""The coordinate check of muP: the size of each layer's activations after a few steps, at several widths.

If a recipe is to hold at every width, activations must neither grow nor shrink with it (Yang et al. 2022, appendix D.1,
https://arxiv.org/abs/2203.03466). A configuration is trained in the standard parametrisation and with muP, from its own
data, without warm-up, which would hide the first steps. Measured is the mean |activation| over the first batch.
"""

import contextlib
import functools
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import seaborn.objects as so
import torch
from torch import Tensor, nn

from lm.config.components import resolve
from lm.config.tree import InputError, Tree, override, prefix_errors
from lm.model.attention import Attention
from lm.model.block import Block
from lm.model.mlp import FeedForward
from lm.model.transformer import Embedding
from lm.training.cell import check
from lm.training.optim import tables
from lm.training.run import RunConfig

LAYERS: tuple[type[nn.Module], ...] = (Embedding, Attention, FeedForward, Block)  # measured, beside the logits
# mean |activation| by parametrisation, steps, layer and width; keys are text, as in JSON
Table = dict[str, dict[str, dict[str, dict[str, float]]]]


def coordinates(tree: Tree, widths: Sequence[int], steps: Sequence[int]) -> dict[str, Any]:
    """Return the check of a configuration at `widths`, after `steps` updates, as JSON. Raises InputError."""
    options = resolve(tree, RunConfig)["model"]["init_args"]
    if not {"width", "heads", "parametrization"} <= options.keys():
        raise InputError("model: takes no width, heads and parametrization, so that it has no other width")
    mup = {"class_path": "MuP", "init_args": {"base_width": options["width"], "base_heads": options["heads"]}}
    chosen = options.get("parametrization") or mup
    table: Table = {}
    for name, parametrization in (("standard", None), ("scaled", chosen)):
        changes = {"model.parametrization": parametrization, "optim.schedule": "Constant"}
        changes["trainer.max_steps"] = max(steps)
        for width in widths:
            with prefix_errors(f"width {width}"):
                measured = activations(override(tree, {**changes, "model.width": width}), steps)
            for step, layers in measured.items():
                for layer, value in layers.items():
                    table.setdefault(name, {}).setdefault(str(step), {}).setdefault(layer, {})[str(width)] = value
    return {"format": 1, "parametrization": chosen, "activations": table}


def activations(tree: Tree, steps: Sequence[int]) -> dict[int, dict[str, float]]:
    """Train a configuration; return the mean |activation| of each layer after each of these numbers of updates."""
    cell = check(tree)
    opened = cell.open()
    model, run = opened.model(), opened.run
    optimizer, schedule = run.optim.build(model.parameters(), max(steps), tables(model), model.map_rate)
    clip = cell.config["trainer"]["gradient_clip_val"]
    batches = list(opened.data.training_batches(0, max(steps)))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    by_step: dict[int, dict[str, float]] = {}

    def measure(means: dict[str, float], name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        means[name] = float(output.abs().mean())

    for step, batch in enumerate(batches, start=1):
        model.train()
        loss = run.optim.objective.loss(model(*batch.inputs).flatten(0, 1), batch.targets_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        if step in steps:
            means: dict[str, float] = {}  # the last call counts of layers called twice
            model.eval()
            with torch.no_grad(), contextlib.ExitStack() as stack:
                for name, module in layers.items():
                    hook = functools.partial(measure, means, name)
                    stack.callback(module.register_forward_hook(hook).remove)
                logits = model(*batches[0].inputs)
            by_step[step] = {**means, "logits": float(logits.abs().mean())}
    return by_step


def exponents(result: Mapping[str, Any]) -> list[tuple[str, str, str, float]]:
    """Return parametrisation, steps, layer, and the power of the width with which its activations grow."""
    return [
        (name, step, layer, slope(by_width))
        for name, by_step in result["activations"].items()
        for step, by_layer in by_step.items()
        for layer, by_width in by_layer.items()
    ]


def slope(by_width: Mapping[str, float]) -> float:
    """Return the slope of log activation over log width; NaN where an activation is not a number above zero."""
    values = np.array(list(by_width.values()))
    if not (np.isfinite(values).all() and (values > 0).all()):
        return math.nan
    return float(np.polyfit(np.log([int(width) for width in by_width]), np.log(values), 1)[0])


def draw_coordinates(result: Mapping[str, Any]) -> bytes:
    """Draw the check as PNG: a panel for each parametrisation and number of steps, a line for each layer."""
    rows = [
        (parametrization_name(name, result), f"{step} step{'s' * (step != '1')}", layer, int(width), value)
        for name, by_step in result["activations"].items()
        for step, by_layer in by_step.items()
        for layer, by_width in by_layer.items()
        for width, value in by_width.items()
    ]
    table = pd.DataFrame(rows, columns=["parametrization", "steps", "layer", "width", "mean |activation|"])
    size = 3.6 * table["steps"].nunique(), 3.1 * table["parametrization"].nunique()
    widths = so.Continuous(trans="log2").tick(at=sorted(set(table["width"]))).label(like="{x:.0f}")
    plot = so.Plot(table, x="width", y="mean |activation|", color="layer").facet("steps", "parametrization")
    plot = plot.add(so.Line(marker="o", pointsize=3)).scale(x=widths, y="log", color="viridis")
    content = io.BytesIO()
    plot.theme(sns.axes_style("whitegrid")).layout(size=size).save(content, format="png", dpi=110, bbox_inches="tight")
    return content.getvalue()


def parametrization_name(key: str, result: Mapping[str, Any]) -> str:
    """Return the name of a parametrisation for tables and figures."""
    return "standard" if key == "standard" else str(result["parametrization"]["class_path"])
