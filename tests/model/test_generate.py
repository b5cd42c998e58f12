"""Choosing tokens as transformers' processors do, drawing them with their probabilities, and going on from a text."""

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import CONTEXT, VOCABULARY, decoder, tokens
from messages import Refused
from scipy.stats import chisquare
from torch import Tensor, nn

from lm.model.cache import Cache
from lm.model.generation import Choose, Sample, apply_temperature, caches_for, draw, generate, greedy, top_k, top_p


def logits(rows: int = 40, vocabulary: int = 50, seed: int = 0) -> Tensor:
    """Rows from nearly even to nearly certain, (rows, vocabulary), float64."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.1, 8, rows, dtype=torch.float64)[:, None]
    return spread * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("k", "p"), list(itertools.product((None, 1, 7, 1000), (0.05, 0.9, 1.0))))
def test_filters_together_are_those_of_transformers_element_by_element(
    k: int | None, p: float, temperature: float
) -> None:
    from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    before = torch.zeros(1, 1, dtype=torch.long)  # their processors also take the tokens so far
    theirs = TemperatureLogitsWarper(temperature)(before, logits()) if temperature != 1 else logits()
    if k is not None:
        theirs = TopKLogitsWarper(k)(before, theirs)
    if p < 1:
        theirs = TopPLogitsWarper(p)(before, theirs)
    ours = Sample(random(), temperature, k, p).filtered(logits())
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), rtol=0, atol=1e-12)


def test_filters_leave_what_they_keep_as_it_was() -> None:
    for filtered in (top_k(logits(), 7), top_p(logits(), 0.9)):
        kept = ~filtered.isinf()
        assert 0 < kept.sum() < kept.numel()
        assert torch.equal(filtered[kept], logits()[kept])


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_the_nucleus_is_the_smallest_set_of_its_probability(p: float) -> None:
    for row, kept in zip(logits().softmax(-1), ~top_p(logits(), p).isinf(), strict=True):
        assert row[kept].sum() >= p - 1e-12
        assert row[kept].sum() - row[kept].min() < p, "without the least likely it is not enough"
        assert not (~kept).any() or row[kept].min() >= row[~kept].max()


def test_filters_where_probabilities_tie() -> None:
    even = torch.zeros(1, 8)
    assert (~top_k(even, 3).isinf()).sum() == 8, "a tie with the k-th stays"
    assert (~top_p(even, 0.5).isinf()).sum() == 4
    assert (~top_p(even, 0.51).isinf()).sum() == 5


def test_a_nucleus_of_everything_hides_nothing_even_where_sums_round() -> None:
    wide = logits(rows=8, vocabulary=5000).float()
    assert torch.equal(top_p(wide, 1.0), wide)


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-3, 1e30])
def test_extreme_temperatures_are_the_likeliest_token_or_all_alike(temperature: float) -> None:
    shares = apply_temperature(logits().float(), temperature).softmax(-1)
    wanted = nn.functional.one_hot(greedy(logits()), 50) if temperature < 1 else torch.full((40, 50), 1 / 50)
    torch.testing.assert_close(shares, wanted.double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
    ],
    ids=str,
)
def test_a_setting_without_meaning_is_refused(options: dict[str, float], refused: Refused) -> None:
    with refused(ValueError):
        Sample(random(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.8}, {"temperature": 2.0, "top_k": 6, "top_p": 0.9}]
)
def test_tokens_come_as_often_as_their_probabilities_say(options: dict[str, float]) -> None:
    row = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5], dtype=torch.float64)
    sample, draws = Sample(random(), **options), 40_000  # type: ignore[arg-type]
    counts = torch.bincount(sample(row.expand(draws, -1)), minlength=len(row))
    # The probabilities by hand: heated, cut to k, cut to the nucleus of what is left, and brought to 1 again.
    shares = (row / options.get("temperature", 1)).exp()
    shares[int(options.get("top_k", 8)) :] = 0
    shares = shares / shares.sum()
    shares[torch.arange(8) >= 1 + int((shares.cumsum(0) < options.get("top_p", 1) - 1e-12).sum())] = 0
    shares = shares / shares.sum()
    drawn = shares > 0
    assert (counts[~drawn] == 0).all()
    assert chisquare(counts[drawn].numpy(), draws * shares[drawn].numpy()).pvalue > 1e-3


def test_a_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    found = [draw(logits(), random(seed)) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    generator = random(0)
    assert not torch.equal(draw(logits(), generator), draw(logits(), generator)), "a generator moves on"


def test_drawing_leaves_the_global_random_stream_alone() -> None:
    before = torch.get_rng_state()
    Sample(random())(logits())
    assert torch.equal(torch.get_rng_state(), before)


def naive(model: nn.Module, tokens_bt: Tensor, steps: int, choose: Choose) -> Tensor:
    """(b, steps) tokens, the whole text read for each."""
    with torch.no_grad():
        for _ in range(steps):
            tokens_bt = torch.cat([tokens_bt, choose(model(tokens_bt)[:, -1])[:, None]], dim=1)
    return tokens_bt[:, -steps:]


CHOICES = {"greedy": lambda: greedy, "sampled": lambda: Sample(random(5), 0.9, 8, 0.95)}


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize(
    "change", [{}, {"position": "Learned"}, {"attention": "LinearAttention"}, {"mlp": "Experts"}], ids=str
)
def test_generation_is_the_same_without_a_cache(change: dict[str, str], choose: Callable[[], Choose]) -> None:
    model = decoder({"initializer.std": 0.3, "embedding.tied": False, **change}).double().eval()
    start, steps = tokens(time=4, batch=8), CONTEXT - 3  # the last token made needs no position
    wanted = naive(model, start, steps, choose())
    for caches in (None, caches_for(model)):
        found = torch.stack(list(generate(model, start, steps, choose(), caches)), dim=1)
        assert torch.equal(found, wanted)
    assert len(wanted.unique()) > 1, "one token over and over would prove little"


def test_a_cache_goes_on_from_where_it_was_left() -> None:
    model = decoder({"initializer.std": 0.3}).double().eval()
    whole = list(generate(model, tokens(time=4), 8, greedy))
    caches = caches_for(model)
    first = list(generate(model, tokens(time=4), 5, greedy, caches))
    rest = list(generate(model, first[-1][:, None], 3, greedy, caches))
    assert torch.equal(torch.stack(first + rest), torch.stack(whole))


class Scripted(nn.Module):
    """Says the next token of a script for each row, and counts how often it is asked and what it is given."""

    def __init__(self, script: list[list[int]]) -> None:
        super().__init__()
        self.script, self.given = script, list[tuple[int, ...]]()

    def forward(self, tokens_bt: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        step = len(self.given)
        self.given.append(tuple(tokens_bt.shape))
        last = nn.functional.one_hot(torch.tensor([row[step] for row in self.script]), VOCABULARY)
        return last[:, None].expand(-1, tokens_bt.shape[1], -1).float()


def test_tokens_come_one_at_a_time() -> None:
    model = Scripted([[3, 1, 4]]).eval()
    made = generate(model, tokens(batch=1, time=2), 3, greedy)
    assert model.given == [], "nothing is computed before it is asked for"
    assert next(made).tolist() == [3]
    assert model.given == [(1, 2)]
    assert [token.tolist() for token in made] == [[1], [4]]
    assert model.given == [(1, 2), (1, 3), (1, 4)]
    cached = Scripted([[3, 1, 4]]).eval()
    assert len(list(generate(cached, tokens(batch=1, time=2), 3, greedy, [Cache()]))) == 3
    assert cached.given == [(1, 2), (1, 1), (1, 1)]


def test_stopped_rows_stay_stopped_until_generation_ends() -> None:
    model = Scripted([[5, 9, 1, 1, 1, 1], [1, 2, 3, 9, 1, 1]]).eval()
    made = [token.tolist() for token in generate(model, tokens(batch=2, time=2), 6, greedy, stop=9)]
    assert made == [[5, 1], [9, 2], [9, 3], [9, 9]]
    never = Scripted([[5, 9, 1]]).eval()
    assert len(list(generate(never, tokens(batch=1, time=2), 3, greedy))) == 3


def test_unusable_prompt_is_refused_before_first_token(refused: Refused) -> None:
    with refused(ValueError):
        generate(decoder().eval(), torch.zeros(2, 0, dtype=torch.long), 3, greedy)
    with refused(ValueError):
        generate(decoder().train(), tokens(), 3, greedy)


def test_generation_keeps_no_gradients_and_restores_the_mode() -> None:
    model = decoder().eval()
    caches = caches_for(model)
    assert caches is not None
    for _ in generate(model, tokens(time=2), 2, greedy, caches):
        assert torch.is_grad_enabled()
    assert not caches[0].held[0].requires_grad
