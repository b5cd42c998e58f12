"""The target that an encoder-decoder finds likeliest: greedy and beam search.

Legend: b batch, w beam, r rows = b w, s source time, t target time, d width, v vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lm.model.cache import Cache
from lm.model.encoder_decoder import EncoderDecoder


@dataclass(frozen=True)
class Ends:
    """The tokens that begin and end a target, and the most tokens it may have, the end included."""

    begin: int
    end: int
    longest: int


@dataclass(frozen=True)
class Hypothesis:
    """A target: its tokens, with the end if it came to one, and the log-probability divided by the length penalty."""

    tokens: list[int]
    score: float
    ended: bool


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, what log-probabilities are divided by (Wu et al. 2016, equation 14).

    https://arxiv.org/abs/1609.08144
    """
    return float(((5 + length) / 6) ** alpha)


class Stepper:
    """Log-probabilities of the next token for rows of targets that grow by one token a call.

    Args:
        model, source_bs, hidden_bs: what is translated.
        width: rows of each source, next to one another.
        cached: whether keys and values of earlier tokens are kept, or computed anew.
    """

    def __init__(
        self, model: EncoderDecoder, source_bs: Tensor, hidden_bs: Tensor, width: int = 1, cached: bool = True
    ) -> None:
        self.model = model
        self.memory_rsd = model.encode(source_bs, hidden_bs).repeat_interleave(width, dim=0)
        self.hidden_rs = hidden_bs.repeat_interleave(width, dim=0)
        able = all(bool(block.attention.cached) for block in _blocks(model))
        self.caches = [Cache() for _ in model.decoder] if cached and able else None

    def __call__(self, tokens_rt: Tensor) -> Tensor:
        """Of the token after `tokens_rt`, (r, v) in float32 at least."""
        read = tokens_rt if self.caches is None else tokens_rt[:, -1:]
        logits_rv = self.model.decode(read, self.memory_rsd, self.hidden_rs, self.caches)[:, -1]
        return logits_rv.to(torch.promote_types(logits_rv.dtype, torch.float32)).log_softmax(-1)

    def reorder(self, rows_r: Tensor) -> None:
        """Row i goes on from what was row `rows_r[i]`, a row of the same source."""
        if self.caches is not None:
            self.caches = [_reordered(cache, rows_r) for cache in self.caches]


def _reordered(cache: Cache, rows_r: Tensor) -> Cache:
    found = Cache()
    if cache.key_bgtk is not None and cache.value_bgtk is not None:
        found.append(cache.key_bgtk[rows_r], cache.value_bgtk[rows_r])
    return found


def _blocks(model: EncoderDecoder) -> list[Any]:
    return list(model.decoder)


@torch.inference_mode()
def greedy(
    model: EncoderDecoder, source_bs: Tensor, hidden_bs: Tensor, ends: Ends, alpha: float = 0.0, cached: bool = True
) -> list[Hypothesis]:
    """The likeliest token each time, one hypothesis a source."""
    step = Stepper(model, source_bs, hidden_bs, cached=cached)
    tokens_bt = torch.full((len(source_bs), 1), ends.begin, device=source_bs.device)
    total_b = torch.zeros(len(source_bs), dtype=torch.float64, device=source_bs.device)
    for _ in range(ends.longest):
        ended_b = (tokens_bt == ends.end).any(-1)
        if ended_b.all():
            break
        likeliest_b, token_b = step(tokens_bt).max(-1)
        total_b += likeliest_b.double().masked_fill(ended_b, 0.0)
        tokens_bt = torch.cat([tokens_bt, token_b[:, None]], dim=1)
    found = []
    for tokens, total in zip(tokens_bt[:, 1:].tolist(), total_b.tolist(), strict=True):
        ended = ends.end in tokens
        kept = tokens[: tokens.index(ends.end) + 1] if ended else tokens
        found.append(Hypothesis(kept, total / length_penalty(len(kept), alpha), ended))
    return found


@dataclass
class _Beams:
    """The state of a search: live hypotheses as tensors, and those that ended, a list for each source."""

    tokens_bwt: Tensor
    total_bw: Tensor
    ended: list[list[Hypothesis]] = field(default_factory=list)


@torch.inference_mode()
def beam_search(
    model: EncoderDecoder,
    source_bs: Tensor,
    hidden_bs: Tensor,
    ends: Ends,
    width: int = 4,
    alpha: float = 0.6,
    cached: bool = True,
) -> list[list[Hypothesis]]:
    """For each source the hypotheses that ended, best first.

    Each step extends the `width` likeliest targets of a source by every token. Of the extensions, those among the
    `width` likeliest that end are kept for good, and the likeliest others live on. A source is done when `width`
    have ended; one where none ends within `ends.longest` tokens gives its likeliest target as it is, not ended.
    With width 1 this is greedy search.

    Args:
        model: in evaluation mode.
        source_bs, hidden_bs: token ids, and which of them are padding.
        ends: how a target begins and ends.
        width: of the beam.
        alpha: of the length penalty; 0 is none.
        cached: whether to keep keys and values; the outcome is the same.
    """
    if width < 1:
        raise ValueError(f"width={width} must be at least 1")
    step = Stepper(model, source_bs, hidden_bs, width, cached)
    batch, device = len(source_bs), source_bs.device
    total_bw = torch.full((batch, width), -torch.inf, dtype=torch.float64, device=device)
    total_bw[:, 0] = 0.0  # all rows of a source are the same at first
    beams = _Beams(torch.full((batch, width, 1), ends.begin, device=device), total_bw, [[] for _ in range(batch)])
    for _ in range(ends.longest):
        total_bwv = beams.total_bw[:, :, None] + step(beams.tokens_bwt.flatten(0, 1)).unflatten(0, (batch, width))
        step.reorder(_extend(beams, total_bwv, ends, alpha))
        if all(len(found) >= width for found in beams.ended):
            break
    return [_ranked(beams, index, alpha) for index in range(batch)]


def _extend(beams: _Beams, total_bwv: Tensor, ends: Ends, alpha: float) -> Tensor:
    """Takes the likeliest extensions into `beams`; returns the row that each live hypothesis goes on from, (r,)."""
    batch, width, vocabulary = total_bwv.shape
    # At most `width` of the extensions end, one for each row, so that as many again are left to live on.
    count = min(2 * width, width * vocabulary)
    total_bc, place_bc = total_bwv.flatten(1).topk(count, dim=1)
    row_bc, token_bc = place_bc // vocabulary, place_bc % vocabulary
    ending_bc = (token_bc == ends.end) & total_bc.isfinite()
    length = beams.tokens_bwt.shape[2]
    for index, choice in ending_bc[:, :width].nonzero().tolist():
        if len(beams.ended[index]) < width:
            tokens = [*beams.tokens_bwt[index, row_bc[index, choice], 1:].tolist(), ends.end]
            score = float(total_bc[index, choice]) / length_penalty(length, alpha)
            beams.ended[index].append(Hypothesis(tokens, score, True))
    live_bw = (token_bc == ends.end).long().sort(dim=1, stable=True).indices[:, :width]
    row_bw, token_bw = row_bc.gather(1, live_bw), token_bc.gather(1, live_bw)
    index_b = torch.arange(batch, device=row_bw.device)[:, None]
    beams.tokens_bwt = torch.cat([beams.tokens_bwt[index_b, row_bw], token_bw[:, :, None]], dim=2)
    total_bw = total_bc.gather(1, live_bw)
    beams.total_bw = total_bw.masked_fill(token_bw == ends.end, -torch.inf)  # where too few do not end
    return (index_b * width + row_bw).flatten()


def _ranked(beams: _Beams, index: int, alpha: float) -> list[Hypothesis]:
    if beams.ended[index]:
        return sorted(beams.ended[index], key=lambda found: -found.score)
    best = int(beams.total_bw[index].argmax())
    tokens = beams.tokens_bwt[index, best, 1:].tolist()
    score = float(beams.total_bw[index, best]) / length_penalty(len(tokens), alpha)
    return [Hypothesis(tokens, score, False)]
