"""Figures of model internals: gradients and residual stream by layer, attention entropy by head.

Legend: s seeds, l layers, h heads.
"""

import itertools

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from lm.analysis.results import Results
from lm.config.tree import canonical
from lm.report.plotting import BEGINNING, END, colours, getter, legend, line, new_figure, panels, stack_seeds

MOMENTS = {"initial": BEGINNING, "final": END}
STYLES = {"at initialisation": BEGINNING, "at the end": END}

MOST_MAPS = 18
"""Largest number of arms whose attention is drawn, the baseline first."""

LAST_MATRIX = "mlp_out"
"""The kind of matrix whose gradient in the last layer is drawn over depth (Xiong et al. 2020, section 3)."""


def gradient_norm_by_layer(results: Results) -> Figure | None:
    """Plot gradient norms by layer at initialisation and at the end, a panel for each kind of matrix."""
    kinds: dict[str, int] = {}
    for arm in results.arms:
        for record in results.of(arm):
            for kind, norms in (getter("initial", "gradient_norm")(record) or {}).items():
                kinds[kind] = max(kinds.get(kind, 0), len(norms))
    shown = [kind for kind, layers in kinds.items() if layers > 1]
    if not shown:
        return None
    rows, columns = panels(len(shown), 4)
    size = (2.7 * columns + 0.4, 2.4 * rows + 0.9)
    figure, grid = new_figure(rows, columns, figsize=size, squeeze=False)
    drawn = {}
    for kind, axes in zip(shown, grid.flat, strict=False):
        for arm, colour in colours(results).items():
            for moment, style in MOMENTS.items():
                norms_sl = stack_seeds(results, arm, getter(moment, "gradient_norm", kind))
                if norms_sl is not None:
                    line(axes, range(1, norms_sl.shape[1] + 1), norms_sl, colour, linestyle=style, label=arm)
                    drawn[arm] = colour
        axes.set(title=kind.replace("_", " "), yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(which="both", labelsize=7)
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    grid[-1, 0].set_xlabel("layer, then what follows them", loc="left")
    figure.supylabel("gradient norm before clipping", fontsize="medium")
    legend(figure, drawn, STYLES)
    return figure


def gradient_norm_over_depth(results: Results) -> Figure | None:
    """Plot the last layer's gradient at initialisation over depth, for arms that differ in depth alone."""
    groups: dict[str, list[tuple[int, np.ndarray]]] = {}
    for arm in results.arms:
        norms_sl = stack_seeds(results, arm, getter("initial", "gradient_norm", LAST_MATRIX))
        if norms_sl is not None:
            groups.setdefault(group(results, arm), []).append((norms_sl.shape[1], norms_sl[:, -1]))
    groups = {name: points for name, points in groups.items() if len({layers for layers, _ in points}) > 1}
    if not groups:
        return None
    figure, axes = new_figure(figsize=(6.4, 4.2))
    depths = sorted({layers for points in groups.values() for layers, _ in points})
    for name, points in groups.items():
        points.sort(key=lambda pair: pair[0])
        layers_n = np.concatenate([np.full(len(norms_s), layers) for layers, norms_s in points])
        slope = np.polyfit(np.log(layers_n), np.log(np.concatenate([norms_s for _, norms_s in points])), 1)[0]
        mean = [norms_s.mean() for _, norms_s in points]
        spread = [norms_s.std(ddof=1) if len(norms_s) > 1 else 0.0 for _, norms_s in points]
        x = [layers for layers, _ in points]
        axes.errorbar(x, mean, spread, marker="o", capsize=3, label=f"{name}: slope {slope:+z.2f}")
    axes.set(xscale="log", yscale="log", xlabel="layers", title="Last layer at initialisation")
    axes.set_ylabel(f"gradient norm before clipping, {LAST_MATRIX.replace('_', ' ')}")
    axes.set_xticks(depths, [str(layers) for layers in depths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(title="mean ± sd over seeds")
    return figure


def group(results: Results, arm: str) -> str:
    """Describe the changes of an arm other than its number of layers."""
    changes = results.manifest["arms"][arm]["changes"].items()
    others = [
        f"{path.rpartition('.')[2]} {new if isinstance(new, str) else canonical(new)}"
        for path, (_, new) in changes
        if path != "model.layers" and new is not None
    ]
    return ", ".join(others) or "as the baseline"


def attention_entropy(results: Results) -> Figure | None:
    """Draw the entropy of attention by layer and head, at initialisation above, at the end below."""
    maps: dict[str, dict[str, np.ndarray]] = {}
    for arm in results.arms:
        for moment in MOMENTS:
            entropy_slh = stack_seeds(results, arm, getter(moment, "entropy"))
            if entropy_slh is not None:
                maps.setdefault(arm, {})[moment] = entropy_slh.mean(axis=0)
    if not maps:
        return None
    shown = dict(itertools.islice(maps.items(), MOST_MAPS))
    rows, columns = panels(len(shown), 6)
    size = (1.7 * columns + 1.6, 3.4 * rows + 0.4)
    figure, grid = new_figure(2 * rows, columns, figsize=size, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for place, (arm, moments) in enumerate(shown.items()):
        for below, (moment, when) in enumerate(zip(MOMENTS, STYLES, strict=True)):
            if moment not in moments:
                continue
            axes = grid[2 * (place // columns) + below, place % columns]
            axes.set_axis_on()
            image = axes.imshow(moments[moment], vmin=0, vmax=1, cmap="viridis", origin="lower", aspect="auto")
            layers, heads = moments[moment].shape
            axes.set_xticks(*spaced(heads))
            axes.set_yticks(*spaced(layers))
            axes.set(title=f"{arm}\n{when}" if not below else when, xlabel="head", ylabel="layer")
            axes.title.set_fontsize("small")
            axes.grid(visible=False)
    if len(shown) < len(maps):
        figure.suptitle(f"the first {len(shown)} of {len(maps)} arms")
    figure.colorbar(image, ax=grid, label="entropy of attention / ln n", shrink=0.8)
    return figure


def spaced(count: int) -> tuple[list[int], list[str]]:
    """Return about eight tick positions for `count` rows, and their numbers from 1."""
    places = list(range(0, count, max(1, count // 8)))
    return places, [str(place + 1) for place in places]


def residual_norm_by_layer(results: Results) -> Figure | None:
    """Plot the norm of the residual stream by layer, at initialisation and at the end."""
    figure, axes = new_figure(figsize=(6.4, 4.4))
    drawn = {}
    for arm, colour in colours(results).items():
        for moment, style in MOMENTS.items():
            norms_sl = stack_seeds(results, arm, getter(moment, "residual_norm"))
            if norms_sl is not None:
                line(axes, range(1, norms_sl.shape[1] + 1), norms_sl, colour, linestyle=style, label=arm)
                drawn[arm] = colour
    if not drawn:
        return None
    axes.set(xlabel="layer", ylabel="mean norm of the residual stream", title="Residual stream", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, drawn, STYLES)
    return figure
