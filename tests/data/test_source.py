"""Text of known entropy: what it says about itself is true of what it writes, and of every text there could be."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import Refused
from scipy.special import digamma, entr

from lm.data.corpus import SPLITS, Corpus, LocalText
from lm.data.synthetic import BracketText, MarkovText, Source, uniforms
from lm.data.text import TextData
from lm.data.tokenizer import BPE, Bytes, Characters, Tokenizer

pytestmark = pytest.mark.usefixtures("cache")
SOURCES = [
    functools.partial(MarkovText, 4),
    functools.partial(MarkovText, 3, 2, 0.3),
    functools.partial(BracketText, 2, 0.6, 3),
    functools.partial(BracketText, 1, 0.5, 1),
    functools.partial(BracketText, 4, 0.3, 8),
]
every_source = pytest.mark.parametrize("make", SOURCES, ids=lambda make: f"{make.func.__name__}{make.args}")
Make = functools.partial[Any]


def text_of(source: Source) -> str:
    (text,) = source.documents()
    return text


def distribution(source: Source, history: str) -> np.ndarray:
    """The exact probability of each letter of the alphabet after a text."""
    if isinstance(source, MarkovText):
        context = sum(source.alphabet.index(letter) * source.symbols**i for i, letter in enumerate(history[::-1]))
        if len(history) >= source.order:
            return source.rows_sn[context % len(source.rows_sn)]
        shares = source.stationary_s.reshape(source.symbols ** (len(history) + 1), -1).sum(axis=1)
        joint = shares.reshape(-1, source.symbols)[context]
        return np.asarray(joint / joint.sum())
    assert isinstance(source, BracketText)
    unclosed: list[int] = []
    for letter in map(source.alphabet.index, history):
        if letter % 2:
            assert unclosed.pop() == letter - 1
        else:
            unclosed.append(letter)
    opens = source.opening_d[len(unclosed)]
    probability = np.tile([opens / source.kinds, 0.0], source.kinds)
    if unclosed:
        probability[unclosed[-1] + 1] = 1 - opens
    return probability


def log_likelihood(source: Source, text: str, memory: int) -> np.ndarray:
    """The log-probability of each character given as many before it as the process remembers."""
    after = functools.cache(functools.partial(distribution, source))
    if isinstance(source, BracketText):
        unclosed = list(itertools.accumulate(text, lambda o, x: o + x if x in "(<[{" else o[:-1], initial=""))
        histories = unclosed[:-1]
    else:
        histories = [text[max(0, place - memory) : place] for place in range(len(text))]
    letters = zip(histories, text, strict=True)
    return np.log([after(history)[source.alphabet.index(letter)] for history, letter in letters])


@every_source
def test_mean_log_likelihood_of_long_text_is_entropy_rate(make: Make) -> None:
    source = make(size=200_000, seed=2)
    found = -log_likelihood(source, text_of(source), memory=2)
    # blocks of 1000 are nearly independent, which neighbouring characters are not
    blocks = found.reshape(-1, 1000).mean(axis=1)
    error = blocks.std(ddof=1) / len(blocks) ** 0.5
    assert abs(found.mean() - source.entropy_rate()) < 4 * error + 1e-5


@pytest.mark.parametrize(("symbols", "order"), [(2, 1), (4, 1), (3, 2), (2, 4)])
def test_chain_entropy_rate_is_difference_of_block_entropies(symbols: int, order: int) -> None:
    source = MarkovText(symbols, order, seed=3)

    def block_entropy(length: int) -> float:
        texts = map("".join, itertools.product(source.alphabet, repeat=length))
        logs = np.array([log_likelihood(source, text, order).sum() for text in texts])
        return float(-(np.exp(logs) * logs).sum())

    assert source.entropy_rate() == pytest.approx(block_entropy(order + 2) - block_entropy(order + 1), abs=1e-12)


@pytest.mark.parametrize(("symbols", "order", "concentration"), [(5, 1, 0.5), (3, 3, 1.0), (8, 1, 0.01)])
def test_the_stationary_distribution_is_the_eigenvector_of_eigenvalue_one(
    symbols: int, order: int, concentration: float
) -> None:
    source = MarkovText(symbols, order, concentration)
    contexts = ["".join(letters) for letters in itertools.product(source.alphabet, repeat=order)]
    transition = np.zeros((len(contexts), len(contexts)))
    for context in contexts:
        for letter, share in zip(source.alphabet, distribution(source, context), strict=True):
            transition[contexts.index(context), contexts.index((context + letter)[1:])] += share
    values, vectors = np.linalg.eig(transition.T)
    vector = vectors[:, np.argmin(abs(values - 1))].real
    stationary = vector / vector.sum()
    np.testing.assert_allclose(source.stationary_s, stationary, rtol=0, atol=1e-12)
    rows = np.array([distribution(source, context) for context in contexts])
    assert source.entropy_rate() == pytest.approx(-(stationary[:, None] * rows * np.log(rows)).sum(), abs=1e-12)


@pytest.mark.parametrize(("kinds", "opening", "depth"), [(1, 0.5, 1), (2, 0.6, 3), (4, 0.3, 8), (3, 0.5, 2)])
def test_bracket_entropy_rate_is_mean_over_depths_of_walk(kinds: int, opening: float, depth: int) -> None:
    source = BracketText(kinds, opening, depth)
    deepest = "(" * depth
    rows = [distribution(source, deepest[:level]) for level in range(depth + 1)]
    entropies = [-sum(share * np.log(share) for share in row if share > 0) for row in rows]
    transition = np.zeros((depth + 1, depth + 1))
    for level, row in enumerate(rows):
        for letter, share in zip(source.alphabet, row, strict=True):
            if share > 0:
                transition[level, level + (1 if letter in "(<[{" else -1)] += share
    # the chain has period 2: two steps on, it never settles, but the mean of two neighbouring times does
    law = np.linalg.matrix_power(transition, 20_000)[0]
    mean = (law + law @ transition) / 2
    np.testing.assert_allclose(source.stationary_d, mean, rtol=0, atol=1e-10)
    assert source.entropy_rate() == pytest.approx(float(mean @ entropies), abs=1e-10)


def test_a_bracket_source_without_a_choice_has_no_entropy() -> None:
    source = BracketText(1, 0.5, 1, size=10)
    assert source.entropy_rate() == 0
    assert text_of(source) == "()()()()()"


@pytest.mark.parametrize("concentration", [0.01, 0.1, 0.5, 3.0])
def test_rows_have_the_moments_and_entropy_of_a_dirichlet(concentration: float) -> None:
    letters = 12
    rows = (MarkovText(letters, 3, concentration, seed=1).rows_sn - 0.01 / letters) / 0.99
    variance = (1 / letters) * (1 - 1 / letters) / (letters * concentration + 1)
    assert rows.shape == (letters**3, letters)
    assert abs(rows.mean(axis=0) - 1 / letters).max() < 5 * (variance / letters**3) ** 0.5
    assert rows.var() == pytest.approx(variance, rel=0.05)
    entropies = entr(rows.clip(0, 1)).sum(axis=1)
    expected = digamma(letters * concentration + 1) - digamma(concentration + 1)
    assert abs(entropies.mean() - expected) < 5 * entropies.std() / letters**1.5


@pytest.mark.parametrize("history", ["", "a", "c", "ab", "ba", "cc"])
def test_letters_after_history_follow_distribution(history: str) -> None:
    source = MarkovText(3, 2, 0.5, size=400_000, seed=4)
    text = text_of(source)
    apart = 20  # so far apart that one place says nothing about the next
    places = [i for i in range(0, len(text) - apart, apart) if text.startswith(history, i)]
    following = [source.alphabet.index(text[i + len(history)]) for i in places]
    counts = np.bincount(following, minlength=3)
    expected = distribution(source, history)
    assert len(places) > 500
    allowed = 5 * np.sqrt(expected * (1 - expected) / len(places))
    assert (abs(counts / len(places) - expected) < allowed).all()


def test_brackets_after_depth_follow_distribution() -> None:
    source = BracketText(3, 0.4, 3, size=60_000, seed=4)
    counts: dict[str, np.ndarray] = {}
    unclosed = ""
    for letter in text_of(source):
        counts.setdefault(unclosed, np.zeros(6))[source.alphabet.index(letter)] += 1
        unclosed = unclosed + letter if letter in "(<[" else unclosed[:-1]
    assert len(counts) == 1 + 3 + 9 + 27
    for history, found in counts.items():
        expected = distribution(source, history)
        assert (found[expected == 0] == 0).all()
        if found.sum() > 300:
            allowed = 5 * np.sqrt(expected * (1 - expected) / found.sum())
            assert (abs(found / found.sum() - expected) <= allowed).all()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kinds", "opening", "depth"), [(1, 0.9, 2), (4, 0.5, 8), (4, 0.9, 5), (2, 0.1, 40)])
def test_brackets_always_match_and_never_nest_too_deep(kinds: int, opening: float, depth: int, seed: int) -> None:
    splits = BracketText(kinds, opening, depth, size=20_000, seed=seed).splits((0.5, 0.3, 0.2))
    for (text,) in splits.values():
        closing: list[str] = []
        deepest = 0
        for letter in text:
            if letter in "([{<":
                closing.append({"(": ")", "[": "]", "{": "}", "<": ">"}[letter])
            else:
                assert closing.pop() == letter
            deepest = max(deepest, len(closing))
        assert deepest <= depth
        assert len(set(text)) == 2 * kinds


@every_source
def test_the_seed_alone_decides_the_text(make: Make) -> None:
    texts = [text_of(make(size=500, seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 500
    if make().entropy_rate() > 0:
        assert texts[0] != texts[2]


def test_the_seed_draws_the_chain_too() -> None:
    rates = [MarkovText(seed=seed).entropy_rate() for seed in (0, 0, 1, 2)]
    assert rates[0] == rates[1]
    assert len(set(rates)) == 3


@every_source
def test_longer_text_begins_with_shorter_of_same_seed(make: Make) -> None:
    assert text_of(make(size=300)) == text_of(make(size=400))[:300]
    assert make(size=300).entropy_rate() == make(size=400).entropy_rate()


def test_the_first_texts_of_seed_zero_are_these() -> None:
    """Pinned: results of many machines and years are compared on them."""
    assert text_of(MarkovText(size=32)) == "hchhaegahcabbggcgdbbbedchcaecged"
    assert text_of(BracketText(size=32)) == "{}{}(<>())((<>)<>[([[]{<>{<[]>}{"


def test_uniforms_are_those_of_numpy() -> None:
    expected = np.random.Generator(np.random.PCG64([3, 1])).random(1000)
    np.testing.assert_array_equal(uniforms(np.random.PCG64([3, 1]), 1000), expected)


@every_source
@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.25, 0.25), (0.8, 0.2, 0.0), (0.333, 0.333, 0.334)])
def test_each_split_is_one_text_of_exactly_its_share(make: Make, fractions: tuple[float, ...]) -> None:
    splits = make(size=2000).splits(fractions)
    assert tuple(splits) == SPLITS
    for name, share in zip(SPLITS, fractions, strict=True):
        assert [len(text) for text in splits[name]] == ([round(share * 2000)] if share else [])
    assert splits["train"][0] == text_of(make(size=2000))[: len(splits["train"][0])]


def test_validation_is_fresh_text() -> None:
    splits = MarkovText(size=20_000).splits((0.4, 0.4, 0.2))
    train, validation = splits["train"][0], splits["validation"][0]
    agreement = np.mean([a == b for a, b in zip(train, validation, strict=True)])
    assert agreement < 0.3
    assert not {train[i : i + 20] for i in range(len(train))} & {validation[i : i + 20] for i in range(0, 7980, 20)}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (MarkovText, {"symbols": 1}),
        (MarkovText, {"symbols": 27}),
        (MarkovText, {"order": 0}),
        (MarkovText, {"order": 5}),
        (MarkovText, {"order": 10**12}),
        (MarkovText, {"concentration": 0.0}),
        (MarkovText, {"concentration": float("nan")}),
        (MarkovText, {"size": 0}),
        (MarkovText, {"seed": -1}),
        (BracketText, {"kinds": 0}),
        (BracketText, {"kinds": 5}),
        (BracketText, {"opening": 0.0}),
        (BracketText, {"opening": 1.0}),
        (BracketText, {"depth": 0}),
        (BracketText, {"size": 0}),
        (BracketText, {"seed": -1}),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(
    kind: type[Source], settings: dict[str, Any], refused: Refused
) -> None:
    with refused(ValueError):
        kind(**settings)


def data_of(corpus: Corpus, tokenizer: Tokenizer) -> TextData:
    data = TextData(0, corpus, tokenizer, 8, 4, (0.8, 0.1, 0.1))
    data.setup()
    return data


@pytest.mark.parametrize("source", [MarkovText(5, size=3000), BracketText(size=3000)])
def test_token_id_is_index_of_character_in_alphabet(source: Source) -> None:
    data = data_of(source, Characters())
    assert data.facts is not None
    assert data.tokens is not None
    assert data.facts.vocabulary == len(source.alphabet) + 1  # with the unknown character
    assert data.facts.unknown == dict.fromkeys(SPLITS, 0)
    (text,) = source.splits(data.split)["train"]
    np.testing.assert_array_equal(data.tokens.split["train"], [source.alphabet.index(letter) + 1 for letter in text])
    assert data.entropy_per_token() == source.entropy_rate()


def test_entropy_per_token_needs_character_tokens_of_known_source(tmp_path: Path) -> None:
    source = MarkovText(size=3000)
    assert data_of(source, Bytes()).entropy_per_token() == source.entropy_rate()
    assert data_of(source, BPE(260)).entropy_per_token() is None
    (tmp_path / "text.txt").write_text("some words\n" * 100)
    local = LocalText(str(tmp_path / "text.txt"), document="line")
    assert local.entropy_rate() is None
    assert data_of(local, Characters()).entropy_per_token() is None


def test_entropy_per_token_is_unknown_with_unseen_letters() -> None:
    class Late(MarkovText):
        def splits(self, fractions: Any) -> dict[str, list[str]]:
            return {"train": ["a" * 100], "validation": ["b" * 20], "test": ["a" * 20]}

    assert data_of(Late(2, size=140), Characters()).entropy_per_token() is None
