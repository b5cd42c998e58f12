"""A training step: bare, in `lm fit`, and of peers, in float32 and under autocast to bfloat16."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.asked import Asked
from benchmarks.loops import bare, fitted, ours
from benchmarks.memory import in_child
from benchmarks.peers import Contender, contenders, tried
from benchmarks.ratios import Way, alternate
from benchmarks.rows import Row, row, rows_of
from benchmarks.sizes import Size, named, sizes
from lm.inference.autotune import as_in_training
from lm.metrics.cost import matmul_peak, utilisation
from lm.model import fused_linear
from lm.model.flops import flops_per_token
from lm.training.identified import Cell

BASELINE = "ours, bare loop, fp32"
PRECISIONS = ("fp32", "bf16")
SELDOM = "lm fit, fp32, matrices measured at step 1 only"
EVERY = 10
"""Steps from one measurement of the matrices to the next; shorter runs have the first alone."""
FUSED = "our model with projections of one input as one product, bare loop, fp32"
FITTED: dict[str, dict[str, Any]] = {
    "lm fit, fp32": {},
    "lm fit, fp32, plain attention": {"trainer.attention": "plain"},
    "lm fit, bf16": {"trainer.precision": "bf16-mixed"},
    "lm fit, bf16, plain attention": {"trainer.precision": "bf16-mixed", "trainer.attention": "plain"},
    "lm fit, bf16, plain attention, compiled": {
        "trainer.precision": "bf16-mixed",
        "trainer.attention": "plain",
        "trainer.compile": True,
    },
}
"""The program's own training by name, with the settings of each."""


def step(asked: Asked) -> list[Row]:
    """Rows of every size."""
    return [one for size in sizes(asked.quick) for one in _of_size(size, asked)]


def _of_size(size: Size, asked: Asked) -> list[Row]:
    threads = size.threads or asked.threads
    with as_in_training(threads):
        ways, absent = _ways(size, asked.nanogpt, threads)
        taken = alternate(ways, size.rounds)
        peaks = {
            name: matmul_peak(torch.device("cpu"), dtype, torch.get_num_threads()) for name, dtype in _DTYPES.items()
        }
        flops = _flops(size)
    weighed = [way for way in ways if way in FITTED or way.startswith("ours")]
    memory = {way: _memory(size, way, threads, asked.nanogpt) for way in weighed if not asked.quick or "fp32" in way}
    more: dict[str, dict[str, float | None]] = {}
    rows = rows_of(_group(size, threads), taken, BASELINE)
    for one in rows:
        assert one["value"] is not None
        speed, held = size.tokens / one["value"], memory.get(one["way"])
        precision = "bf16" if "bf16" in one["way"] else "fp32"
        more[one["way"]] = {
            "tokens_per_second": speed,
            "matmul_peak_share": utilisation(speed, flops, [peaks[precision]]),
            "peak_mib": held,
            "added_mib": None if held is None else held - memory[BASELINE],
        }
        one["more"] = more[one["way"]]
        one["note"] = _note(one["way"], asked.nanogpt)
    return rows + [row(_group(size, threads), name, None, to=BASELINE, note=why) for name, why in absent.items()]


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def _group(size: Size, threads: int) -> str:
    shape = f"{size.layers} layers of width {size.width}, {size.batch} x {size.context} tokens"
    return f"{size.name}: {shape}, {threads} thread{'s' * (threads > 1)}"


def _ways(size: Size, checkout: Path | None, threads: int) -> tuple[dict[str, Way], dict[str, str]]:
    """All ways to train at a size, by name, and the peers that are not there, with the reason."""
    cell = size.cell()
    own = ours(cell)
    ways: dict[str, Way] = {
        "ours, bare loop, fp32": functools.partial(bare, own, size, cell),
        "ours, bare loop, bf16": functools.partial(bare, own, size, cell, True),
        FUSED: functools.partial(_fused, own, size, cell),
        **({SELDOM: functools.partial(fitted, _seldom(size), threads)} if size.steps >= EVERY else {}),
        **{name: functools.partial(fitted, size.cell(changes), threads) for name, changes in FITTED.items()},
    }
    absent: dict[str, str] = {}
    for name, peer in contenders(checkout).items():
        why = peer if isinstance(peer, str) else tried(peer, size, cell.facts.vocabulary)
        if isinstance(peer, Contender) and not why:
            for precision in PRECISIONS:
                ways[f"{name}, {precision}"] = functools.partial(bare, peer, size, cell, precision == "bf16")
        else:
            absent[name] = why
    return ways, absent


def _fused(own: Contender, size: Size, cell: Cell) -> float:
    """Seconds of a step if plain float32 gave up its order of summation, as autocast and compiled code do."""
    with mock.patch.object(fused_linear, "should_fuse", return_value=True):
        return bare(own, size, cell)


def _seldom(size: Size) -> Cell:
    return size.cell({"trainer.log_every_n_steps": EVERY * size.steps})


def _flops(size: Size) -> float:
    """Of our model for a token; other implementations of the shape are held against the same."""
    opened = size.cell().open()
    return flops_per_token(opened.model(), opened.data.context).total


def _note(way: str, checkout: Path | None) -> str:
    peer = contenders(checkout).get(way.rpartition(", ")[0])
    return peer.about if isinstance(peer, Contender) else ""


# memory --------------------------------------------------------------------------------------------------------------

STEPS_FOR_MEMORY = 3


def _memory(size: Size, way: str, threads: int, checkout: Path | None) -> float:
    """MiB: the peak of a process that trains a few steps in a way."""
    return in_child("step", size.name, way, threads, None if checkout is None else str(checkout))


def memory_here(name: str, way: str, threads: int, checkout: str | None) -> None:
    """Trains a few steps in a way, in the process that is measured; only what the way needs is built."""
    size = named(name)
    small = Size(**{**vars(size), "steps": min(size.steps, STEPS_FOR_MEMORY)})
    torch.set_num_threads(threads)
    _alone(small, way, threads, None if checkout is None else Path(checkout))()


def _alone(size: Size, way: str, threads: int, checkout: Path | None) -> Callable[[], float]:
    who, _, precision = way.rpartition(", ")
    bfloat = precision == "bf16"
    if way == SELDOM:
        return functools.partial(fitted, _seldom(size), threads)
    if way in FITTED:
        return functools.partial(fitted, size.cell(FITTED[way]), threads)
    cell = size.cell()
    peer = ours(cell) if who == "ours, bare loop" else contenders(checkout)[who]
    assert isinstance(peer, Contender), peer
    return functools.partial(bare, peer, size, cell, bfloat)
