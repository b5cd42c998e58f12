"""Measure if a reduced precision pays on this machine: the same work timed in turn in it and in float32."""

import statistics
import time
from collections.abc import Callable
from typing import Any

PLAIN = "32-true"

REDUCED = {"bf16-mixed": "bf16", "bf16": "bf16", "16-mixed": "fp16", "16": "fp16"}
"""Reduced precisions of the trainer with float32 weights, by the name they have in messages."""

ROUNDS = 5
SECONDS = 4.0
"""Time after which no further round is started."""

SLOWER = 1.1
"""Ratio to the time of float32 above which a precision is reported as slower."""

SIZE, SIZE_CUDA = 256, 4096
"""Size of the matrices that are timed on a processor, and on a CUDA device."""


def in_turn(
    reduced: Callable[[], object], plain: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median seconds of `reduced` over those of `plain`, timed in turn after a warm-up of each.

    Args:
        reduced: does the work in a reduced precision.
        plain: does it in float32.
        clock: seconds since any moment.
    """
    workloads = (reduced, plain)
    for workload in workloads:
        workload()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for workload, durations in zip(workloads, seconds, strict=True):
            start = clock()
            workload()
            durations.append(clock() - start)
        if sum(map(sum, seconds)) > SECONDS:
            break
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def slower(name: str, ratio: float) -> str:
    """Format the line that a precision takes `ratio` times as long as float32.

    >>> slower("bf16", 17.2), slower("bf16", 1.26)
    ('bf16 is 17 times slower than fp32', 'bf16 is 1.3 times slower than fp32')
    """
    times = f"{ratio:z.0f}" if ratio >= 10 else f"{ratio:z.1f}"
    return f"{name} is {times} times slower than fp32"


def measure_products(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return the time of a matrix product in each reduced precision over that in float32.

    Timed on the first CUDA device, or else on the processor.
    """
    import torch  # not needed by the other functions

    cuda = torch.cuda.is_available()
    device, size = ("cuda", SIZE_CUDA) if cuda else ("cpu", SIZE)
    kinds = {"bf16-mixed": torch.bfloat16, **({"16-mixed": torch.float16} if cuda else {})}
    plain = torch.ones(size, size, device=device)

    def product(of: Any) -> None:
        torch.matmul(of, of)
        if cuda:
            torch.cuda.synchronize()

    ratios = {}
    for name, kind in kinds.items():
        reduced = plain.to(kind)
        ratios[name] = in_turn(lambda of=reduced: product(of), lambda: product(plain), clock)  # type: ignore[misc]
    return ratios


def format_ratios(ratios: dict[str, float]) -> list[tuple[str, str]]:
    """Return each reduced precision with a verdict on its ratio of `measure_products`."""
    return [(name, _format_ratio(REDUCED[name], ratio)) for name, ratio in ratios.items()]


def _format_ratio(name: str, ratio: float) -> str:
    """Format the verdict on one ratio."""
    what = "timed by products of matrices"
    if ratio > SLOWER:
        return f"does not pay: {slower(name, ratio)}, {what}; use {PLAIN}"
    if ratio * SLOWER < 1:
        return f"pays: {name} takes {ratio:z.2f} of the time of fp32, {what}"
    return f"makes no difference: {name} is as fast as fp32, {what}"
