"""Text from a model: sampling from a decoder, beam search with an encoder-decoder.

Legend: b batch, w beam, r rows = b w, s source time, t (target) time, d width, v vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lm.model.attention import Attention
from lm.model.block import Block
from lm.model.cache import Cache
from lm.model.transformer import Decoder, EncoderDecoder

Choose = Callable[[Tensor], Tensor]  # A function that picks a token for each row: logits (b, v) -> tokens (b,)


def greedy(logits_bv: Tensor) -> Tensor:
    """Pick the likeliest token of each row, the first of several, (b,)."""
    return logits_bv.argmax(-1)


def apply_temperature(logits_bv: Tensor, temperature: float) -> Tensor:
    """Divide logits, less the largest of the row against overflow, by a temperature, in float64."""
    return (logits_bv - logits_bv.amax(-1, keepdim=True)).double() / temperature


def top_k(logits_bv: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits of each row to minus infinity; those that tie with the k-th stay."""
    kth_b1 = logits_bv.topk(min(k, logits_bv.shape[-1]), dim=-1).values[:, -1:]
    return logits_bv.masked_fill(logits_bv < kth_b1, -torch.inf)


def top_p(logits_bv: Tensor, p: float) -> Tensor:
    """Set logits to minus infinity but for the fewest likeliest tokens with a probability of p together.

    The nucleus of Holtzman et al. 2020, https://arxiv.org/abs/1904.09751. The likeliest token always stays.
    """
    if p == 1:  # a sum of probabilities may pass 1 by rounding, and hide what has a share
        return logits_bv
    likeliest_bv, order_bv = logits_bv.sort(dim=-1, descending=True)
    share_bv = likeliest_bv.softmax(-1, dtype=torch.float64)
    beyond_bv = share_bv.cumsum(-1) - share_bv >= p  # what is likelier has p already
    return logits_bv.masked_fill(beyond_bv.scatter(-1, order_bv, beyond_bv), -torch.inf)


def draw(logits_bv: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a token of each row with the probabilities softmax(logits), (b,), on the device of the generator."""
    shares_bv = logits_bv.softmax(-1, dtype=torch.float64).to(generator.device)
    return torch.multinomial(shares_bv, 1, generator=generator)[:, 0].to(logits_bv.device)


@dataclass(frozen=True)
class Sample:
    """A choice of tokens at random: logits / temperature, then the k largest of them, then a nucleus of those.

    Below a temperature of 1 likely tokens become likelier. `top_k` tokens may be drawn at a step, None for all; those
    that may be drawn have a probability of `top_p` together.
    """

    generator: torch.Generator
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature={self.temperature} must be a number above 0; use greedy for the limit 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in (0, 1]")

    def filtered(self, logits_bv: Tensor) -> Tensor:
        """Return the logits that tokens are drawn from, minus infinity for those that are not."""
        warm_bv = apply_temperature(logits_bv, self.temperature)
        top_bv = warm_bv if self.top_k is None else top_k(warm_bv, self.top_k)
        return top_p(top_bv, self.top_p)

    def __call__(self, logits_bv: Tensor) -> Tensor:
        """Draw one token for each row of logits (b, v)."""
        return draw(self.filtered(logits_bv), self.generator)


def caches_for(model: Decoder) -> list[Cache] | None:
    """Make an empty cache per layer; None where one token at a time differs from all at once."""
    cacheable = model.causal and all(part.cached for part in model.modules() if isinstance(part, Attention))
    return [Cache() for _ in model.blocks] if cacheable else None


def generate(
    model: nn.Module,
    tokens_bt: Tensor,
    steps: int,
    choose: Choose,
    caches: Sequence[Cache] | None = None,
    stop: int | None = None,
) -> Iterator[Tensor]:
    """Continue `tokens_bt`, one token of each row at a time; yields tokens (b,), each as soon as it is known.

    The model is called as model(tokens, caches). A cache per layer is empty or holds what came before `tokens_bt`;
    without caches every step reads all tokens anew. A row that has generated `stop` repeats it; generation ends once
    every row has.

    Raises:
        ValueError: for no tokens, a model in training mode, or where a position encoding reaches no further.
    """
    if tokens_bt.shape[1] == 0:
        raise ValueError(f"tokens of shape {tuple(tokens_bt.shape)}: a model needs at least one token to go on from")
    if model.training:
        raise ValueError("the model is in training mode, which dropout makes random; call model.eval() first")

    @torch.no_grad()
    def tokens(tokens_bt: Tensor) -> Iterator[Tensor]:
        stopped_b = torch.zeros(len(tokens_bt), dtype=torch.bool, device=tokens_bt.device)
        for _ in range(steps):
            next_b = choose(model(tokens_bt, caches)[:, -1])
            if stop is not None:
                next_b = torch.where(stopped_b, stop, next_b)
                stopped_b = next_b == stop
            yield next_b
            if stopped_b.all():
                return
            new_b1 = next_b[:, None]
            tokens_bt = torch.cat([tokens_bt, new_b1], dim=1) if caches is None else new_b1

    return tokens(tokens_bt)


@dataclass(frozen=True)
class Ends:
    """The tokens that begin and end a target, and the most tokens it may have, the end included."""

    begin: int
    end: int
    longest: int


@dataclass(frozen=True)
class Hypothesis:
    """A target: its tokens, and its log-probability divided by the length penalty."""

    tokens: list[int]
    score: float
    ended: bool


def length_penalty(length: int, alpha: float) -> float:
    """Compute ((5 + length) / 6)^alpha, the divisor of log-probabilities (Wu et al. 2016, arXiv:1609.08144)."""
    return float(((5 + length) / 6) ** alpha)


class Stepper:
    """A model of the next token for rows of targets, `width` of each source, that grow by one token per call."""

    def __init__(self, model: EncoderDecoder, source_bs: Tensor, hidden_bs: Tensor, width: int = 1) -> None:
        self.model = model
        self.memory_rsd = model.encode(source_bs, hidden_bs).repeat_interleave(width, dim=0)
        self.hidden_rs = hidden_bs.repeat_interleave(width, dim=0)
        cacheable = all(bool(cast(Block, block).attention.cached) for block in model.decoder)
        self.caches = [Cache() for _ in model.decoder] if cacheable else None

    def __call__(self, tokens_rt: Tensor) -> Tensor:
        """Return log-probabilities of the token after `tokens_rt`, (r, v) in float32 at least."""
        new_tokens_rt = tokens_rt if self.caches is None else tokens_rt[:, -1:]
        logits_rv = self.model.decode(new_tokens_rt, self.memory_rsd, self.hidden_rs, self.caches)[:, -1]
        return logits_rv.to(torch.promote_types(logits_rv.dtype, torch.float32)).log_softmax(-1)

    def reorder(self, rows_r: Tensor) -> None:
        """Make row i continue row `rows_r[i]`, a row of the same source."""
        if self.caches is None:
            return
        held = self.caches
        self.caches = [Cache() for _ in held]
        for cache, old in zip(self.caches, held, strict=True):
            cache.append(*(rows[rows_r] for rows in old.held))


@torch.inference_mode()
def beam_search(
    model: EncoderDecoder,
    source_bs: Tensor,
    hidden_bs: Tensor,
    ends: Ends,
    width: int = 4,
    alpha: float = 0.6,
) -> list[list[Hypothesis]]:
    """Search for the likeliest targets of each source; returns the hypotheses that ended, best first.

    Each step extends the `width` likeliest targets of a source by every token. Of the extensions, those among the
    `width` likeliest that end are kept for good, and the likeliest others live on. A source is done when `width` have
    ended; one where none ends within `ends.longest` tokens gives its likeliest target as it is, not ended. With width 1
    this is greedy search. `hidden_bs` is True for padding, `alpha` the exponent of the length penalty. The model is in
    evaluation mode.
    """
    if width < 1:
        raise ValueError(f"width={width} must be at least 1")
    step, (batch, device) = Stepper(model, source_bs, hidden_bs, width), (len(source_bs), source_bs.device)
    index_b = torch.arange(batch, device=device)[:, None]
    tokens_bwt = torch.full((batch, width, 1), ends.begin, device=device)
    total_bw = torch.full((batch, width), -torch.inf, dtype=torch.float64, device=device)
    total_bw[:, 0] = 0.0  # all rows of a source are the same at first
    ended: list[list[Hypothesis]] = [[] for _ in range(batch)]
    for length in range(1, ends.longest + 1):
        total_bwv = total_bw[:, :, None] + step(tokens_bwt.flatten(0, 1)).unflatten(0, (batch, width))
        vocabulary = total_bwv.shape[2]
        # At most `width` of the extensions end, one for each row, so that as many again are left to live on.
        total_bc, index_bc = total_bwv.flatten(1).topk(min(2 * width, width * vocabulary), dim=1)
        row_bc, token_bc = index_bc // vocabulary, index_bc % vocabulary
        ending_bc = (token_bc == ends.end) & total_bc.isfinite()
        for index, choice in ending_bc[:, :width].nonzero().tolist():
            if len(ended[index]) < width:
                tokens = [*tokens_bwt[index, row_bc[index, choice], 1:].tolist(), ends.end]
                score = float(total_bc[index, choice]) / length_penalty(length, alpha)
                ended[index].append(Hypothesis(tokens, score, True))
        live_bw = (token_bc == ends.end).long().sort(dim=1, stable=True).indices[:, :width]
        row_bw, token_bw = row_bc.gather(1, live_bw), token_bc.gather(1, live_bw)
        tokens_bwt = torch.cat([tokens_bwt[index_b, row_bw], token_bw[:, :, None]], dim=2)
        # where too few do not end
        total_bw = total_bc.gather(1, live_bw).masked_fill(token_bw == ends.end, -torch.inf)
        step.reorder((index_b * width + row_bw).flatten())
        if all(len(hypotheses) >= width for hypotheses in ended):
            break
    for hypotheses, totals_w, tokens_wt in zip(ended, total_bw, tokens_bwt, strict=True):
        if not hypotheses:
            best = int(totals_w.argmax())
            tokens = tokens_wt[best, 1:].tolist()
            hypotheses.append(Hypothesis(tokens, float(totals_w[best]) / length_penalty(len(tokens), alpha), False))
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
    return ended
