"""Text of known entropy: the lowest possible loss and the probability of every character are known exactly."""

import itertools
import string
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from scipy.special import gammaincinv

from lm.data.corpus import SPLITS, Corpus, Splits

MAX_CONTEXTS = 4096
"""Contexts of a Markov chain; its stationary distribution is one dense system of as many equations."""

MAX_CHARACTERS = 10**8
"""Characters of a text, which is written in memory."""

MAX_DEPTH = 10_000
"""Brackets open at once; probabilities are kept for each depth."""

UNIFORM_SHARE = 0.01
"""Share of the uniform distribution in every row of a Markov chain, so that any letter may follow any context."""

BRACKETS = "()<>[]{}"

# s context (the last letters as one number), n next letter, d depth, k kind of bracket or closing, t time


def uniforms(stream: np.random.PCG64, count: int) -> np.ndarray:
    """Draw `count` numbers in [0, 1) from a generator whose raw bits are the same in every version of numpy."""
    return np.asarray((stream.random_raw(count) >> np.uint64(11)) * 2.0**-53)


class Source(Corpus):
    """A random process that writes one text a split; its letters are ASCII, one byte each.

    Every text starts the process anew, so that validation and test are independent of the training text.

    Args:
        alphabet: its letters, sorted, so that `Characters` numbers them from 1 in this order.
        size: characters in all.
        seed: decides the text and whatever of the process is drawn.
    """

    def __init__(self, alphabet: str, size: int, seed: int) -> None:
        if not 1 <= size <= MAX_CHARACTERS:
            raise ValueError(f"size={size} must be from 1 to {MAX_CHARACTERS:,} characters")
        if seed < 0:
            raise ValueError(f"seed={seed} must be 0 or more")
        self.alphabet = alphabet
        self.size = size
        self.seed = seed

    def documents(self) -> Iterator[str]:
        """Yield one document of the whole size."""
        yield self.write(np.random.PCG64([self.seed, 1]), self.size)

    def splits(self, fractions: Sequence[float]) -> Splits:
        """Return one text per split, of exactly its share of the characters; none where that is no character."""
        stream = np.random.PCG64([self.seed, 1])
        ends = [0, *(round(share * self.size) for share in itertools.accumulate(fractions))]
        lengths = dict(zip(SPLITS, np.diff(ends).tolist(), strict=True))
        return {name: [self.write(stream, length)] if length else [] for name, length in lengths.items()}

    def codes(self, text: str) -> np.ndarray:
        """Return the indices of a text's letters in the alphabet. Raises ValueError for a letter outside it."""
        table = np.full(128, -1)
        table[np.frombuffer(self.alphabet.encode(), dtype=np.uint8)] = np.arange(len(self.alphabet))
        codes = table[np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)]
        wrong = np.flatnonzero(codes < 0)
        if len(wrong):
            raise ValueError(f"text[{wrong[0]}]={text[wrong[0]]!r} must be one of {self.alphabet}")
        return codes

    @abstractmethod
    def write(self, stream: np.random.PCG64, length: int) -> str:
        """Write a text of `length` characters; a longer one from the same stream begins with it."""

    @abstractmethod
    def entropy_rate(self) -> float:
        """Compute the nats per character that no predictor can undercut in a long text."""

    @abstractmethod
    def distribution(self, history: str) -> np.ndarray:
        """Compute the exact probability of each letter of the alphabet after a text, shape (letters,)."""

    @abstractmethod
    def log_likelihood(self, text: str) -> np.ndarray:
        """Compute the log-probability of each character given those before it, in nats, shape (characters,).

        Raises:
            ValueError: for a text that the process cannot write.
        """


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
        if not 2 <= symbols <= len(string.ascii_lowercase):
            raise ValueError(f"symbols={symbols} must be from 2 to {len(string.ascii_lowercase)} letters")
        if not 1 <= order < MAX_CONTEXTS.bit_length() or symbols**order > MAX_CONTEXTS:
            raise ValueError(f"order={order} must be at least 1, and {symbols}**order at most {MAX_CONTEXTS} contexts")
        if not 0.01 <= concentration <= 1e6:
            raise ValueError(f"concentration={concentration} must be from 0.01 (nearly certain) to 1e6 (uniform)")
        super().__init__(string.ascii_lowercase[:symbols], size, seed)
        self.symbols = symbols
        self.order = order
        self.concentration = concentration

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
        system[source, self.following(source, np.arange(self.symbols))] -= self.rows_sn
        solution = np.linalg.solve(system.T, np.ones(contexts))
        return np.asarray(solution / solution.sum())

    def following(self, context: np.ndarray, letter: np.ndarray) -> np.ndarray:
        """Return the context after a letter: the oldest letter drops out."""
        return (context * self.symbols + letter) % self.symbols**self.order

    def shares(self, length: int) -> np.ndarray:
        """Compute the probability of each sequence of `length` letters, at most `order`, as one number each."""
        return self.stationary_s.reshape(self.symbols**length, -1).sum(axis=1)

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

    def distribution(self, history: str) -> np.ndarray:
        """Return the probability of each letter after a history."""
        context = 0
        for letter in self.codes(history[-self.order :]).tolist():
            context = context * self.symbols + letter
        if len(history) >= self.order:
            return self.rows_sn[context].copy()
        joint = self.shares(len(history) + 1).reshape(-1, self.symbols)[context]
        return np.asarray(joint / joint.sum())

    def log_likelihood(self, text: str) -> np.ndarray:
        """Return the log probability of each letter of a text in nats."""
        letters = self.codes(text)
        log_probability = np.zeros(len(letters))
        for index in range(min(self.order, len(letters))):
            log_probability[index] = np.log(self.distribution(text[:index])[letters[index]])
        contexts = np.zeros(max(len(letters) - self.order, 0), dtype=np.int64)
        for index in range(self.order):
            contexts = contexts * self.symbols + letters[index : index + len(contexts)]
        log_probability[self.order :] = np.log(self.rows_sn)[contexts, letters[self.order :]]
        return log_probability


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
        if not 1 <= kinds <= len(BRACKETS) // 2:
            raise ValueError(f"kinds={kinds} must be from 1 to {len(BRACKETS) // 2} kinds of brackets")
        if not 0 < opening < 1:
            raise ValueError(f"opening={opening} must be a probability above 0 and below 1")
        if not 1 <= depth <= MAX_DEPTH:
            raise ValueError(f"depth={depth} must be from 1 to {MAX_DEPTH:,} open brackets")
        super().__init__(BRACKETS[: 2 * kinds], size, seed)
        self.kinds = kinds
        self.opening = opening
        self.depth = depth

    @cached_property
    def opening_d(self) -> np.ndarray:
        """The probability that the next bracket opens, with 0, 1, ... `depth` open."""
        return np.array([1.0, *[self.opening] * (self.depth - 1), 0.0])

    @cached_property
    def stationary_d(self) -> np.ndarray:
        """The share of positions in a long text that have this many brackets open before them.

        Depth goes up as often as it comes down again, which fixes the ratio of neighbours.
        """
        log_ratios = np.log(self.opening_d[:-1]) - np.log1p(-self.opening_d[1:])
        log_shares = np.cumsum([0.0, *log_ratios])
        shares = np.exp(log_shares - log_shares.max())
        return np.asarray(shares / shares.sum())

    def write(self, stream: np.random.PCG64, length: int) -> str:
        """Draw a text of `length` letters from a random stream."""
        kinds = np.arange(1, self.kinds + 1) / self.kinds
        cumulative = np.outer(self.opening_d, kinds).tolist()
        letters: list[str] = []
        closing: list[str] = []
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

    def distribution(self, history: str) -> np.ndarray:
        """Return the probability of each letter after a history."""
        self.log_likelihood(history)
        unclosed: list[int] = []
        for letter in self.codes(history).tolist():
            if letter % 2:
                unclosed.pop()
            else:
                unclosed.append(letter)
        opens = self.opening_d[len(unclosed)]
        probability = np.zeros(2 * self.kinds)
        probability[::2] = opens / self.kinds
        if unclosed:
            probability[unclosed[-1] + 1] = 1 - opens
        return probability

    def log_likelihood(self, text: str) -> np.ndarray:
        """Return the log probability of each letter of a text in nats."""
        letters_t = self.codes(text)
        closes_t = letters_t % 2 == 1
        after_t = np.cumsum(1 - 2 * closes_t)
        before_t = after_t - 1 + 2 * closes_t
        self._check(text, letters_t, closes_t, before_t)
        with np.errstate(divide="ignore"):  # log 0 at the smallest and largest depth, never selected
            opened_d = np.log(self.opening_d) - np.log(self.kinds)
            closed_d = np.log1p(-self.opening_d)
        return np.where(closes_t, closed_d[before_t], opened_d[before_t])

    def _check(self, text: str, letters_t: np.ndarray, closes_t: np.ndarray, before_t: np.ndarray) -> None:
        """Raise ValueError at the first bracket that is not allowed where it is."""
        level_t = before_t + ~closes_t  # that a bracket opens or closes; on one level the two take turns
        order = np.argsort(level_t, kind="stable")
        partner_t = np.full(len(letters_t), -1)
        partner_t[order[1:]] = letters_t[order[:-1]]
        unmatched_t = closes_t & (partner_t != letters_t - 1)
        wrong = np.flatnonzero(unmatched_t | (level_t < 1) | (level_t > self.depth))
        if len(wrong):
            raise ValueError(
                f"text[{wrong[0]}]={text[wrong[0]]!r} must close the innermost open bracket, or open at most the "
                f"{self.depth}th"
            )
