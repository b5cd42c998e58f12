"""Figures of the loss at context lengths other than the trained one, and by position.

Legend: s seeds, n lengths, p positions, m bins.
"""

import itertools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lm.analysis.results import Results
from lm.report.plotting import Getter, Style, colours, legend, line, new_figure, stack_seeds, ticks_at
from lm.store.record import Record

BLOCKS: Style = "-"
SLIDING: Style = "--"
STYLES = {"blocks": BLOCKS, "sliding window": SLIDING}


def measured_lengths(record: Record) -> dict[int, dict[str, Any]]:
    """Return the measurements at each length, shortest first; lengths that failed are left out."""
    by_length = (record.get("evaluations") or {}).get("lengths") or {}
    return {
        length: by_length[str(length)]
        for length in sorted(map(int, by_length))
        if "error" not in by_length[str(length)]
    }


def common_lengths(results: Results, arm: str) -> list[int]:
    """Return the lengths at which every measured run of an arm was measured, shortest first."""
    lengths_of_runs = [
        set(measured_lengths(record))
        for record in results.of(arm)
        if record["status"] == "ok" and measured_lengths(record)
    ]
    return sorted(set.intersection(*lengths_of_runs)) if lengths_of_runs else []


def length_getter(name: str, lengths: list[int]) -> Getter:
    """Return a function that reads a quantity at these lengths from a record."""

    def pick(record: Record) -> list[float] | None:
        by_length = measured_lengths(record)
        return [by_length[length][name] for length in lengths] if by_length else None

    return pick


def perplexity_to_nll(perplexity: Any) -> Any:
    """Return the logarithm, safe at 0, which axes without limits may request."""
    return np.log(np.maximum(perplexity, np.finfo(float).tiny))


def trained_context(results: Results, arm: str) -> int | None:
    """Return the tokens of context that an arm was trained with; None where unknown."""
    length = (results.configuration(arm).get("data") or {}).get("init_args", {}).get("context")
    return length if isinstance(length, int) else None


def nll_by_length(results: Results) -> Figure | None:
    """Plot NLL over context length, of consecutive blocks and of a sliding window."""
    figure, axes = new_figure(figsize=(6.4, 4.6))
    drawn, ticks = {}, set[int]()
    for arm, colour in colours(results).items():
        lengths = common_lengths(results, arm)
        if not lengths:
            continue
        blocks_sn, sliding_sn = (
            stack_seeds(results, arm, length_getter(name, lengths)) for name in ("nll", "sliding_nll")
        )
        assert blocks_sn is not None
        assert sliding_sn is not None
        line(axes, lengths, blocks_sn, colour, linestyle=BLOCKS, label=arm)
        axes.plot(lengths, sliding_sn.mean(axis=0), color=colour, linestyle=SLIDING, marker="o", markersize=3)
        drawn[arm] = colour
        ticks |= set(lengths)
    if not drawn:
        return None
    axes.set(xscale="log", xlabel="tokens of context", ylabel="validation NLL (nats/token)", title="Length of context")
    ticks_at(axes, ticks)
    axes.secondary_yaxis("right", functions=(np.exp, perplexity_to_nll)).set_ylabel("perplexity")
    mark_trained(results, axes, list(drawn))
    legend(figure, drawn, STYLES)
    return figure


def mark_trained(results: Results, axes: Axes, arms: list[str]) -> None:
    """Draw a vertical line at each length that arms were trained with."""
    trained = {tokens for arm in arms if (tokens := trained_context(results, arm)) is not None}
    for length in sorted(trained):
        axes.axvline(length, color="black", linewidth=1, linestyle=":")
        axes.annotate(
            "trained", (length, 1), xytext=(3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize="small", va="top",
        )  # fmt: skip


def log_edges(positions: int, per_doubling: int = 3) -> np.ndarray:
    """Return log-spaced bin edges over positions, about `per_doubling` a doubling, none empty."""
    count = max(1, round(per_doubling * np.log2(positions)))
    return np.unique(np.round(np.geomspace(1, positions + 1, count + 1)).astype(int)) - 1


def loss_by_position(results: Results) -> Figure | None:
    """Plot the loss by position in blocks of the longest length, averaged in log-spaced bins."""
    figure, axes = new_figure(figsize=(6.4, 4.4))
    drawn = {}
    for arm, colour in colours(results).items():
        longest = common_lengths(results, arm)[-1:]
        if not longest or longest[0] < 2:
            continue
        each = stack_seeds(results, arm, length_getter("by_position", longest))
        assert each is not None
        losses_sp = each[:, 0]
        edges = log_edges(losses_sp.shape[1])
        seen_m = [(start + end + 1) / 2 for start, end in itertools.pairwise(edges)]  # 1 is the first
        losses_sm = np.add.reduceat(losses_sp, edges[:-1], axis=1) / np.diff(edges)
        line(axes, seen_m, losses_sm, colour, label=f"{arm} ({losses_sp.shape[1]} tokens)")
        drawn[arm] = colour
    if not drawn:
        return None
    axes.set(xscale="log", xlabel="position in the context", ylabel="validation NLL (nats/token)")
    axes.set_title("Loss by position, blocks of the longest length")
    mark_trained(results, axes, list(drawn))
    axes.legend(title="mean ± sd over seeds")
    return figure
