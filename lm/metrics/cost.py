"""The cost of training: durations of steps, the speed of the machine's matrix product, energy."""

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

MIN_SECONDS, MAX_SECONDS, RATIO = 1e-5, 1e4, 1.01
BINS = math.ceil(math.log(MAX_SECONDS / MIN_SECONDS) / math.log(RATIO))


class Durations:
    """A histogram of durations in bins 1 % wide: quantiles of any number of them, to 0.5 %, at fixed memory.

    >>> durations = Durations()
    >>> for seconds in (0.1, 0.2, 0.2, 0.3):
    ...     durations.add(seconds)
    >>> round(durations.quantile(0.5), 2)
    0.2
    """

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self.counts = dict(counts or {})

    def add(self, seconds: float) -> None:
        """Count one duration."""
        position = math.log(max(seconds, MIN_SECONDS) / MIN_SECONDS) / math.log(RATIO)
        index = min(int(position), BINS)
        self.counts[index] = self.counts.get(index, 0) + 1

    def quantile(self, share: float) -> float | None:
        """Return the seconds that `share` of the durations do not exceed; None where there are none."""
        remaining = share * sum(self.counts.values())
        for index in sorted(self.counts):
            remaining -= self.counts[index]
            if remaining <= 0:
                return MIN_SECONDS * RATIO ** (index + 0.5)
        return None


@functools.cache
def matmul_peak(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """Measure the FLOP/s of a product of large square matrices, once per process and number of threads."""
    n = 4096 if device.type == "cuda" else 512
    # Of its own, so that what others draw does not depend on whether this was measured before.
    a = torch.randn(n, n, device=device, generator=torch.Generator(device).manual_seed(0)).to(dtype)
    best = math.inf
    for _ in range(6):
        _wait(device)
        start = time.perf_counter()
        a @ a
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Energy:
    """Joules of the whole device, whoever used it, by NVIDIA's `pynvml` or Linux's `powercap`; None without either."""

    def __init__(self, device: torch.device, powercap: Path = Path("/sys/class/powercap")) -> None:
        self.handle: Any = None
        self.files = [] if device.type == "cuda" else sorted(powercap.glob("intel-rapl:?/energy_uj"))
        if device.type == "cuda":
            with _ignored_nvml_errors():
                import pynvml

                pynvml.nvmlInit()
                self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self.before = self._read()

    def _read(self) -> list[float] | None:
        with contextlib.suppress(OSError, ValueError), _ignored_nvml_errors():
            if self.handle is not None:
                import pynvml

                return [pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1e3]
            return [int(file.read_text()) / 1e6 for file in self.files] or None
        return None

    def joules(self) -> float | None:
        """Return the joules used since the last call; None where a counter wrapped around."""
        now, before = self._read(), self.before
        self.before = now
        if now is None or before is None or len(now) != len(before):
            return None
        used = [a - b for a, b in zip(now, before, strict=True)]
        return sum(used) if min(used) >= 0 else None


@contextlib.contextmanager
def _ignored_nvml_errors() -> Iterator[None]:
    """End a block where NVIDIA's library is not installed, does not know the device, or it has no counter."""
    try:
        yield
    except Exception as error:
        if not (isinstance(error, ImportError) or type(error).__module__.startswith("pynvml")):
            raise


def utilisation(tokens_per_second: float | None, flops_per_token: float | None, peaks: Sequence[float]) -> float | None:
    """Compute model-FLOPs utilisation: the model's FLOP/s over the peaks of all devices.

    Chowdhery et al. 2022, appendix B.

    >>> round(utilisation(tokens_per_second=1000.0, flops_per_token=6e6, peaks=[2e10]), 6)
    0.3
    """
    if tokens_per_second is None or flops_per_token is None or not sum(peaks):
        return None
    return tokens_per_second * flops_per_token / sum(peaks)
