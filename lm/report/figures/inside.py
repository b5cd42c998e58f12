"""Figures of what is inside: gradients and residual stream by layer, attention by head, loss by length and position.

Legend: s seeds, l layers, h heads, n lengths, p positions, m bins.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lm.analysis.results import Records
from lm.config.tree import canonical
from lm.report.figures.catalogue import Figure, FigureInputs
from lm.report.figures.chart import (
    SPREAD,
    Axis,
    Chart,
    Getter,
    Heat,
    Panel,
    Series,
    Stroke,
    getter,
    mean_over_seeds,
    stack_seeds,
)
from lm.store.record import Record

MOMENTS = {"initial": "at initialisation", "final": "at the end"}
STYLES: dict[str, Stroke] = {"at initialisation": "--", "at the end": "-"}
THIN = f"{SPREAD} Thin: at initialisation; thick: at the end."

SLIDING = "sliding window"
LOSS = Axis("validation NLL (nats/token)", "nll")
MOST_MAPS = 18  # largest number of arms whose attention is drawn, the baseline first

LAST_MATRIX = "mlp_out"
"""The kind of matrix whose gradient in the last layer is drawn over depth (Xiong et al. 2020, section 3)."""


def _by_layer(results: Records, moments: Sequence[str], *keys: str) -> list[Series]:
    series = []
    for (index, arm), moment in itertools.product(enumerate(results.arms), moments):
        values_sl = stack_seeds(results, arm, getter(moment, *keys))
        if values_sl is not None:
            layers, style = range(1, values_sl.shape[1] + 1), MOMENTS[moment] if len(moments) > 1 else ""
            series.append(mean_over_seeds(arm, layers, values_sl, index, style=style))
    return series


def gradient_norm_by_layer(inputs: FigureInputs) -> Chart | None:
    """Return gradient norms by layer, a panel for each kind of matrix, at initialisation above, at the end below."""
    results, layers_of_kind = inputs.results, dict[str, int]()
    pick: Getter = getter("initial", "gradient_norm")
    for record in (record for arm in results.arms for record in results.of(arm)):
        for kind, norms in (pick(record) or {}).items():
            layers_of_kind[kind] = max(layers_of_kind.get(kind, 0), len(norms))
    x = Axis("layer, then what follows them", "layer", integers=True)
    y = Axis("gradient norm", "norm", log=True)
    kinds = [kind for kind, layers in layers_of_kind.items() if layers > 1]
    panels = []
    for moment, kind in itertools.product(MOMENTS, kinds):
        title = f"{kind.replace('_', ' ')}, {MOMENTS[moment]}"
        if series := _by_layer(results, [moment], "gradient_norm", kind):
            panels.append(Panel(x, y, series, title=title, new_row=kind == kinds[0]))
    return Chart("Gradients by layer", panels, results.arms, SPREAD, (2.9, 2.2), 4) if panels else None


def residual_norm_by_layer(inputs: FigureInputs) -> Chart | None:
    """Return the norm of the residual stream by layer, at initialisation and at the end."""
    series = _by_layer(inputs.results, list(MOMENTS), "residual_norm")
    if not series:
        return None
    y = Axis("mean norm of the residual stream", "norm", log=True)
    panel = Panel(Axis("layer", integers=True), y, series, title="Residual stream")
    return Chart("Residual stream", [panel], inputs.results.arms, THIN, (6.4, 4.4), styles=STYLES)


def gradient_norm_over_depth(inputs: FigureInputs) -> Chart | None:
    """Return the last layer's gradient at initialisation over depth, for arms that differ in depth alone."""
    results, groups = inputs.results, dict[str, list[tuple[int, np.ndarray]]]()
    for arm in results.arms:
        norms_sl = stack_seeds(results, arm, getter("initial", "gradient_norm", LAST_MATRIX))
        if norms_sl is not None:
            groups.setdefault(other_changes(results, arm), []).append((norms_sl.shape[1], norms_sl[:, -1]))
    groups = {name: points for name, points in groups.items() if len({layers for layers, _ in points}) > 1}
    if not groups:
        return None
    series, names = [], []
    for index, (name, points) in enumerate(groups.items()):
        points.sort(key=lambda pair: pair[0])
        layers_n = np.concatenate([np.full(len(norms_s), layers) for layers, norms_s in points])
        slope = np.polyfit(np.log(layers_n), np.log(np.concatenate([norms_s for _, norms_s in points])), 1)[0]
        mean = np.array([norms_s.mean() for _, norms_s in points])
        spread = np.array([norms_s.std(ddof=1) if len(norms_s) > 1 else 0.0 for _, norms_s in points])
        names.append(f"{name}: slope {slope:+z.2f}")
        x, band = [layers for layers, _ in points], (mean - spread, mean + spread)
        series.append(Series(names[-1], x, mean, *band, index, bars=True, tips={"sd": spread.tolist()}))
    ticks = sorted({layers for points in groups.values() for layers, _ in points})
    y = Axis(f"gradient norm before clipping, {LAST_MATRIX.replace('_', ' ')}", "norm", log=True)
    panel = Panel(Axis("layers", log=True, ticks=ticks), y, series, title="Last layer at initialisation")
    note = "Mean ± sd over seeds, of arms that differ in depth alone."
    title, legend = "Gradient of the last layer over depth", "mean ± sd over seeds"
    return Chart(title, [panel], names, note, legend_title=legend, arms=False)


def other_changes(results: Records, arm: str) -> str:
    """Describe the changes of an arm other than its number of layers."""
    changes = results.manifest["arms"][arm]["changes"].items()
    others = [
        f"{path.rpartition('.')[2]} {new if isinstance(new, str) else canonical(new)}"
        for path, (_, new) in changes
        if path != "model.layers" and new is not None
    ]
    return ", ".join(others) or "as the baseline"


def attention_entropy(inputs: FigureInputs) -> Chart | None:
    """Return the entropy of attention by layer and head, at initialisation above, at the end below."""
    maps: dict[str, dict[str, np.ndarray]] = {}
    for arm, moment in itertools.product(inputs.results.arms, MOMENTS):
        entropy_slh = stack_seeds(inputs.results, arm, getter(moment, "entropy"))
        if entropy_slh is not None:
            maps.setdefault(arm, {})[moment] = entropy_slh.mean(axis=0)
    if not maps:
        return None
    shown = dict(itertools.islice(maps.items(), MOST_MAPS))
    panels = []
    for moment, arm in itertools.product(MOMENTS, shown):
        if moment in shown[arm]:
            layers, heads = ([str(number + 1) for number in range(count)] for count in shown[arm][moment].shape)
            x, y, when = Axis("head", "head", names=heads), Axis("layer", "layer", names=layers), MOMENTS[moment]
            values, scale = shown[arm][moment], ("entropy of attention / ln n", 0.0, 1.0)
            how: Any = {"option": f"{arm}, {when}", "new_row": arm == next(iter(shown))}
            panels.append(Heat(x, y, values, scale, upward=True, title=f"{arm}\n{when}", **how))
    note = "Mean over seeds" + f", the first {len(shown)} of {len(maps)} arms" * (len(shown) < len(maps))
    return Chart("Entropy of attention", panels, (), f"{note}.", (1.7, 1.7), 6, arms=False)


def measured_lengths(record: Record) -> dict[int, dict[str, Any]]:
    """Return the measurements at each length, shortest first; lengths that failed are left out."""
    by_length = (record.get("evaluations") or {}).get("lengths") or {}
    in_order = sorted(by_length.items(), key=lambda item: int(item[0]))
    return {int(length): measurements for length, measurements in in_order if "error" not in measurements}


def common_lengths(results: Records, arm: str) -> list[int]:
    """Return the lengths at which every measured run of an arm was measured, shortest first."""
    lengths_of_runs = [set(measured_lengths(record)) for record in results.of(arm) if record["status"] == "ok"]
    measured = [lengths for lengths in lengths_of_runs if lengths]
    return sorted(set.intersection(*measured)) if measured else []


def length_getter(name: str, lengths: list[int]) -> Getter:
    """Return a function that reads a quantity at these lengths from a record."""
    return lambda record: [at[length][name] for length in lengths] if (at := measured_lengths(record)) else None


def trained_lengths(results: Records) -> dict[float, str]:
    """Return the context lengths that arms were trained with, of those that were measured at several."""
    lengths = set()
    for arm in results.arms:
        if common_lengths(results, arm):
            lengths.add((results.configuration(arm).get("data") or {}).get("init_args", {}).get("context"))
    return dict.fromkeys(sorted(length for length in lengths if isinstance(length, int)), "trained")


def nll_by_length(inputs: FigureInputs) -> Chart | None:
    """Return NLL over context length, of consecutive blocks and of a sliding window."""
    results, series, ticks = inputs.results, [], set[int]()
    for index, arm in enumerate(results.arms):
        lengths = common_lengths(results, arm)
        blocks_sn = stack_seeds(results, arm, length_getter("nll", lengths)) if lengths else None
        sliding_sn = stack_seeds(results, arm, length_getter("sliding_nll", lengths)) if lengths else None
        if blocks_sn is not None and sliding_sn is not None:
            series.append(mean_over_seeds(arm, lengths, blocks_sn, index, style="blocks"))
            series.append(mean_over_seeds(arm, lengths, sliding_sn.mean(axis=0)[None], index, style=SLIDING))
            ticks |= set(lengths)
    if not series:
        return None
    x = Axis("tokens of context", "length", log=True, ticks=sorted(ticks))
    panel = Panel(x, LOSS, series, title="Length of context", verticals=trained_lengths(results), right="perplexity")
    note = "Thin: a sliding window. Dotted: the length that was trained with."
    styles: dict[str, Stroke] = {"blocks": "-", SLIDING: "--"}
    return Chart("Other lengths of context", [panel], results.arms, note, (6.4, 4.6), styles=styles)


def log_edges(positions: int, per_doubling: int = 3) -> np.ndarray:
    """Return log-spaced bin edges over positions, about `per_doubling` a doubling, none empty."""
    count = max(1, round(per_doubling * np.log2(positions)))
    return np.unique(np.round(np.geomspace(1, positions + 1, count + 1)).astype(int)) - 1


def loss_by_position(inputs: FigureInputs) -> Chart | None:
    """Return the loss by position in blocks of the longest length, averaged in log-spaced bins."""
    results, series = inputs.results, []
    for index, arm in enumerate(results.arms):
        longest = common_lengths(results, arm)[-1:]
        each = stack_seeds(results, arm, length_getter("by_position", longest)) if longest > [1] else None
        if each is None:
            continue
        losses_sp = each[:, 0]
        edges = log_edges(losses_sp.shape[1])
        seen_m = [(start + end + 1) / 2 for start, end in itertools.pairwise(edges)]  # 1 is the first
        losses_sm = np.add.reduceat(losses_sp, edges[:-1], axis=1) / np.diff(edges)
        series.append(mean_over_seeds(f"{arm} ({losses_sp.shape[1]} tokens)", seen_m, losses_sm, index))
    if not series:
        return None
    title = "Loss by position"
    x = Axis("position in the context", "position", log=True)
    panel = Panel(x, LOSS, series, title=title, verticals=trained_lengths(results))
    size, legend = (6.4, 4.4), "mean ± sd over seeds"
    return Chart("Loss by position", [panel], results.arms, "In the longest blocks.", size, legend_title=legend)


FIGURES = (
    Figure("nll_by_length", 7, nll_by_length),
    Figure("loss_by_position", 69, loss_by_position),
    Figure("gradient_norm_over_depth", 40, gradient_norm_over_depth),
    Figure("gradient_norm_by_layer", 65, gradient_norm_by_layer),
    Figure("residual_norm_by_layer", 68, residual_norm_by_layer),
    Figure("attention_entropy", 91, attention_entropy),
)
