"""Training problems of runs, from their records, learning curves and configurations.

A difference between two arms of which one has a layer that never woke says nothing about the component. Every rule has
its bound here; a run that lacks what a rule looks at is not found to break it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.clipping import sets_the_rate
from lm.store.record import Record
from lm.store.validation import is_number, value_at

UNIFORM = 0.98  # entropy of attention over ln n above which a head looks everywhere alike; such a layer only mixes
# Entropy of attention over ln n below which a head looks at one place only: with 64 keys at 1.2 of them. A layer of
# such heads hardly learns any more where to look. In sweeps/char_tiny.yaml it comes with rates beyond the best one.
COLLAPSED = 0.05
# gradient of a block over that of the median block: one that starts below the first must end above the second
ASLEEP, AWAKE = 1e-4, 1e-2
STOPPED = 1e-4  # gradient of a block at the end over its own at first: below, it learns no more; healthy runs: over .1

DEAD = 0.5  # share of a layer's hidden units that are zero on every token
# share of steps whose gradient was clipped; above it the clipping sets the rate, and not the schedule, where the
# optimiser sees the scale of a gradient
CLIPPED = 0.5
# Share of a block in the residual stream below which it adds next to nothing (`lm.metrics.probe.block_share`). Blocks
# of healthy runs end at .17 or more with 12 layers or fewer, and at .068 or more with 24.
BLOCK_SHARE = 1e-2
# Share of a unigram model's loss by which a run must be below it. Add-one smoothing costs .5 % of that loss at most
# on the texts tried. Of 1,296 committed runs 17 end within 1.4 % of it, as they learned nothing else; the others end
# 4 % below it or more.
UNIGRAM_MARGIN = 0.02
STILL_FALLING = 0.05  # share of the loss's fall in the last tenth of the steps; a run that has ended has next to none

FEWEST_STEPS = 50  # a run of fewer steps is a look at a model as it was initialised, and no rule applies
BLOCK_KINDS = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")  # matrices of a block


def faults(
    record: Record, curve: pd.DataFrame | None = None, configuration: Callable[[], Mapping[str, Any]] = dict
) -> list[str]:
    """List the training problems of a finished run, by its curve too if it was kept; none for a lost one."""
    if record.get("status") != "ok" or (record.get("steps") or 0) < FEWEST_STEPS:
        return []
    listed = [fault for rule in RULES for fault in rule(record)]
    share = record["metrics"].get("clipped_share")
    if share is not None and share > CLIPPED and sets_the_rate(record, configuration()):
        listed.append("most steps are clipped")
    falling = last_tenth(curve, record["steps"] or 0) > STILL_FALLING
    return [*listed, "the loss is still falling at the end"] if falling else listed


def unhealthy(faults_of_runs: Sequence[list[str]]) -> str:
    """Format the training problems of an arm's runs in one line, each with its number of runs."""
    counts = Counter(fault for of_run in faults_of_runs for fault in dict.fromkeys(of_run))
    runs = len(faults_of_runs)
    return "; ".join(
        f"{fault} on {runs_with} of {runs} seeds" if runs_with < runs else fault for fault, runs_with in counts.items()
    )


def attention(record: Record) -> list[str]:
    """List layers that end with uniform attention in every head, or with every head attending to one place only."""
    layers = [heads for heads in (value_at(record, "final/entropy") or []) if heads]
    uniform = [index for index, heads in enumerate(layers, start=1) if min(heads) > UNIFORM]
    collapsed = [index for index, heads in enumerate(layers, start=1) if max(heads) < COLLAPSED]
    faulty = [*((index, "stays uniform") for index in uniform), *((index, "collapses") for index in collapsed)]
    return [f"attention of layer {index} of {len(layers)} {words}" for index, words in faulty]


def blocks_without_gradient(record: Record) -> list[str]:
    """List blocks that hardly get a gradient and do not recover, and those that got one at first only."""
    first, last = (_block_gradients(value_at(record, f"{moment}/gradient_norm")) for moment in ("initial", "final"))
    if not len(first) or len(first) != len(last):
        return []
    asleep = np.flatnonzero((first < ASLEEP * np.median(first)) & (last < AWAKE * np.median(last)))
    count = int((last < STOPPED * first).sum())
    stopped = [f"{count} of {len(first)} blocks get next to no gradient any more"] if count else []
    return [*(f"block {index + 1} of {len(first)} gets next to no gradient" for index in asleep), *stopped]


def _block_gradients(norms: Any) -> np.ndarray:
    """Return the gradient norm of each block; empty where kinds of matrices are not in every block."""
    of_kinds = [norms[kind] for kind in BLOCK_KINDS if norms and kind in norms]
    if not of_kinds or len({len(of_blocks) for of_blocks in of_kinds}) > 1:
        return np.empty(0)
    return np.sqrt(np.square(np.array(of_kinds, dtype=float)).sum(axis=0))


def dead_units(record: Record) -> list[str]:
    """List feed-forward layers most of whose units are zero on every token."""
    shares = value_at(record, "final/dead_share") or []
    dead = [index for index, share in enumerate(shares, start=1) if share > DEAD]
    return [f"most hidden units of layer {index} of {len(shares)} are dead" for index in dead]


def idle_blocks(record: Record) -> list[str]:
    """List blocks that leave the residual stream nearly unchanged at the end."""
    measured = value_at(record, "final/block_share")
    shares = measured if isinstance(measured, list) else []
    idle = [index for index, share in enumerate(shares, start=1) if is_number(share) and share < BLOCK_SHARE]
    return [f"block {index} of {len(shares)} adds next to nothing" for index in idle]


def no_better_than_frequencies(record: Record) -> list[str]:
    """Report a run no better on validation than a unigram model, where more than that can be learned."""
    unigram, nll = record["data"].get("unigram_nll"), record["metrics"].get("nll")
    if unigram is None or nll is None:
        return []
    excess = record["metrics"].get("excess_nll")
    if excess is not None and unigram - (nll - excess) < 2 * UNIGRAM_MARGIN * unigram:
        return []
    return ["the loss is no better than that of token frequencies"] if nll > (1 - UNIGRAM_MARGIN) * unigram else []


# the rules that a record alone can answer
RULES = (attention, blocks_without_gradient, dead_units, idle_blocks, no_better_than_frequencies)


def last_tenth(curve: pd.DataFrame | None, steps: int) -> float:
    """Compute the share of the loss's fall, to its last validation, in the last tenth of the steps; NaN if unknown."""
    if curve is None or not {"validation_nll", "train_loss"} <= set(curve.columns):
        return math.nan
    validation, training = curve["validation_nll"].dropna(), curve["train_loss"].dropna()
    if len(validation) < 2 or training.empty or validation.index[-1] < steps:
        return math.nan
    final = float(validation.iloc[-1])
    before = float(np.interp(0.9 * steps, validation.index, validation))
    fall = float(training.iloc[0]) - final
    return (before - final) / fall if fall > 0 else math.nan
