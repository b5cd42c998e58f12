"""What a model's predictions are worth: loss, perplexity, accuracy and calibration in one pass at fixed memory.

Legend: n tokens, v vocabulary, m bins.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lm.data import IGNORED


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood in nats; infinity where that is past float64."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def bits_per_byte(nll_sum: float, byte_count: int) -> float:
    """Bits a byte of raw text costs, from the summed negative log-likelihood in nats."""
    return nll_sum / (math.log(2) * byte_count) if byte_count else math.nan


def confidence_bins(logits_nv: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Top token, its probability, and the equal-width bin of that probability, each (n,).

    The probability is exp(max - logsumexp) in float32 at least; 1.0 falls into the last bin.
    """
    exact_nv = logits_nv.float() if logits_nv.dtype in (torch.float16, torch.bfloat16) else logits_nv
    largest_n, top_n = exact_nv.max(-1)
    confidence_n = (largest_n - exact_nv.logsumexp(-1)).exp()
    return top_n, confidence_n, (confidence_n * bins).long().clamp(0, bins - 1)


def expected_calibration_error(count_m: Tensor, confidence_m: Tensor, correct_m: Tensor) -> float:
    """sum over bins of |correct - confidence| / n, from per-bin sums (Guo et al. 2017, equation 3)."""
    return float((correct_m - confidence_m).abs().sum() / count_m.sum())


class TokenStatistics(Metric):
    """Sums over tokens, reduced across processes by addition, so that sharding changes nothing.

    Args:
        bytes_per_token: UTF-8 bytes behind each token, int64 of shape (v,).
        bins: equal-width bins of the top probability.
    """

    full_state_update = False
    bytes_table: Tensor
    nll: Tensor
    tokens: Tensor
    bytes: Tensor
    count_m: Tensor
    confidence_m: Tensor
    correct_m: Tensor

    def __init__(self, bytes_per_token: Tensor, bins: int = 15) -> None:
        super().__init__()
        self.bins = bins
        self.register_buffer("bytes_table", bytes_per_token, persistent=False)
        self.add_state("nll", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("tokens", "bytes"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        for name in ("count_m", "confidence_m", "correct_m"):
            self.add_state(name, torch.zeros(bins, dtype=torch.float64), dist_reduce_fx="sum")

    def _apply(self, fn: Any, exclude_state: Any = "") -> "TokenStatistics":
        """Moves between devices only: sums stay float64 whatever the model's precision."""

        def placed(t: Tensor) -> Tensor:
            moved = fn(t)
            return moved if moved.dtype == t.dtype else t.to(moved.device)

        super()._apply(placed, exclude_state)
        return self

    def update(self, logits_nv: Tensor, targets_n: Tensor) -> None:
        """Adds tokens: logits (n, v) and targets (n,), of which those that are IGNORED count for nothing."""
        kept_n = targets_n != IGNORED
        if not kept_n.all():
            logits_nv, targets_n = logits_nv[kept_n], targets_n[kept_n]
        top_n, confidence_n, bin_n = confidence_bins(logits_nv, self.bins)
        exact_nv = logits_nv.float() if logits_nv.dtype in (torch.float16, torch.bfloat16) else logits_nv
        self.nll += torch.nn.functional.cross_entropy(exact_nv, targets_n, reduction="none").double().sum()
        self.tokens += targets_n.numel()
        self.bytes += self.bytes_table[targets_n].sum()
        ones_n = torch.ones_like(confidence_n, dtype=torch.float64)
        self.count_m.index_add_(0, bin_n, ones_n)
        self.confidence_m.index_add_(0, bin_n, confidence_n.double())
        self.correct_m.index_add_(0, bin_n, (top_n == targets_n).double())

    def compute(self) -> dict[str, Any]:
        """The metrics by the names of `lm.results.QUANTITIES`, the token count and the reliability diagram's bins."""
        nll = float(self.nll / self.tokens)
        filled_m = self.count_m.clamp(min=1)
        return {
            "nll": nll,
            "perplexity": perplexity(nll) if math.isfinite(nll) else nll,
            "bits_per_byte": bits_per_byte(float(self.nll), int(self.bytes)),
            "accuracy": float(self.correct_m.sum() / self.tokens),
            "ece": expected_calibration_error(self.count_m, self.confidence_m, self.correct_m),
            "evaluated_tokens": int(self.tokens),
            "reliability": {
                "count": [int(n) for n in self.count_m.tolist()],
                "confidence": (self.confidence_m / filled_m).tolist(),
                "accuracy": (self.correct_m / filled_m).tolist(),
            },
        }
