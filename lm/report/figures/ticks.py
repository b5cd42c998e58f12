"""Labelled ticks of logarithmic axes, the same for both drawers."""

import math

MANTISSAS = (
    (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.1, 1.25, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
)  # fmt: skip
"""Multiples of powers of ten that have a label, from wide ranges to narrow ones."""

FEWEST, MOST = 4, 8


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high` that lie well apart on a logarithmic axis.

    >>> log_ticks(0.9, 3.2)
    [1.0, 1.5, 2.0, 3.0]
    >>> log_ticks(1e-4, 1.0)
    [0.0001, 0.001, 0.01, 0.1, 1.0]
    """
    if not (0 < low < high and math.isfinite(high)):
        return [low] if low == high else []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in MANTISSAS:
        ticks = [float(f"{m}e{power}") for power in powers for m in mantissas]
        inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) >= FEWEST:
            return inside[:: math.ceil(len(inside) / MOST)]
    rough = (high - low) / FEWEST  # a range in which a logarithm is nearly linear has ticks at equal distances
    power = 10.0 ** math.floor(math.log10(rough))
    step = max((m * power for m in (1, 2, 2.5, 5, 10) if m * power <= rough * (1 + 1e-9)), default=power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * index, 12) for index in range(first, last + 1)]
