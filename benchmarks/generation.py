"""What the cache of keys and values saves: the same 256 tokens with and without it, in turn, in one process.

Prints tokens a second, the memory of the cache and the ratio to generating without one, for a model of width 128 and
4 layers. Then what growing costs: rows added one by one to a cache with spare room, and by joining tensors each time.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lm.config.components import build, resolve
from lm.config.tree import Tree, load_yaml, override
from lm.model.cache import Cache, Int8Cache
from lm.model.sampling import caches_for, generate, greedy
from lm.model.transformer import Decoder, initialized
from lm.training.run import Run

BASE = Path(__file__).parents[1] / "experiments/bases/char_tiny.yaml"
VOCABULARY, PROMPT, STEPS, ROUNDS = 100, 8, 256, 5
WAYS: dict[str, tuple[type[Cache] | None, Tree]] = {
    "no cache": (None, {}),
    "full": (Cache, {}),
    "int8": (Int8Cache, {}),
    "full, multi-query": (Cache, {"model.attention": "MultiQuery"}),
}


def model_with(changes: Tree) -> Decoder:
    """A decoder of width 128 with 4 layers and heads, at its first values."""
    tree = override(load_yaml(BASE), {"model.width": 128, "model.layers": 4, "model.heads": 4, **changes})
    run: Run = build(resolve(tree, Run), Run)
    model = initialized(run.model, VOCABULARY, PROMPT + STEPS, 0)
    assert isinstance(model, Decoder)
    return model.eval()


def timed(model: Decoder, kind: type[Cache] | None) -> tuple[float, int]:
    """Seconds for the tokens, and bytes of the cache at the end."""
    caches = None if kind is None else caches_for(model, kind)
    start = time.perf_counter()
    made = sum(1 for _ in generate(model, torch.zeros(1, PROMPT, dtype=torch.long), STEPS, greedy, caches))
    assert made == STEPS
    return time.perf_counter() - start, sum(cache.bytes() for cache in caches or [])


def generation() -> Table:
    """The table of ways to generate."""
    models = {name: model_with(changes) for name, (_, changes) in WAYS.items()}
    rounds = [{name: timed(models[name], kind) for name, (kind, _) in WAYS.items()} for _ in range(ROUNDS + 1)][1:]
    table = Table("cache", "tokens/s", "cache KiB", "times no cache (range)")
    for name in WAYS:
        ratios = sorted(taken["no cache"][0] / taken[name][0] for taken in rounds)
        seconds = statistics.median(taken[name][0] for taken in rounds)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        table.add_row(name, f"{STEPS / seconds:.0f}", f"{rounds[0][name][1] / 1024:.0f}", spread)
    return table


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


def growth() -> Table:
    """The table of ways to grow."""
    table = Table("rows of 8 heads of 64", "joined us/row", "cache us/row", "ratio (range)")
    for time_steps in (256, 1024, 4096):
        rows = [torch.randn(1, 8, 1, 64) for _ in range(time_steps)]
        pairs = [(_seconds(joined, rows), _seconds(spare, rows)) for _ in range(ROUNDS + 1)][1:]
        ratios = sorted(a / b for a, b in pairs)
        before, after = (1e6 * statistics.median(side) / time_steps for side in zip(*pairs, strict=True))
        spread = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        table.add_row(str(time_steps), f"{before:.1f}", f"{after:.1f}", spread)
    return table


def _seconds(grow: Callable[[list[Tensor]], None], rows: list[Tensor]) -> float:
    start = time.perf_counter()
    grow(rows)
    return time.perf_counter() - start


def main() -> None:
    """Prints both tables."""
    torch.set_num_threads(1)
    console = Console()
    console.print(generation())
    console.print(growth())


if __name__ == "__main__":
    main()
