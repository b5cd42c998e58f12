"""Whether a reduced precision pays on this machine: the same work timed in turn, in it and in float32."""

import statistics
import time
from collections.abc import Callable
from typing import Any

PLAIN = "32-true"

REDUCED = {"bf16-mixed": "bf16", "bf16": "bf16", "16-mixed": "fp16", "16": "fp16"}
"""Precisions of the trainer whose products are reduced and whose weights are not, as they are called in a line."""

ROUNDS = 5
SECONDS = 4.0
"""After which no further round is begun."""

SLOWER = 1.1
"""Times as long as float32 beyond which that is worth a line."""

SIZE, SIZE_CUDA = 256, 4096
"""Rows and columns of the matrices that stand for a processor, and for a CUDA device."""


def in_turn(
    reduced: Callable[[], object], plain: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median seconds of `reduced` over those of `plain`, taken in turn after one of each that is not timed.

    Args:
        reduced: does the work in a reduced precision.
        plain: does it in float32.
        clock: seconds since any moment.
    """
    ways = (reduced, plain)
    for way in ways:
        way()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for way, taken in zip(ways, seconds, strict=True):
            start = clock()
            way()
            taken.append(clock() - start)
        if sum(map(sum, seconds)) > SECONDS:
            break
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def slower(name: str, ratio: float) -> str:
    """Return in words that a precision takes `ratio` times as long as float32.

    >>> slower("bf16", 17.2), slower("bf16", 1.26)
    ('bf16 is 17 times slower than fp32', 'bf16 is 1.3 times slower than fp32')
    """
    times = f"{ratio:z.0f}" if ratio >= 10 else f"{ratio:z.1f}"
    return f"{name} is {times} times slower than fp32"


def of_products(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return times as long as in float32 a product of matrices takes in each reduced precision on the device at hand.

    That is the first CUDA device, or else the processor.
    """
    import torch  # which what is said of a machine can do without

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


def in_words(ratios: dict[str, float]) -> list[tuple[str, str]]:
    """Return each reduced precision with what may be said of it by `of_products`."""
    return [(name, _judged(REDUCED[name], ratio)) for name, ratio in ratios.items()]


def _judged(name: str, ratio: float) -> str:
    what = "timed by products of matrices"
    if ratio > SLOWER:
        return f"does not pay: {slower(name, ratio)}, {what}; use {PLAIN}"
    if ratio * SLOWER < 1:
        return f"pays: {name} takes {ratio:z.2f} of the time of fp32, {what}"
    return f"makes no difference: {name} is as fast as fp32, {what}"
