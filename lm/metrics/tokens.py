"""Loss, perplexity, accuracy and calibration of a model's predictions, in one pass at fixed memory.

Legend: n tokens, r some of them, v vocabulary, b blocks of w of it, m bins, f fine bins, k classes.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lm.data import IGNORED
from lm.metrics.calibration import (
    FINE_BINS,
    adaptive_calibration_error,
    at_least_float32,
    bin_index,
    calibration_floor,
    classwise_calibration_error,
    corrected_calibration_error,
    expected_calibration_error,
    fine_bin_index,
    maximum_calibration_error,
    row_slices,
)


def perplexity(nll: float) -> float:
    """Compute exp of the mean negative log-likelihood in nats; infinity where that overflows float64."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def bits_per_byte(nll_sum: float, byte_count: int) -> float:
    """Compute the bits per byte of raw text from the summed negative log-likelihood in nats.

    >>> round(bits_per_byte(nll_sum=8 * math.log(2), byte_count=4), 6)
    2.0
    """
    return nll_sum / (math.log(2) * byte_count) if byte_count else math.nan


def largest_logits(logits_nv: Tensor, width: int = 128) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row and its first index, each (n,).

    The same as `max(-1)`, several times faster on a CPU: only the block with the maximum is searched for its index.
    """
    if logits_nv.shape[1] < 4 * width:
        return logits_nv.max(1)
    whole = logits_nv.shape[1] // width * width
    blocks_nb = logits_nv[:, :whole].unflatten(1, (whole // width, width)).amax(2)
    if whole < logits_nv.shape[1]:
        blocks_nb = torch.cat([blocks_nb, logits_nv[:, whole:].amax(1, keepdim=True)], dim=1)
    largest_n, block_n = blocks_nb.max(1)
    columns_nw = (block_n[:, None] * width + torch.arange(width, device=block_n.device)).clamp_(
        max=logits_nv.shape[1] - 1
    )
    inside_n = logits_nv.gather(1, columns_nw).max(1).indices
    return largest_n, columns_nw.gather(1, inside_n[:, None])[:, 0]


class TokenStatistics(Metric):
    """Sums over tokens, reduced across processes by addition, so that sharding changes nothing.

    Args:
        bytes_per_token: UTF-8 bytes behind each token, int64 of shape (v,).
        bins: bins of the top probability.
        classes: token ids, (k,), usually the most frequent, over which the class-wise calibration error is averaged.
        clusters: number of clusters of tokens, such as documents, whose sums are kept too.
    """

    full_state_update = False

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the sums are tensors, declared by `add_state`

    def __init__(
        self, bytes_per_token: Tensor, bins: int = 15, classes: Tensor | None = None, clusters: int = 0
    ) -> None:
        super().__init__()
        self.bins = bins
        self.register_buffer("bytes_table", bytes_per_token, persistent=False)
        classes_k = torch.zeros(0, dtype=torch.int64) if classes is None else classes
        self.register_buffer("classes_k", classes_k, persistent=False)
        exact = {"nll": (), "brier": (), "excess_km": (len(classes_k), bins), "nll_d": (clusters,)}
        exact |= {f"{name}_m": (bins,) for name in ("count", "confidence", "correct", "variance")}
        exact |= {f"{name}_f": (FINE_BINS,) for name in ("count", "confidence", "correct")}
        counts = {"tokens": (), "bytes": (), "tokens_d": (clusters,)}
        for sizes, dtype in ((exact, torch.float64), (counts, torch.int64)):
            for name, size in sizes.items():
                self.add_state(name, torch.zeros(size, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn: Any, exclude_state: Any = "") -> "TokenStatistics":
        """Move between devices only: sums stay float64 whatever the model's precision."""

        def move(t: Tensor) -> Tensor:
            moved = fn(t)
            return moved if moved.dtype == t.dtype else t.to(moved.device)

        super()._apply(move, exclude_state)
        return self

    def update(self, logits_nv: Tensor, targets_n: Tensor, cluster_n: Tensor | None = None) -> None:
        """Add tokens, of which those whose target is IGNORED do not count, to the sums, also to those of clusters.

        To measure at a temperature, scale the logits by `lm.metrics.calibration.scale_logits`.
        """
        counted_n = targets_n != IGNORED
        if not counted_n.all():
            logits_nv, targets_n = logits_nv[counted_n], targets_n[counted_n]
            cluster_n = None if cluster_n is None else cluster_n[counted_n]
        top_n, gap_n, rest_n, squares_n = self._softmax_sums(logits_nv, targets_n)
        total_n = 1 + rest_n
        confidence_n = 1 / total_n
        correct_n = (top_n == targets_n).double()
        nll_n = rest_n.log1p() + gap_n
        self.nll += nll_n.sum()
        if cluster_n is not None:
            self.nll_d.index_add_(0, cluster_n, nll_n)
            self.tokens_d.index_add_(0, cluster_n, torch.ones_like(cluster_n))
        self.brier += (1 - 2 * (-gap_n).exp() / total_n + (1 + squares_n) / total_n**2).sum()
        self.tokens += targets_n.numel()
        self.bytes += self.bytes_table[targets_n].sum()
        bin_n, fine_n = bin_index(confidence_n, self.bins), fine_bin_index(rest_n)
        ones_n = torch.ones_like(confidence_n)
        for states, index_n in (("m", bin_n), ("f", fine_n)):
            getattr(self, f"count_{states}").index_add_(0, index_n, ones_n)
            getattr(self, f"confidence_{states}").index_add_(0, index_n, confidence_n)
            getattr(self, f"correct_{states}").index_add_(0, index_n, correct_n)
        self.variance_m.index_add_(0, bin_n, rest_n / total_n**2)

    def _softmax_sums(self, logits_nv: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take one pass of exp over the logits; add up class probabilities.

        Returns the top token, how far the target's logit is below its logit, and the sums over the rest of the
        vocabulary of exp(logit - top logit) and of its square, each (n,); all but the first in float64.
        """
        top_n = torch.empty_like(targets_n)
        gap_n, rest_n, squares_n = torch.empty(3, len(targets_n), dtype=torch.float64, device=targets_n.device)
        memory_rv = torch.empty(0)
        for rows in row_slices(logits_nv):
            exact_rv, targets_r1 = at_least_float32(logits_nv[rows]), targets_n[rows, None]
            largest_r, top_n[rows] = largest_logits(exact_rv)
            gap_n[rows] = largest_r - exact_rv.gather(1, targets_r1)[:, 0]
            if len(memory_rv) < len(exact_rv):
                memory_rv = torch.empty_like(exact_rv)
            weight_rv = torch.sub(exact_rv, largest_r[:, None], out=memory_rv[: len(exact_rv)]).exp_()
            class_rk = weight_rv.index_select(1, self.classes_k)
            weight_rv.scatter_(1, top_n[rows, None], 0.0)
            rest_n[rows] = weight_rv.sum(1)
            squares_n[rows] = torch.linalg.vector_norm(weight_rv, dim=1).double().square()
            if self.classes_k.numel():
                probability_rk = class_rk / (1 + rest_n[rows, None])
                first_k = torch.arange(len(self.classes_k), device=self.classes_k.device) * self.bins
                index_rk = first_k + bin_index(probability_rk, self.bins)
                excess_rk = probability_rk - (targets_r1 == self.classes_k).double()
                self.excess_km.view(-1).index_add_(0, index_rk.flatten(), excess_rk.flatten())
        return top_n, gap_n, rest_n, squares_n

    def compute(self) -> dict[str, Any]:
        """Compute the metrics by the names of `lm.store.metrics`, the token count and the reliability bins."""
        tokens, nll = int(self.tokens), float(self.nll / self.tokens)
        count_m, confidence_m, correct_m, variance_m = torch.stack(
            [self.count_m, self.confidence_m, self.correct_m, self.variance_m]
        ).cpu()
        filled_m = count_m.clamp(min=1)
        ece = expected_calibration_error(count_m, confidence_m, correct_m)
        floor = calibration_floor(count_m, confidence_m, variance_m)
        measured: dict[str, Any] = {
            "nll": nll,
            "perplexity": perplexity(nll) if math.isfinite(nll) else nll,
            "bits_per_byte": bits_per_byte(float(self.nll), int(self.bytes)),
            "accuracy": float(correct_m.sum() / tokens),
            "ece": ece,
            "mce": maximum_calibration_error(count_m, confidence_m, correct_m),
            "brier": float(self.brier / self.tokens),
            "ece_adaptive": adaptive_calibration_error(self.count_f, self.confidence_f, self.correct_f, self.bins),
            "ece_corrected": corrected_calibration_error(ece, floor),
            "ece_floor": floor,
            "evaluated_tokens": tokens,
            "reliability": {
                "count": [int(n) for n in count_m.tolist()],
                "confidence": (confidence_m / filled_m).tolist(),
                "accuracy": (correct_m / filled_m).tolist(),
            },
        }
        if self.nll_d.numel() and int(self.tokens_d.sum()) == tokens:  # every token has a cluster
            measured["clusters"] = (self.nll_d.cpu().numpy(), self.tokens_d.cpu().numpy())
        if self.classes_k.numel():
            measured["ece_classwise"] = classwise_calibration_error(self.excess_km, tokens)
        return measured
