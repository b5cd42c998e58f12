"""Seconds and memory of a training step over width, depth, context and vocabulary, beside other implementations.

One of the four grows at a time from a model of 4 layers of width 128 on 2,048 tokens a step. The growth of a time is
the exponent between neighbours: 1 where twice the size takes twice as long.
"""

import copy
import functools
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.asked import Asked
from benchmarks.gpu import write_vocabulary
from benchmarks.loops import bare, fitted
from benchmarks.memory import in_child
from benchmarks.peers import Contender, contenders, tried
from benchmarks.ratios import Way, alternate
from benchmarks.rows import Row, row, rows_of
from benchmarks.sizes import Size
from lm.config.tree import Tree
from lm.inference.autotune import as_in_training
from lm.model.flops import flops_per_token

OURS = "lm fit"
PEERS = ("x-transformers", "litgpt")
STEPS = 3
TOKENS = 2048
"""Of a step, unless a row is longer."""

LIMIT = 4096.0
"""MiB that training on rows of 8,192 tokens at width 384 may take."""

LONG = {"data.corpus.size": 500_000, "data.corpus.longest": 5_000, "data.split": [0.94, 0.03, 0.03]}
"""Enough text for the longest rows in each split, and little to evaluate, which is not timed."""


@dataclass(frozen=True)
class Point:
    """A model of one size on the way, as numbers that a process of its own can be given."""

    width: int = 128
    layers: int = 4
    context: int = 256
    vocabulary: int = 512

    def size(self, changes: Tree) -> Size:
        """The size, with rows for TOKENS tokens."""
        rows, heads = max(1, TOKENS // self.context), max(1, self.width // 32)
        parts = {**LONG, "evaluate.tokens": 2 * max(TOKENS, self.context), **changes}
        return Size("by size", self.layers, self.width, heads, self.context, rows, STEPS, rounds=2, parts=parts)


AXES = {
    "width": (128, 256, 512),
    "layers": (4, 8, 16),
    "context": (256, 1024, 4096, 8192),
    "vocabulary": (512, 8192, 32_768, 131_072),
}
LONGEST = Point(width=384, layers=6, context=8192)
SAVING: Tree = {"trainer.checkpoint_activations": True}


def by_size(asked: Asked) -> list[Row]:
    """Rows of every size on the four ways, and the memory of long rows."""
    found: list[Row] = []
    measured: dict[Point, list[Row]] = {}  # the smallest model is on every axis
    with as_in_training(asked.threads):
        for axis, values in AXES.items():
            previous: dict[str, Row] = {}
            for value in values[:2] if asked.quick else values:
                point = replace(Point(width=32, layers=1) if asked.quick else Point(), **{axis: value})
                if point not in measured:
                    measured[point] = _of_point(point, asked)
                rows = copy.deepcopy(measured[point])
                for one in rows:
                    one["group"] = f"{axis} {value:,}"
                for one in rows:
                    if one["way"] in previous:
                        _compare(one, previous[one["way"]], value / values[values.index(value) - 1])
                previous = {one["way"]: one for one in rows}
                found += rows
    if not asked.quick:
        shape = f"{LONGEST.layers} layers of width {LONGEST.width}, a row of {LONGEST.context:,} tokens: peak MiB"
        for way, changes in (("activations kept", {}), ("trainer.checkpoint_activations", SAVING)):
            held, note = _memory(LONGEST, changes, OURS, asked)
            if changes and held is not None and held > LIMIT:
                note = f"over the {LIMIT:,.0f} MiB that it may take"
            found.append(row(shape, way, held, "MiB", note=note))
    return found


def _of_point(point: Point, asked: Asked) -> list[Row]:
    """Rows of our training and of the peers at one size."""
    group = str(point)
    with tempfile.TemporaryDirectory() as folder:
        size = point.size(_tokenizer(point, Path(folder)))
        cell = size.cell()
        ways: dict[str, Way] = {OURS: functools.partial(fitted, cell, asked.threads)}
        absent: dict[str, str] = {}
        for name in PEERS:
            peer = contenders(None)[name]
            why = peer if isinstance(peer, str) else tried(peer, size, cell.facts.vocabulary)
            if isinstance(peer, Contender) and not why:
                ways[name] = functools.partial(bare, peer, size, cell)
            else:
                absent[name] = why
        taken = alternate(ways, size.rounds)
        opened = cell.open()
        flops = flops_per_token(opened.model(), opened.data.context).total * size.tokens
    more: dict[str, dict[str, float | None]] = {
        name: {"gflop": flops / 1e9, "growth": None, "growth_of_flops": None} for name in ways
    }
    for name in ways:
        more[name]["peak_mib"] = None if asked.quick else _memory(point, {}, name, asked)[0]
    rows = rows_of(group, taken, OURS, more=more)
    return rows + [row(group, name, None, to=OURS, note=why) for name, why in absent.items()]


def _compare(one: Row, before: Row, factor: float) -> None:
    """Note the exponents between two neighbours whose sizes are a factor apart."""
    if one["value"] is None or before["value"] is None:
        return
    flops, flops_before = one["more"]["gflop"], before["more"]["gflop"]
    assert flops is not None
    assert flops_before is not None
    one["more"]["growth"] = math.log(one["value"] / before["value"]) / math.log(factor)
    one["more"]["growth_of_flops"] = math.log(flops / flops_before) / math.log(factor)


def _tokenizer(point: Point, folder: Path) -> Tree:
    return {"data.tokenizer": write_vocabulary(folder, point.vocabulary)}


def _memory(point: Point, changes: Tree, way: str, asked: Asked) -> tuple[float | None, str]:
    """MiB: the peak of a process that trains a few steps in a way; None with the reason where it did not end well."""
    try:
        return in_child("size", vars(point), changes, way, asked.threads), ""
    except RuntimeError as error:
        return None, str(error)


def memory_here(point: dict[str, int], changes: dict[str, Any], way: str, threads: int) -> None:
    """Train a few steps in a way, in the process that is measured."""
    torch.set_num_threads(threads)
    at = Point(**point)
    with tempfile.TemporaryDirectory() as folder:
        size = at.size({**_tokenizer(at, Path(folder)), **changes})
        if way == OURS:
            fitted(size.cell(), threads)
            return
        peer = contenders(None)[way]
        assert isinstance(peer, Contender), peer
        bare(peer, size, size.cell())
