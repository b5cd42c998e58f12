"""Text from a model, token by token. Legend: b batch, t time, v vocabulary."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.model.attention import Attention
from lm.model.cache import Cache
from lm.model.transformer import Decoder

Choose = Callable[[Tensor], Tensor]
"""Picks a token for each row: logits (b, v) -> tokens (b,)."""

# choosing a token ----------------------------------------------------------------------------------------------------


def greedy(logits_bv: Tensor) -> Tensor:
    """The likeliest token of each row, the first of several, (b,)."""
    return logits_bv.argmax(-1)


def warmed(logits_bv: Tensor, temperature: float) -> Tensor:
    """Logits / temperature, less the largest of the row, in float64: the same probabilities, and no overflow near 0."""
    return (logits_bv - logits_bv.amax(-1, keepdim=True)).double() / temperature


def top_k(logits_bv: Tensor, k: int) -> Tensor:
    """Logits with all but the k largest of each row at minus infinity; those that tie with the k-th stay."""
    kth_b1 = logits_bv.topk(min(k, logits_bv.shape[-1]), dim=-1).values[:, -1:]
    return logits_bv.masked_fill(logits_bv < kth_b1, -torch.inf)


def top_p(logits_bv: Tensor, p: float) -> Tensor:
    """Logits with all at minus infinity but the fewest likeliest tokens that have a probability of p together.

    The nucleus of Holtzman et al. 2020, https://arxiv.org/abs/1904.09751. The likeliest token always stays.
    """
    if p == 1:  # a sum of probabilities may pass 1 by rounding, and hide what has a share
        return logits_bv
    likeliest_bv, order_bv = logits_bv.sort(dim=-1, descending=True)
    share_bv = likeliest_bv.softmax(-1, dtype=torch.float64)
    beyond_bv = share_bv.cumsum(-1) - share_bv >= p  # what is likelier has p already
    return logits_bv.masked_fill(beyond_bv.scatter(-1, order_bv, beyond_bv), -torch.inf)


def draw(logits_bv: Tensor, generator: torch.Generator) -> Tensor:
    """A token of each row with the probabilities softmax(logits), (b,).

    It is drawn on the generator's device: with one on the CPU a seed gives the same text whatever the model runs on.
    """
    shares_bv = logits_bv.softmax(-1, dtype=torch.float64).to(generator.device)
    return torch.multinomial(shares_bv, 1, generator=generator)[:, 0].to(logits_bv.device)


@dataclass(frozen=True)
class Sample:
    """Draws tokens at random: logits / temperature, then the k largest of them, then a nucleus of those.

    Args:
        generator: where the randomness comes from.
        temperature: above 0; below 1 likely tokens become likelier.
        top_k: how many tokens may be drawn at a step; None for all.
        top_p: what the tokens that may be drawn have as probability together; 1 for all.
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
        """The logits that tokens are drawn from, minus infinity for those that are not."""
        warm_bv = warmed(logits_bv, self.temperature)
        kept_bv = warm_bv if self.top_k is None else top_k(warm_bv, self.top_k)
        return top_p(kept_bv, self.top_p)

    def __call__(self, logits_bv: Tensor) -> Tensor:
        return draw(self.filtered(logits_bv), self.generator)


# generating ----------------------------------------------------------------------------------------------------------


def caches_for(model: Decoder, kind: type[Cache] = Cache) -> list[Cache] | None:
    """An empty cache a layer; None where one token at a time is not what all at once would be."""
    kept = model.causal and all(part.cached for part in model.modules() if isinstance(part, Attention))
    return [kind() for _ in model.blocks] if kept else None


def generate(
    model: nn.Module,
    tokens_bt: Tensor,
    steps: int,
    choose: Choose,
    caches: Sequence[Cache] | None = None,
    stop: int | None = None,
) -> Iterator[Tensor]:
    """Goes on from `tokens_bt`, one token of each row at a time.

    Args:
        model: called as model(tokens, caches); in evaluation mode.
        tokens_bt: what to go on from, at least one token a row.
        steps: the most tokens to make.
        choose: picks the next tokens from logits.
        caches: one a layer, empty or holding what came before `tokens_bt`; without, every step reads all tokens anew.
        stop: a row that has made this token makes only this token from then on; it ends once every row has.

    Returns:
        Tokens (b,), each as soon as it is known.

    Raises:
        ValueError: for no tokens, a model in training mode, or where a position encoding reaches no further.
    """
    if tokens_bt.shape[1] == 0:
        raise ValueError(f"tokens of shape {tuple(tokens_bt.shape)}: a model needs at least one token to go on from")
    if model.training:
        raise ValueError("the model is in training mode, which dropout makes random; call model.eval() first")
    return _generate(model, tokens_bt, steps, choose, caches, stop)


@torch.no_grad()
def _generate(
    model: nn.Module,
    tokens_bt: Tensor,
    steps: int,
    choose: Choose,
    caches: Sequence[Cache] | None,
    stop: int | None,
) -> Iterator[Tensor]:
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
