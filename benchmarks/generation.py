"""Time saved by the cache of keys and values, and the cost of growing one.

The same tokens are generated with and without it; rows are added one by one to a cache with spare room, and by joining
tensors each time.
"""

import functools
import time

import torch
from torch import Tensor

from benchmarks.asked import Asked
from benchmarks.ratios import alternate, timed
from benchmarks.rows import Row, rows_of
from benchmarks.sizes import BASE
from lm.config.components import build, resolve
from lm.config.tree import Tree, override
from lm.inference.autotune import as_in_training
from lm.model.cache import Cache
from lm.model.generation import caches_for, generate, greedy
from lm.model.transformer import Decoder, build_and_initialize
from lm.training.run import RunConfig

VOCABULARY, PROMPT, ROUNDS = 100, 8, 5
WITHOUT, JOINED = "no cache", "joined tensors"
WAYS: dict[str, tuple[type[Cache] | None, Tree]] = {
    WITHOUT: (None, {}),
    "full": (Cache, {}),
    "full, multi-query": (Cache, {"model.attention": "MultiQuery"}),
}


def generation(asked: Asked) -> list[Row]:
    """Ways to generate, and ways to grow a cache."""
    with as_in_training(1):
        rows = _ways(16 if asked.quick else 256, 2 if asked.quick else ROUNDS)
        for length in (64,) if asked.quick else (256, 1024, 4096):
            rows += _growth(length, 2 if asked.quick else ROUNDS)
    return rows


def model_with(changes: Tree, steps: int) -> Decoder:
    """A decoder of width 128 with 4 layers and heads, at its first values."""
    tree = override(BASE, {"model.width": 128, "model.layers": 4, "model.heads": 4, **changes})
    run: RunConfig = build(resolve(tree, RunConfig), RunConfig)
    model = build_and_initialize(run.model, VOCABULARY, PROMPT + steps, 0)
    assert isinstance(model, Decoder)
    return model.eval()


def _ways(steps: int, rounds: int) -> list[Row]:
    models = {name: model_with(changes, steps) for name, (_, changes) in WAYS.items()}
    held: dict[str, int] = {}

    def one(name: str) -> float:
        kind = WAYS[name][0]
        caches = None if kind is None else caches_for(models[name])
        start = time.perf_counter()
        made = sum(1 for _ in generate(models[name], torch.zeros(1, PROMPT, dtype=torch.long), steps, greedy, caches))
        assert made == steps
        held[name] = sum(cache.bytes() for cache in caches or [])
        return (time.perf_counter() - start) / steps

    taken = alternate({name: functools.partial(one, name) for name in WAYS}, rounds)
    rows = rows_of(f"generation of {steps} tokens: 4 layers of width 128, 1 thread", taken, WITHOUT)
    for row in rows:
        assert row["value"] is not None
        row["more"] = {"tokens_per_second": 1 / row["value"], "cache_kib": held[row["way"]] / 1024}
    return rows


# growing -------------------------------------------------------------------------------------------------------------


def joined(rows: list[Tensor]) -> None:
    """Keys and values grown by joining tensors."""
    key = value = rows[0]
    for row in rows[1:]:
        key, value = torch.cat([key, row], dim=2), torch.cat([value, row], dim=2)


def spare(rows: list[Tensor]) -> None:
    """Keys and values grown in a cache."""
    cache = Cache()
    for row in rows:
        cache.append(row, row)


def _growth(length: int, rounds: int) -> list[Row]:
    rows = [torch.randn(1, 8, 1, 64) for _ in range(length)]
    ways = {JOINED: timed(lambda: joined(rows)), "a cache with room": timed(lambda: spare(rows))}
    return rows_of(f"cache grown to {length} rows of 8 heads of 64, 1 thread", alternate(ways, rounds), JOINED)
