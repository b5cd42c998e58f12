"""Figures of the loss at context lengths other than the trained one, and by position.

Legend: s seeds, n lengths, p positions, m bins.
"""

import itertools
from typing import Any

import numpy as np

from lm.analysis.results import Records
from lm.report.figures.catalogue import Figure, FigureInputs
from lm.report.figures.chart import Axis, Chart, Getter, Panel, Stroke, mean_over_seeds, stack_seeds
from lm.store.record import Record

SLIDING = "sliding window"
LOSS = Axis("validation NLL (nats/token)", "nll")


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


FIGURES = (Figure("nll_by_length", 30, nll_by_length), Figure("loss_by_position", 69, loss_by_position))
