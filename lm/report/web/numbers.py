"""Data of the page's charts: columns of text and numbers, downsampled to a small file.

Legend: s seeds, n points, p positions, m bins.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.results import HEADLINE, Results, curves, value
from lm.report.lengths import common_lengths, length_getter, log_edges, trained_context
from lm.report.plotting import stack_seeds
from lm.report.study import Study
from lm.report.tables import difference
from lm.store.metrics import SUMMARY_METRICS, describe
from lm.store.record import Record

Columns = dict[str, list[Any]]
"""Rows stored by column, half the size of a mapping for each row."""

CURVES = {
    "validation_nll": "validation NLL (nats/token)",
    "train_loss": "training loss (nats/token)",
    "gradient_norm": "gradient norm before clipping",
    "learning_rate": "learning rate",
}
"""Drawn columns of learning curves and their labels."""

POINTS, LEAST_POINTS, ALL_POINTS = 240, 60, 6000
"""Points of a curve at most and at least, and of all arms together."""

COSTS = {
    "parameters": "parameters",
    "train_seconds": "training seconds",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "peak_memory": "peak memory (MiB)",
    "energy": "energy (J)",
}


def round5(number: Any) -> float | None:
    """Round a number to five digits; None for one that JSON cannot hold."""
    if number is None or not math.isfinite(number):
        return None
    return float(f"{number:z.5g}")


def columns(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Convert rows with equal keys to columns; empty for no row."""
    by_name: Columns = {}
    for row in rows:
        for name, entry in row.items():
            by_name.setdefault(name, []).append(entry)
    return by_name


def downsample_lttb(x_n: np.ndarray, y_n: np.ndarray, count: int) -> np.ndarray:
    """Return indices of `count` points that keep the shape of a curve, peaks too.

    Largest-triangle-three-buckets (Steinarsson 2013, section 4.2): from each of equal buckets it takes the point that
    spans the largest triangle with the previously chosen point and the mean of the next bucket.
    """
    if len(x_n) <= count:
        return np.arange(len(x_n))
    edges = np.linspace(1, len(x_n) - 1, count - 1).astype(int)
    chosen = [0]
    for (start, end), (_, after) in itertools.pairwise([*itertools.pairwise(edges), (0, len(x_n))]):
        x, y, last = x_n[end:after].mean(), y_n[end:after].mean(), chosen[-1]
        area = np.abs((x_n[last] - x) * (y_n[start:end] - y_n[last]) - (x_n[last] - x_n[start:end]) * (y - y_n[last]))
        chosen.append(start + int(np.argmax(area)))
    return np.array([*chosen, len(x_n) - 1])


def points(results: Results) -> int:
    """Return the number of points a curve, fewer where there are many arms."""
    return max(LEAST_POINTS, min(POINTS, ALL_POINTS // len(results.arms)))


def curve_data(results: Results) -> Columns:
    """Return the mean over seeds of each curve at steps that keep its shape, with its sd."""
    count, rows = points(results), []
    for column, (index, arm) in itertools.product(CURVES, enumerate(results.arms)):
        frame = curves(results, arm, column)
        if frame.empty:
            continue
        mean, spread = frame.mean(axis=1), frame.std(axis=1, ddof=1)
        mean = mean[np.isfinite(mean)]
        for at in downsample_lttb(mean.index.to_numpy(dtype=float), mean.to_numpy(), count):
            step, middle = mean.index[at], float(mean.iloc[at])
            sd = float(spread[step])
            band = (middle - sd, middle + sd) if math.isfinite(sd) else (middle, middle)
            numbers = {"mean": middle, "sd": sd, "low": band[0], "high": band[1]}
            row = {"column": column, "arm": index, "step": int(step), "n": int(frame.loc[step].count())}
            rows.append(row | {name: round5(number) for name, number in numbers.items()})
    return columns(rows)


def compared_metrics(results: Results, table: pd.DataFrame) -> list[str]:
    """Return the quantities whose differences are drawn: the judged, and those of the first table."""
    measured = set(table[table.n > 0].metric)
    return [name for name in dict.fromkeys((*results.judged, HEADLINE, *SUMMARY_METRICS)) if name in measured]


def difference_data(results: Results, table: pd.DataFrame) -> tuple[Columns, Columns]:
    """Return the paired differences with their intervals, and those of single seeds."""
    rows, seeds = [], []
    indices = {arm: index for index, arm in enumerate(results.arms)}
    for name in compared_metrics(results, table):
        for row in table[(table.metric == name) & (table.pairs > 0)].itertuples():
            arm = str(row.arm)
            labels = {"verdict": str(row.verdict), "text": difference(row), "n": int(row.pairs), "bold": bool(row.bold)}
            ends = {"difference": round5(row.difference), "low": round5(row.low), "high": round5(row.high)}
            rows.append({"metric": name, "arm": indices[arm], **ends, **labels})
            for seed, (record, base) in results.pairs(arm).items():
                gap = round5(value(record, name) - value(base, name))
                if gap is not None:
                    seeds.append({"metric": name, "arm": indices[arm], "seed": seed, "difference": gap})
    return columns(rows), columns(seeds)


def reliability_data(results: Results) -> Columns:
    """Return confidence, accuracy and token share by bin, pooled over seeds.

    Bins with under 0.1 % of the tokens are left out.
    """
    rows = []
    for index, arm in enumerate(results.arms):
        diagrams = [diagram for record in results.of(arm) if (diagram := record["reliability"])]
        diagrams = [diagram for diagram in diagrams if len(diagram["count"]) == len(diagrams[0]["count"])]
        if not diagrams:
            continue
        count_sm = np.array([diagram["count"] for diagram in diagrams], dtype=float)
        total_m = count_sm.sum(axis=0)
        sums = [
            (count_sm * np.array([diagram[name] for diagram in diagrams])).sum(axis=0)
            for name in ("confidence", "accuracy")
        ]
        for tokens, confidence, accuracy in zip(total_m, *sums, strict=True):
            if tokens > 1e-3 * total_m.sum():
                numbers = {"confidence": confidence / tokens, "accuracy": accuracy / tokens}
                numbers["share"] = tokens / total_m.sum()
                rows.append({"arm": index} | {name: round5(number) for name, number in numbers.items()})
    return columns(rows)


def length_data(results: Results) -> tuple[Columns, Columns]:
    """Return the loss by context length, and by position in blocks of the longest length."""
    rows, positions = [], []
    for index, arm in enumerate(results.arms):
        lengths = common_lengths(results, arm)
        for name, label in (("nll", "blocks"), ("sliding_nll", "sliding window")) if lengths else ():
            losses_sn = stack_seeds(results, arm, length_getter(name, lengths))
            for length, mean in zip(lengths, losses_sn.mean(axis=0) if losses_sn is not None else (), strict=False):
                rows.append({"arm": index, "way": label, "length": length, "nll": round5(mean)})
        each = stack_seeds(results, arm, length_getter("by_position", lengths[-1:])) if lengths[-1:] > [1] else None
        if each is None:
            continue
        losses_p = each[:, 0].mean(axis=0)
        edges = log_edges(len(losses_p))
        for start, end in itertools.pairwise(edges):
            mean = losses_p[start:end].mean()
            positions.append({"arm": index, "position": (start + end + 1) / 2, "nll": round5(mean)})
    return columns(rows), columns(positions)


def trained_length_data(results: Results) -> Columns:
    """Return the trained context lengths of arms that were measured at several."""
    lengths = {trained_context(results, arm) for arm in results.arms if common_lengths(results, arm)} - {None}
    return columns({"length": length, "text": "trained"} for length in sorted(lengths))  # type: ignore[type-var]


def run_cost(record: Record, name: str) -> float:
    """Return a cost of a run; NaN where it was not measured."""
    if name == "flops":
        return value(record, "flops_per_token") * value(record, "tokens")
    return value(record, name)


def cost_data(results: Results) -> Columns:
    """Return each arm's headline, mean and spread over seeds, over each measured cost."""
    rows = []
    for name, (index, arm) in itertools.product(COSTS, enumerate(results.arms)):
        runs = [record for record in results.of(arm) if record["status"] == "ok"]
        cost, loss = _finite(run_cost(r, name) for r in runs), _finite(value(r, results.headline) for r in runs)
        if cost and loss:
            rows.append({"cost": name, "arm": index, "x": round5(np.mean(cost)), "n": len(loss), **_spread(loss)})
    return columns(rows)


def setting_data(results: Results) -> Columns:
    """Return the headline over each number in which at least three arms differ."""
    changes = {arm: results.manifest["arms"][arm]["changes"] for arm in results.arms}
    paths = dict.fromkeys(
        path for arm_changes in changes.values() for path, pair in arm_changes.items() if _number(pair[0])
    )
    rows = []
    for path in paths:
        before = next(pair[0] for arm_changes in changes.values() for name, pair in arm_changes.items() if name == path)
        at = {arm: arm_changes[path][1] if path in arm_changes else before for arm, arm_changes in changes.items()}
        if len({number for number in at.values() if _number(number)}) < 3:
            continue
        for index, arm in enumerate(results.arms):
            loss = _finite(value(record, results.headline) for record in results.of(arm))
            if loss and _number(at[arm]):
                rest = {name: pair for name, pair in changes[arm].items() if name != path}
                line = ", ".join(f"{name.rpartition('.')[2]} {pair[1]}" for name, pair in rest.items())
                row = {"path": path, "arm": index, "x": float(at[arm]), "line": line or "as the baseline"}
                rows.append(row | {"n": len(loss)} | _spread(loss))
    return columns(rows)


def trial_data(results: Results, studies: Mapping[str, Study]) -> Columns:
    """Return every complete trial of every arm's search, by each numeric parameter."""
    rows = []
    for index, arm in enumerate(results.arms):
        if arm not in studies:
            continue
        study = studies[arm]
        quantity = next(iter(study.objectives))
        for name in (name for name, described in study.space.items() if "choices" not in described):
            for x, y in zip(
                *(study.complete.dropna(subset=[name])[column] for column in (name, quantity)), strict=True
            ):
                rows.append({"arm": index, "path": name, "x": round5(x), "y": round5(y)})
    return columns(rows)


def _number(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool)


def _finite(numbers: Iterable[float]) -> list[float]:
    return [number for number in numbers if math.isfinite(number)]


def _spread(loss: Sequence[float]) -> dict[str, float | None]:
    mean, sd = float(np.mean(loss)), float(np.std(loss, ddof=1)) if len(loss) > 1 else 0.0
    return {"mean": round5(mean), "sd": round5(sd), "low": round5(mean - sd), "high": round5(mean + sd)}


def label(name: str) -> str:
    """Return the label of a quantity with its unit."""
    meaning = describe(name)
    return meaning.label + (f" ({meaning.unit})" if meaning.unit else "")
