"""Loss, perplexity, accuracy and calibration of a model's predictions, in one pass at fixed memory.

Calibration errors are pure functions of sums over the tokens of each bin, float64 of shape (m,): the number of tokens,
their confidences, the tokens that are right, and confidence (1 - confidence), the variance of being right under
calibration. A temperature is fitted to logits.

Legend: n tokens, r some of them, v vocabulary, b blocks of w of it, m bins, f fine bins, k classes.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from lm.data import IGNORED

# the fine histogram: equal bins of the log-odds of the confidence between -limit and limit, open at both ends
FINE_BINS, FINE_LIMIT = 4096, 16.0
LOGITS_PER_CHUNK = 2**21  # processed at a time: few enough for a processor's cache, and enough to keep its threads busy
MAX_LOG_TEMPERATURE = 5.0  # bound of |log T|


def bin_index(confidence_n: Tensor, bins: int) -> Tensor:
    """Return the equal-width bin [lo, hi) of each probability; 1.0 falls into the last.

    >>> bin_index(torch.tensor([0.0, 0.49, 0.5, 1.0]), bins=2).tolist()
    [0, 0, 1, 1]
    """
    return (confidence_n * bins).long().clamp(0, bins - 1)


def fine_bin_index(odds_against_n: Tensor) -> Tensor:
    """Return the fine bin of each confidence c, given (1 - c) / c, which loses no digits next to c = 1."""
    index_n = (FINE_LIMIT - odds_against_n.log()) * (FINE_BINS / (2 * FINE_LIMIT))
    return index_n.clamp(0, FINE_BINS - 1).long().clamp(0, FINE_BINS - 1)  # a NaN is clamped once it is a number


def expected_calibration_error(count_m: Tensor, confidence_m: Tensor, correct_m: Tensor) -> float:
    """Compute sum over bins of |correct - confidence| / n (Guo et al. 2017, equation 3).

    >>> count_m, confidence_m, correct_m = torch.tensor([[2.0, 2.0], [0.5, 1.5], [0.0, 2.0]])
    >>> expected_calibration_error(count_m, confidence_m, correct_m)
    0.25
    """
    return float((correct_m - confidence_m).abs().sum() / count_m.sum())


def maximum_calibration_error(count_m: Tensor, confidence_m: Tensor, correct_m: Tensor) -> float:
    """Compute the largest |accuracy - confidence| of a filled bin; NaN without any (Guo et al. 2017, equation 5)."""
    filled_m = count_m > 0
    gap_m = ((correct_m - confidence_m).abs() / count_m)[filled_m]
    return float(gap_m.max()) if gap_m.numel() else math.nan


def corrected_calibration_error(error: float, floor: float) -> float:
    """Subtract the part of sampling noise from a calibration error: sqrt(error^2 - floor^2), or 0.

    Where gaps are far above the noise nothing is to be subtracted, and next to nothing is. A perfectly calibrated model
    keeps .25 to .29 of its floor on average, since half of the samples lie above it: for a language model's confidences
    .015 at 500 tokens, .008 at 1,500, .003 at 10,000. Gaps about as large as the noise come out up to .2 of the floor
    too small. No estimate is free of bias at both ends; with the same samples, that of Kumar et al. 2019
    (https://arxiv.org/abs/1909.10155, section 5) keeps .57 of the floor, and the monotonic sweep of Roelofs et al. 2022
    (https://arxiv.org/abs/2012.08668) .7 to 1.0.

    >>> round(corrected_calibration_error(0.05, floor=0.03), 6)
    0.04
    """
    return math.sqrt(max(0.0, error**2 - floor**2)) if not math.isnan(error) else error


def calibration_floor(count_m: Tensor, confidence_m: Tensor, variance_m: Tensor) -> float:
    """Compute the mean calibration error of a perfectly calibrated model with these confidences.

    Each bin adds E|right - sum of confidences| / n. Of `count` tokens of equal confidence the number right is binomial,
    and its mean absolute deviation has a closed form (de Moivre); it is scaled to the standard deviation of the bin. In
    large bins this is sqrt(2 variance / pi), and 2 variance for one token.
    """
    filled_m = count_m > 0
    count_m, variance_m = count_m[filled_m], variance_m[filled_m]
    confidence_m = confidence_m[filled_m].minimum(count_m)
    chance_m = confidence_m / count_m
    below_m = confidence_m.floor().minimum(count_m - 1)
    log_ways_m = count_m.lgamma() - (below_m + 1).lgamma() - (count_m - below_m).lgamma()
    above_m = count_m - 1 - below_m
    log_mass_m = log_ways_m + torch.xlogy(below_m, chance_m) + torch.special.xlog1py(above_m, -chance_m)
    deviation_m = 2 * (variance_m * confidence_m * (1 - chance_m)).sqrt() * log_mass_m.exp()
    return float(deviation_m.sum() / count_m.sum())


def adaptive_calibration_error(count_f: Tensor, confidence_f: Tensor, correct_f: Tensor, bins: int = 15) -> float:
    """Compute the error over bins of equal mass, cut from finer ones (Nixon et al. 2019, arxiv.org/abs/1904.01685)."""
    filled_f = (count_f > 0).cpu().numpy()
    sums_qf = torch.stack([count_f, confidence_f, correct_f]).cpu().numpy()[:, filled_f]
    if not filled_f.any():
        return math.nan
    until_qf = np.concatenate([np.zeros((3, 1)), sums_qf.cumsum(axis=1)], axis=1)
    edges = np.linspace(0, until_qf[0, -1], bins + 1)
    confidence, correct = (np.diff(np.interp(edges, until_qf[0], until_f)) for until_f in until_qf[1:])
    return float(np.abs(correct - confidence).sum() / until_qf[0, -1])


def classwise_calibration_error(excess_km: Tensor, tokens: int) -> float:
    """Compute the mean over classes of the error of p(class) (Kull et al. 2019, https://arxiv.org/abs/1910.12656).

    `excess_km` sums p(class) - [target is class] over the tokens of each bin of p(class).
    """
    return float(excess_km.abs().sum(1).mean() / tokens) if tokens else math.nan


def row_slices(logits_nv: Tensor) -> Iterator[slice]:
    """Return slices of rows of about LOGITS_PER_CHUNK logits, which bounds the memory that they need."""
    tokens, vocabulary = logits_nv.shape
    rows = max(1, LOGITS_PER_CHUNK // vocabulary)
    return (slice(start, start + rows) for start in range(0, tokens, rows))


def at_least_float32(logits_nv: Tensor) -> Tensor:
    """Return logits in float32 at least, without a gradient."""
    return logits_nv.detach().float() if logits_nv.element_size() < 4 else logits_nv.detach()


def scale_logits(logits_nv: Tensor, temperature: float) -> Tensor:
    """Divide logits by a temperature, in float32 at least: rounded to bfloat16, neighbours become ties."""
    return logits_nv if temperature == 1 else at_least_float32(logits_nv) / temperature


def loss_and_slope(logits_nv: Tensor, targets_n: Tensor, log_temperature: Tensor) -> Tensor:
    """Sum the NLL in nats of logits / T, and its derivative to log T, over tokens; float64 of shape (2,)."""
    sums = log_temperature.new_zeros(2, device=logits_nv.device)
    counted_n = targets_n != IGNORED
    for rows in row_slices(logits_nv):
        counted_r, target_r1 = counted_n[rows], targets_n[rows, None].clamp(min=0)
        scaled_rv = logits_nv[rows].detach().double() * (-log_temperature).exp().to(logits_nv.device)
        target_r = scaled_rv.gather(1, target_r1)[:, 0]
        total_r = scaled_rv.logsumexp(1)
        mean_r = torch.linalg.vecdot(scaled_rv, (scaled_rv - total_r[:, None]).exp())
        terms_2r = torch.stack([total_r - target_r, target_r - mean_r])
        sums += torch.where(counted_r, terms_2r, 0.0).sum(1)
    return sums


def fit_temperature(passes: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> float:
    """Find the T > 0 that minimises the NLL of logits / T (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

    Dividing by it leaves every argmax as it was. T lies within e^-5 and e^5: where every token is right, less is always
    better, and T ends near the lower bound. Fit on one split and measure on another. Raises ValueError where there are
    no tokens, or a logit is not finite. `passes` iterates over the split at each call, about ten times in all: logits
    (n, v) and targets (n,), the same values each time.
    """
    log_temperature = torch.zeros((), dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [log_temperature], max_iter=50, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        bounded = log_temperature.detach().clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
        excess = log_temperature.detach() - bounded
        sums, tokens = torch.zeros(2, dtype=torch.float64), 0
        for logits_nv, targets_n in passes():
            sums += loss_and_slope(logits_nv, targets_n, bounded).cpu()
            tokens += int((targets_n != IGNORED).sum())
        if not tokens:
            raise ValueError("fit_temperature: passes() gives no tokens, expected at least one target to predict")
        loss, slope = sums / tokens
        if not (loss.isfinite() and slope.isfinite()):
            raise ValueError(f"fit_temperature: the NLL is {float(loss)}, expected logits that are finite")
        log_temperature.grad = slope + 2 * excess  # past the bound the NLL goes on as a parabola with the same slope
        return loss + slope * excess + excess**2

    optimizer.step(closure)
    return float(log_temperature.detach().clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE).exp())


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
    """Return the largest logit of each row and its first index, (n,): `max(-1)`, several times faster on a CPU."""
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

    `bytes_per_token` are UTF-8 bytes, int64 of shape (v,), `bins` those of the top probability, `classes` token ids,
    (k,), of the class-wise calibration error, and `clusters` a number of documents, say, whose sums are kept too.
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
        """Add the tokens whose target is not IGNORED to the sums; `scale_logits` measures at a temperature."""
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
