"""Calibration over many tokens: every number of `TokenStatistics` against the one of torchmetrics, on the same logits.

Prints seconds of update and compute for both, in turn for each batch in one process; the memory each adds to a process
that holds one batch of logits, each in a child process of its own; and the calibration floor of confidences that
are perfectly calibrated, beside reference figures that do not say what confidences they are for.
Arguments: the number of tokens, 1,000,000 by default.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassCalibrationError

from lm.metrics.calibration import bin_of, calibration_floor
from lm.metrics.tokens import TokenStatistics

VOCABULARY, BATCH, CLASSES = 8192, 4096, 100
METRICS: dict[str, Callable[[], Metric]] = {
    "ours": lambda: TokenStatistics(torch.ones(VOCABULARY, dtype=torch.int64), classes=torch.arange(CLASSES)),
    "torchmetrics": lambda: MulticlassCalibrationError(num_classes=VOCABULARY, n_bins=15, norm="l1"),
}
PUBLISHED = {1_000: 0.042, 10_000: 0.0127, 100_000: 0.0040, 1_000_000: 0.0011}


def batches(tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Normal logits, each token's at its own scale, and targets that are often the top; the memory is used again."""
    random = torch.Generator().manual_seed(0)
    normal_nv = torch.empty(BATCH, VOCABULARY).normal_(generator=random)
    logits_nv, top_n = torch.empty_like(normal_nv), normal_nv.argmax(1)
    for start in range(0, tokens, BATCH):
        size = min(BATCH, tokens - start)
        scale_n1 = 0.5 + 4 * torch.rand(BATCH, 1, generator=random)
        torch.mul(normal_nv, scale_n1, out=logits_nv)
        guess_n = torch.randint(VOCABULARY, (BATCH,), generator=random)
        targets_n = torch.where(torch.rand(BATCH, generator=random) < 0.5, top_n, guess_n)
        yield logits_nv[:size], targets_n[:size]


def timed(tokens: int) -> dict[str, tuple[float, Any]]:
    """Seconds of update and compute and what came of it, for each metric; who is first alternates."""
    metrics = {name: make() for name, make in METRICS.items()}
    seconds = dict.fromkeys(metrics, 0.0)
    for index, (logits_nv, targets_n) in enumerate(batches(tokens)):
        for name in list(metrics)[:: 1 if index % 2 else -1]:
            start = time.perf_counter()
            metrics[name].update(logits_nv, targets_n)
            seconds[name] += time.perf_counter() - start
    found = {}
    for name, metric in metrics.items():
        start = time.perf_counter()
        found[name] = metric.compute()
        seconds[name] += time.perf_counter() - start
    return {name: (seconds[name], found[name]) for name in metrics}


def peak() -> float:
    """The most memory this process has held, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def added_memory(name: str, tokens: int) -> float:
    """MiB that a metric adds to the peak of this process, which has held the logits before."""
    stream = batches(tokens)
    batch: tuple[Tensor, Tensor] | None = next(stream)
    before, metric = peak(), METRICS[name]()
    while batch is not None:
        metric.update(*batch)
        batch = next(stream, None)
    metric.compute()
    return peak() - before


def in_child(name: str, tokens: int) -> float:
    """`added_memory` in a fresh process."""
    command = [sys.executable, __file__, str(tokens), name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def floor_of(confidence_n: Tensor) -> float:
    """The calibration floor with 15 bins of given confidences."""
    bin_n, confidence_n = bin_of(confidence_n, 15), confidence_n.double()
    values = (torch.ones_like(confidence_n), confidence_n, confidence_n * (1 - confidence_n))
    sums = [torch.zeros(15, dtype=torch.float64).index_add_(0, bin_n, value_n) for value_n in values]
    return calibration_floor(*sums)


def confidences(tokens: int) -> dict[str, Tensor]:
    """The top probability of the tokens, for a few guesses at what a model is sure of."""
    random = torch.Generator().manual_seed(0)
    normal_nv = torch.empty(tokens, 10).normal_(generator=random)
    wide_n = torch.cat([logits_nv.softmax(1).amax(1) for logits_nv, _ in batches(min(tokens, 8 * BATCH))])
    return {
        "uniform": torch.rand(tokens, generator=random),
        "softmax of 10 normals": normal_nv.softmax(1).amax(1),
        "of 10 normals times 3": (3 * normal_nv).softmax(1).amax(1),
        "these logits": wide_n.repeat(-(-tokens // len(wide_n)))[:tokens],
    }


def floors() -> Table:
    """The table of floors."""
    found = {tokens: {name: floor_of(c_n) for name, c_n in confidences(tokens).items()} for tokens in PUBLISHED}
    table = Table("tokens", "published", *found[1_000])
    for tokens, published in PUBLISHED.items():
        shown = (f"{floor:.4f} ({floor / published:.2f} x)" for floor in found[tokens].values())
        table.add_row(f"{tokens:,}", f"{published:.4f}", *shown)
    return table


def main() -> None:
    """Prints the tables."""
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        print(added_memory(sys.argv[2], tokens))
        return
    memory = {name: in_child(name, tokens) for name in METRICS}
    found = timed(tokens)
    table = Table(f"{tokens:,} tokens of {VOCABULARY}", "seconds", "added MiB", "ECE", "numbers")
    for name, (seconds, value) in found.items():
        numbers = value if isinstance(value, dict) else {"ece": value}
        count = sum(not isinstance(number, dict) for number in numbers.values())
        table.add_row(name, f"{seconds:.1f}", f"{memory[name]:.0f}", f"{float(numbers['ece']):.7f}", str(count))
    Console().print(table)
    print(f"times faster: {found['torchmetrics'][0] / found['ours'][0]:.2f}")
    print(f"share of its memory: {memory['ours'] / memory['torchmetrics']:.2f}")
    Console().print(floors())


if __name__ == "__main__":
    main()
