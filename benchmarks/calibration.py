"""Calibration over many tokens: every number of `TokenStatistics` against the one of torchmetrics, on the same logits.

Both are taken in turn for each batch. Beside them the calibration floor of confidences that are perfectly calibrated,
over reference figures that do not say what confidences they are for.
Legend: n tokens, v vocabulary.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassCalibrationError

from benchmarks.asked import Asked
from benchmarks.memory import added, in_child
from benchmarks.rows import Row, row, rows_of
from lm.metrics.tokens import TokenStatistics, bin_index, calibration_floor

VOCABULARY, BATCH, CLASSES = 8192, 4096, 100
OURS, THEIRS = "ours: all that is measured", "torchmetrics: the calibration error"
METRICS: dict[str, Callable[[], Metric]] = {
    OURS: lambda: TokenStatistics(torch.ones(VOCABULARY, dtype=torch.int64), classes=torch.arange(CLASSES)),
    THEIRS: lambda: MulticlassCalibrationError(num_classes=VOCABULARY, n_bins=15, norm="l1"),
}
PUBLISHED = {1_000: 0.042, 10_000: 0.0127, 100_000: 0.0040, 1_000_000: 0.0011}


def calibration(asked: Asked) -> list[Row]:
    """Seconds of a batch for both, the memory each adds to a process that holds one, and the floors."""
    tokens = 2 * BATCH if asked.quick else 60 * BATCH
    taken, found = compared(tokens)
    more: dict[str, dict[str, float | None]] = {}
    for name, numbers in found.items():
        more[name] = {
            "ece": float(numbers["ece"]),
            "numbers": float(sum(not isinstance(n, dict) for n in numbers.values())),
        }
        more[name]["added_mib"] = None if asked.quick else in_child("metric", name, tokens)
    rows = rows_of(f"calibration, a batch of {BATCH} tokens of {VOCABULARY}", taken, THEIRS, more=more)
    return rows + floors([1_000] if asked.quick else list(PUBLISHED))


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


def compared(tokens: int) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
    """Seconds of each batch after the first, and all that came of it, for each metric; who is first alternates."""
    metrics = {name: make() for name, make in METRICS.items()}
    taken: dict[str, list[float]] = {name: [] for name in metrics}
    for index, (logits_nv, targets_n) in enumerate(batches(tokens)):
        for name in list(metrics)[:: 1 if index % 2 else -1]:
            start = time.perf_counter()
            metrics[name].update(logits_nv, targets_n)
            if index:
                taken[name].append(time.perf_counter() - start)
    found: dict[str, dict[str, Any]] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        found[name] = value if isinstance(value, dict) else {"ece": value}
    return taken, found


def memory_here(name: str, tokens: int) -> float:
    """MiB that a metric adds to the peak of this process, which has held the logits before."""
    stream = batches(tokens)
    first, metric, small = next(stream), METRICS[name](), METRICS[name]()
    small.update(*(tensor[:8] for tensor in first))  # loads what the metric needs
    small.compute()

    def work() -> None:
        metric.update(*first)
        for batch in stream:
            metric.update(*batch)
        metric.compute()

    return added(work)


# floors --------------------------------------------------------------------------------------------------------------


def floor_of(confidence_n: Tensor) -> float:
    """The calibration floor with 15 bins of given confidences."""
    bin_n, confidence_n = bin_index(confidence_n, 15), confidence_n.double()
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


def floors(counts: list[int]) -> list[Row]:
    """The floor for each number of tokens and kind of confidence, and how many times the published one it is."""
    return [
        row(
            f"calibration floor of {tokens:,} tokens; published {PUBLISHED[tokens]}",
            name,
            floor,
            "ECE",
            more={"times_published": floor / PUBLISHED[tokens]},
        )
        for tokens in counts
        for name, floor in ((name, floor_of(c_n)) for name, c_n in confidences(tokens).items())
    ]
