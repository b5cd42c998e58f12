"""Greedy and beam search against trying every target."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from helpers import MODEL, Patch
from messages import Refused
from torch import Tensor

from lm.config.components import build, resolve
from lm.config.tree import override
from lm.model.attention import Attention
from lm.model.generation import Ends, Hypothesis, Stepper, beam_search, length_penalty
from lm.model.transformer import EncoderDecoder, Model, build_and_initialize

VOCABULARY = 5
BEGIN, END = 3, 4


@dataclass
class Root:
    model: Callable[[int, int], Model]


def model_of(seed: int, **changes: object) -> EncoderDecoder:
    """A tiny model in float64 whose predictions are far from uniform."""
    tree = override({"model": {**MODEL, "class_path": "EncoderDecoder"}}, {"model.initializer.std": 0.5})
    tree = override(tree, {f"model.{key}": value for key, value in changes.items()})
    model = build_and_initialize(build(resolve(tree, Root), Root).model, VOCABULARY, 8, seed)
    assert isinstance(model, EncoderDecoder)
    return model.double().eval()


def sources(batch: int = 4, time: int = 6) -> tuple[Tensor, Tensor]:
    """Random sources, the last two positions of the second half padding."""
    source_bs = torch.randint(VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(0))
    hidden_bs = (torch.arange(time) >= time - 2).repeat(batch, 1)
    hidden_bs[: batch // 2] = False
    return source_bs, hidden_bs


@torch.no_grad()
def log_probability(model: EncoderDecoder, source_bs: Tensor, hidden_bs: Tensor, tokens: tuple[int, ...]) -> float:
    """Of one target, all at once and without a cache."""
    logits_tv = model(torch.tensor([[BEGIN, *tokens[:-1]]]), source_bs, hidden_bs)[0]
    return float(logits_tv.log_softmax(-1)[range(len(tokens)), tokens].sum())


def targets(longest: int) -> list[tuple[int, ...]]:
    """Every target that ends within `longest` tokens."""
    others = [token for token in range(VOCABULARY) if token != END]
    return [(*head, END) for size in range(longest) for head in itertools.product(others, repeat=size)]


def assert_same(left: Iterable[Hypothesis], right: Iterable[Hypothesis]) -> None:
    """The same targets in the same order, whose scores are sums in another order perhaps."""
    for mine, other in zip(left, right, strict=True):
        assert (mine.tokens, mine.ended) == (other.tokens, other.ended)
        assert mine.score == pytest.approx(other.score, abs=1e-9)


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.6)])
def test_an_exhaustive_beam_finds_the_likeliest_target(seed: int, alpha: float) -> None:
    model, (source_bs, hidden_bs), longest = model_of(seed), sources(), 3
    found = beam_search(model, source_bs, hidden_bs, Ends(BEGIN, END, longest), VOCABULARY**longest, alpha)
    for row in (0, len(source_bs) - 1):  # without padding, and with it
        scores = {
            tokens: log_probability(model, source_bs[row : row + 1], hidden_bs[row : row + 1], tokens)
            / length_penalty(len(tokens), alpha)
            for tokens in targets(longest)
        }
        best = max(scores, key=lambda tokens: scores[tokens])
        assert tuple(found[row][0].tokens) == best
        assert {tuple(one.tokens): pytest.approx(one.score, abs=1e-9) for one in found[row]} == scores


@torch.inference_mode()
def greedy_search(
    model: EncoderDecoder, source_bs: Tensor, hidden_bs: Tensor, ends: Ends, alpha: float = 0.0
) -> list[Hypothesis]:
    """Take the likeliest token each time; returns one hypothesis per source."""
    step = Stepper(model, source_bs, hidden_bs)
    tokens_bt = torch.full((len(source_bs), 1), ends.begin, device=source_bs.device)
    total_b = torch.zeros(len(source_bs), dtype=torch.float64, device=source_bs.device)
    for _ in range(ends.longest):
        ended_b = (tokens_bt == ends.end).any(-1)
        if ended_b.all():
            break
        likeliest_b, token_b = step(tokens_bt).max(-1)
        total_b += likeliest_b.double().masked_fill(ended_b, 0.0)
        tokens_bt = torch.cat([tokens_bt, token_b[:, None]], dim=1)
    hypotheses = []
    for tokens, total in zip(tokens_bt[:, 1:].tolist(), total_b.tolist(), strict=True):
        ended = ends.end in tokens
        target = tokens[: tokens.index(ends.end) + 1] if ended else tokens
        hypotheses.append(Hypothesis(target, total / length_penalty(len(target), alpha), ended))
    return hypotheses


def test_the_length_penalty_is_that_of_the_paper() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 0.5) == pytest.approx(2**0.5)
    assert length_penalty(100, 0.0) == 1.0


@pytest.mark.parametrize("seed", range(2))
def test_a_beam_of_one_is_greedy_search(seed: int) -> None:
    model, source, ends = model_of(seed), sources(), Ends(BEGIN, END, 8)
    assert_same(
        [found[0] for found in beam_search(model, *source, ends, 1, 0.6)], greedy_search(model, *source, ends, 0.6)
    )


@pytest.mark.parametrize("width", [1, 3])
def test_a_cache_changes_nothing(width: int, monkeypatch: Patch) -> None:
    for seed in range(2):
        model, source, ends = model_of(seed), sources(), Ends(BEGIN, END, 8)
        kept = beam_search(model, *source, ends, width, 0.6)
        with monkeypatch.context() as patch:
            patch.setattr(Attention, "cached", False)
            anew = beam_search(model, *source, ends, width, 0.6)
        assert_same(itertools.chain(*kept), itertools.chain(*anew))


def test_a_batch_gives_what_each_source_alone_gives() -> None:
    model, (source_bs, hidden_bs), ends = model_of(1), sources(), Ends(BEGIN, END, 8)
    together = beam_search(model, source_bs, hidden_bs, ends, 3, 0.6)
    for row, found in enumerate(together):
        alone = beam_search(model, source_bs[row : row + 1], hidden_bs[row : row + 1], ends, 3, 0.6)[0]
        assert [one.tokens for one in found] == [one.tokens for one in alone]


def test_a_hypothesis_that_ended_stays_when_others_go_on() -> None:
    """Scores fall with every token without a penalty, so that one that ends early can only be beaten before."""
    model, source, longest = model_of(2), sources(), 8
    found = [beam_search(model, *source, Ends(BEGIN, END, length), 3, 0.0) for length in range(1, longest + 1)]
    for shorter, longer in itertools.pairwise(found):
        for before, after in zip(shorter, longer, strict=True):
            ended = [one.tokens for one in before if one.ended]
            assert ended == [one.tokens for one in after if one.tokens in ended]


def test_a_target_that_never_ends_is_given_as_it_is(monkeypatch: Patch) -> None:
    decode = EncoderDecoder.decode
    never = torch.zeros(VOCABULARY).index_fill(0, torch.tensor(END), -1e4)
    monkeypatch.setattr(EncoderDecoder, "decode", lambda *arguments: decode(*arguments) + never)
    model, ends = model_of(0), Ends(BEGIN, END, 3)
    likeliest = [found[0] for found in beam_search(model, *sources(), ends, width=1)]
    assert_same(likeliest, greedy_search(model, *sources(), ends, alpha=0.6))
    for found in (*likeliest, *(beams[0] for beams in beam_search(model, *sources(), ends))):
        assert not found.ended
        assert len(found.tokens) == 3
        assert END not in found.tokens


def test_a_beam_of_none_is_refused(refused: Refused) -> None:
    with refused(ValueError):
        beam_search(model_of(0), *sources(), Ends(BEGIN, END, 8), 0)
