"""Text of known entropy: the lowest possible loss is known exactly."""

import itertools
import string
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from scipy.special import gammaincinv

from lm.config.domain import require_from, require_not_negative
from lm.data.corpus import SPLITS, Corpus, Splits

MAX_CONTEXTS = 4096  # contexts of a Markov chain; its stationary distribution is one dense system of as many equations
MAX_CHARACTERS = 10**8  # characters of a text, which is written in memory
MAX_DEPTH = 10_000  # brackets open at once; probabilities are kept for each depth
# Share of the uniform distribution in every row of a Markov chain, so that any letter may follow any context.
UNIFORM_SHARE = 0.01
BRACKETS = "()<>[]{}"

# s context (the last letters as one number), n next letter, d depth


def uniforms(stream: np.random.PCG64, count: int) -> np.ndarray:
    """Draw `count` numbers in [0, 1) from a generator whose raw bits are the same in every version of numpy."""
    return np.asarray((stream.random_raw(count) >> np.uint64(11)) * 2.0**-53)


class Source(Corpus):
    """A random process that writes one text a split; its letters are ASCII, one byte each, and sorted.

    Every text starts the process anew, so that validation and test are independent of the training text.
    """

    def __init__(self, alphabet: str, size: int, seed: int) -> None:
        require_from(1, MAX_CHARACTERS, size=size)
        require_not_negative(seed=seed)
        self.alphabet, self.size, self.seed = alphabet, size, seed

    def documents(self) -> Iterator[str]:
        """Yield one document of the whole size."""
        yield self.write(np.random.PCG64([self.seed, 1]), self.size)

    def splits(self, fractions: Sequence[float]) -> Splits:
        """Return one text per split, of exactly its share of the characters; none where that is no character."""
        stream = np.random.PCG64([self.seed, 1])
        ends = [0, *(round(share * self.size) for share in itertools.accumulate(fractions))]
        lengths = dict(zip(SPLITS, np.diff(ends).tolist(), strict=True))
        return {name: [self.write(stream, length)] if length else [] for name, length in lengths.items()}

    @abstractmethod
    def write(self, stream: np.random.PCG64, length: int) -> str:
        """Write a text of `length` characters; a longer one from the same stream begins with it."""

    @abstractmethod
    def entropy_rate(self) -> float:
        """Compute the nats per character that no predictor can undercut in a long text."""


class MarkovText(Source):
    """A random Markov chain over letters: a model needs only the last `order` characters to be perfect.

    Each row of probabilities is drawn from a symmetric Dirichlet distribution and mixed with a hundredth of the uniform
    one. A text starts in the stationary distribution, so that any segment of it follows the same law.

    Args:
        symbols: letters, from a on.
        order: characters that decide what the next may be.
        concentration: of the Dirichlet distribution; the smaller, the easier to predict.
        size: characters in all.
        seed: decides the chain and the text.
    """

    def __init__(
        self, symbols: int = 8, order: int = 1, concentration: float = 0.5, size: int = 1_000_000, seed: int = 0
    ) -> None:
        require_from(2, len(string.ascii_lowercase), symbols=symbols)
        if not 1 <= order < MAX_CONTEXTS.bit_length() or symbols**order > MAX_CONTEXTS:
            raise ValueError(f"order={order} must be at least 1, and {symbols}**order at most {MAX_CONTEXTS} contexts")
        if not 0.01 <= concentration <= 1e6:
            raise ValueError(f"concentration={concentration} must be from 0.01 (nearly certain) to 1e6 (uniform)")
        super().__init__(string.ascii_lowercase[:symbols], size, seed)
        self.symbols, self.order, self.concentration = symbols, order, concentration

    @cached_property
    def rows_sn(self) -> np.ndarray:
        """The probability of each next letter after each context."""
        shape = (self.symbols**self.order, self.symbols)
        stream = np.random.PCG64([self.seed, 0])
        first, second = np.maximum(uniforms(stream, 2 * shape[0] * shape[1]), 2.0**-54).reshape(2, *shape)
        # A gamma variable of shape c is one of shape c + 1 times U^(1/c); in logarithms nothing underflows.
        log_gamma = np.log(gammaincinv(self.concentration + 1, first)) + np.log(second) / self.concentration
        weights = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
        dirichlet = weights / weights.sum(axis=1, keepdims=True)
        return np.asarray((1 - UNIFORM_SHARE) * dirichlet + UNIFORM_SHARE / self.symbols)

    @cached_property
    def stationary_s(self) -> np.ndarray:
        """The share of each context in a long text."""
        contexts = len(self.rows_sn)
        # x (P - I) = 0 and x 1 = 1 together: x (I - P + 1 1') = 1'.
        system = np.ones((contexts, contexts))
        system[np.diag_indices(contexts)] += 1
        source = np.arange(contexts)[:, None]
        following = (source * self.symbols + np.arange(self.symbols)) % contexts  # the oldest letter drops out
        system[source, following] -= self.rows_sn
        solution = np.linalg.solve(system.T, np.ones(contexts))
        return np.asarray(solution / solution.sum())

    def write(self, stream: np.random.PCG64, length: int) -> str:
        """Draw a text of `length` letters from a random stream."""
        cumulative = np.cumsum(self.rows_sn, axis=1)[:, :-1].tolist()
        first, *rest = uniforms(stream, length).tolist()
        context = bisect_right(np.cumsum(self.stationary_s)[:-1].tolist(), first)
        letters = [context // self.symbols**power % self.symbols for power in reversed(range(self.order))]
        for number in rest[self.order - 1 :]:
            letter = bisect_right(cumulative[context], number)
            context = (context * self.symbols + letter) % len(cumulative)
            letters.append(letter)
        return "".join(map(self.alphabet.__getitem__, letters[:length]))

    def entropy_rate(self) -> float:
        """Return the entropy per letter in nats."""
        return float(-(self.stationary_s @ (self.rows_sn * np.log(self.rows_sn)).sum(axis=1)))


class BracketText(Source):
    """Brackets that match, nested at most `depth` deep: what closes next may have been opened long ago.

    A text starts with nothing open. With nothing open a bracket must open, at the greatest depth one must close.
    At every other depth one of a random kind opens with probability `opening`, or else the innermost closes.

    Args:
        kinds: of brackets: (), <>, [] and {}, in this order.
        opening: the probability that a bracket opens where it may also close.
        depth: the most brackets open at once.
        size: characters in all.
        seed: decides the text.
    """

    def __init__(
        self, kinds: int = 4, opening: float = 0.5, depth: int = 8, size: int = 1_000_000, seed: int = 0
    ) -> None:
        require_from(1, len(BRACKETS) // 2, kinds=kinds)
        if not 0 < opening < 1:
            raise ValueError(f"opening={opening} must be a probability above 0 and below 1")
        require_from(1, MAX_DEPTH, depth=depth)
        super().__init__(BRACKETS[: 2 * kinds], size, seed)
        self.kinds, self.opening, self.depth = kinds, opening, depth

    @cached_property
    def opening_d(self) -> np.ndarray:
        """The probability that the next bracket opens, with 0, 1, ... `depth` open."""
        return np.array([1.0, *[self.opening] * (self.depth - 1), 0.0])

    @cached_property
    def stationary_d(self) -> np.ndarray:
        """The share of positions in a long text with so many brackets open: depth goes up as often as down again."""
        log_ratios = np.log(self.opening_d[:-1]) - np.log1p(-self.opening_d[1:])
        log_shares = np.cumsum([0.0, *log_ratios])
        shares = np.exp(log_shares - log_shares.max())
        return np.asarray(shares / shares.sum())

    def write(self, stream: np.random.PCG64, length: int) -> str:
        """Draw a text of `length` letters from a random stream."""
        kinds = np.arange(1, self.kinds + 1) / self.kinds
        cumulative = np.outer(self.opening_d, kinds).tolist()
        letters, closing = list[str](), list[str]()
        for number in uniforms(stream, length).tolist():
            kind = bisect_right(cumulative[len(closing)], number)
            if kind == self.kinds:
                letters.append(closing.pop())
            else:
                letters.append(BRACKETS[2 * kind])
                closing.append(BRACKETS[2 * kind + 1])
        return "".join(letters)

    def entropy_rate(self) -> float:
        """Return the entropy per letter in nats."""
        opens, closes = self.opening_d[1:-1], 1 - self.opening_d[1:-1]
        choice = -(opens * np.log(opens) + closes * np.log(closes))
        kind = np.log(self.kinds) * self.opening_d
        return float(self.stationary_d @ kind + self.stationary_d[1:-1] @ choice)
