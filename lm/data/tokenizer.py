"""Tokenizers, which turn text into token ids, through the `tokenizers` library.

A tokenizer is trained once per training split and settings, stored as `tokenizer.json`, and identified by its hash.
All but `Characters` work on the 256 bytes, each spelt as one character: nothing of the text is lost, not even spaces.
"""

import copy
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lm.config.tree import InputError
from lm.data.hub import load_pretrained
from lm.data.public import download_hint

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"
SPECIALS = ("<|begin|>", "<|end|>", "<|pad|>")  # begin, end and padding of a text, as a corpus of pairs needs them
# Mark of a WordPiece token inside a word; unlike ##, it is none of the characters that spell bytes.
CONTINUED = "\u2026"
RUN = re.compile(r"[^\W\d_]+|\d+|\s+|(?:[^\w\s]|_)+")
MAX_RUN = 20_000  # characters that BPE and Unigram take as one word; one of 100,000 takes them half a minute
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
MAX_WORD = 64  # characters of a WordPiece word; it searches the longest token anew at every byte, at a quadratic cost


class Tokenizer(ABC):
    """A method of cutting text into tokens; no text is ever cut into one of `specials`, which represent none."""

    specials: tuple[str, ...] = ()
    learns: ClassVar = True  # whether it depends on the text

    def with_specials(self, specials: Sequence[str] = SPECIALS) -> Self:
        """Return a copy with special tokens, which come after the vocabulary that it has without them."""
        changed = copy.copy(self)
        changed.specials = tuple(specials)
        return changed

    def train(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Train on the documents of the training split; special tokens are included."""
        tokenizer = self.learn(documents)
        tokenizer.add_special_tokens(list(self.specials))
        return tokenizer

    def end_of(self, trained: tokenizers.Tokenizer) -> int | None:
        """Return the token that ends a document; None without one."""
        return trained.token_to_id(END_OF_TEXT)

    @abstractmethod
    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Train without `specials`."""


class Characters(Tokenizer):
    """One token per character of the training split, and one for all other characters."""

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Return a tokenizer with one token for each character of the documents."""
        seen = np.zeros(sys.maxunicode + 1, dtype=bool)
        for document in documents:
            seen[np.frombuffer(document.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)] = True
        vocabulary = {UNKNOWN: 0} | {chr(code): i for i, code in enumerate(np.flatnonzero(seen).tolist(), 1)}
        tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        return tokenizer


class Bytes(Tokenizer):
    """One token per UTF-8 byte: 256 of them, nothing unknown, nothing trained."""

    learns = False

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Return a tokenizer with one token for each byte."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return _byte_level(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))


class Sized(Tokenizer):
    """A tokenizer with a vocabulary of `size` tokens, of which some are always there."""

    least: ClassVar[tuple[int, str]]

    def __init__(self, size: int = 1024) -> None:
        if size < self.least[0]:
            raise ValueError(f"size={size} must be at least {self.least[0]}: {self.least[1]}")
        self.size = size


class BPE(Sized):
    """Byte-level byte-pair encoding trained on the training split (Sennrich et al. 2016).

    Args:
        size: the vocabulary, the 256 bytes and the end-of-text token included.
    """

    least = 257, "256 bytes and the end of text"

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Learn byte-level merges from the documents."""
        return _train_on_bytes(models.BPE(), trainers.BpeTrainer, self.size, documents)


class Unigram(Sized):
    """The likeliest segmentation under a unigram model of byte strings (Kudo 2018, https://arxiv.org/abs/1804.10959).

    Training is not deterministic; what was trained first is kept.

    Args:
        size: the most tokens it may have, the 256 bytes and the end-of-text token included.
    """

    least = 258, "256 bytes, the end of text and one string of bytes"

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Learn a byte-level unigram model from the documents."""
        tokenizer = _train_on_bytes(models.Unigram(), trainers.UnigramTrainer, self.size, documents)
        trained = json.loads(tokenizer.to_str())
        # The library reads 17 digits a last bit off, but 9 decimals as written. Without any text it writes null.
        trained["model"]["vocab"] = [[token, round(score or 0.0, 9)] for token, score in trained["model"]["vocab"]]
        return tokenizers.Tokenizer.from_str(json.dumps(trained))


class WordPiece(Sized):
    """The longest token first, with other tokens inside a word than at its start (Schuster and Nakajima 2012).

    A word with a byte that training never saw at such a position is one unknown token. Training is not deterministic;
    what was trained first is kept.

    Args:
        size: the vocabulary, the unknown and the end-of-text token included.
    """

    least = 3, "the unknown, the end of text and one byte"

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Learn a byte-level WordPiece vocabulary from the documents."""
        _check_size(self.size, documents)
        model = models.WordPiece(
            unk_token=UNKNOWN, continuing_subword_prefix=CONTINUED, max_input_chars_per_word=MAX_WORD
        )
        tokenizer = _byte_level(model)
        shorter = pre_tokenizers.Split(tokenizers.Regex(f".{{1,{MAX_WORD}}}"), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, shorter])
        tokenizer.decoder = decoders.Sequence([decoders.Replace(CONTINUED, ""), tokenizer.decoder])
        settings: dict[str, Any] = {"vocab_size": self.size, "special_tokens": [UNKNOWN, END_OF_TEXT]}
        trainer = trainers.WordPieceTrainer(**settings, continuing_subword_prefix=CONTINUED, show_progress=False)
        tokenizer.train_from_iterator(documents, trainer)
        if tokenizer.get_vocab_size() > self.size:
            problem = f"need {tokenizer.get_vocab_size()} tokens, more than {self.size}"
            place = "the bytes of this text at the start of words and inside them"
            raise InputError(f"data.tokenizer.size: {place} {problem}")
        return tokenizer


class GPT2(Tokenizer):
    """GPT-2's byte-level vocabulary of 50,257 tokens, from its two files.

    Args:
        vocab: `encoder.json`, also called `vocab.json`.
        merges: `vocab.bpe`, also called `merges.txt`.
    """

    learns = False

    def __init__(self, vocab: str, merges: str) -> None:
        for name, value in (("vocab", vocab), ("merges", merges)):
            if not os.path.isfile(value):
                expected = f"expected GPT-2's encoder.json and vocab.bpe.{download_hint(value)}"
                raise ValueError(f"{name}={value!r} is no file; {expected}")
        self.vocab, self.merges = vocab, merges

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Read the vocabulary and merges from their files; nothing is learnt."""
        try:
            vocabulary, merges = models.BPE.read_file(self.vocab, self.merges)
        except Exception as error:  # the Rust side raises bare Exception
            files = f"{self.vocab} and {self.merges}"
            raise InputError(f"data.tokenizer: {files} are not a BPE vocabulary: {error}") from None
        tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=merges))
        tokenizer.add_special_tokens([END_OF_TEXT])
        return tokenizer


class Pretrained(Tokenizer):
    """The tokenizer of a published model, through `tokenizers`, or `AutoTokenizer` where it has no tokenizer.json.

    Args:
        path: a tokenizer.json, a folder, or a name on the Hugging Face hub such as `EleutherAI/pythia-70m`.
        revision: of a name: a commit, branch or tag; by default the commit that main had when it was first read here.
        end: the token that ends a document; by default the end of a sequence that the tokenizer itself names.
    """

    learns = False

    def __init__(self, path: str, revision: str | None = None, end: str | None = None) -> None:
        self.path, self.revision, self.end = path, revision, end

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Read the tokenizer; nothing is learnt."""
        tokenizer, settings = load_pretrained(self.path, self.revision)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        named = settings.get("eos_token")
        named = named.get("content") if isinstance(named, dict) else named
        ends = [self.end] if self.end is not None else [named, END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>"]
        self._end = next((end for end in ends if end and tokenizer.token_to_id(end) is not None), None)
        if self.end is not None and self._end is None:
            raise InputError(f"data.tokenizer.end: {self.path} has no token {self.end!r}")
        return tokenizer

    def end_of(self, trained: tokenizers.Tokenizer) -> int | None:
        """Return the token that ends a document."""
        return None if self._end is None else trained.token_to_id(self._end)

    def with_specials(self, specials: Sequence[str] = SPECIALS) -> Self:
        """Return a copy with special tokens, or itself if it says which of its tokens are those."""
        return self if _roles(self.learn(())) else super().with_specials(specials)


class Learnt(Tokenizer):
    """A tokenizer that has been trained, whose documents end with the token `end`."""

    is_choice = False
    learns = False

    def __init__(self, trained: tokenizers.Tokenizer, end: int | None) -> None:
        self.trained, self._end = trained, end

    def learn(self, documents: Iterable[str]) -> tokenizers.Tokenizer:
        """Return the tokenizer."""
        return self.trained

    def end_of(self, trained: tokenizers.Tokenizer) -> int | None:
        """Return the token that ends a document."""
        return self._end

    def with_specials(self, specials: Sequence[str] = SPECIALS) -> Self:
        """Return a copy with special tokens, or itself if it has them."""
        return self if special_ids(self.trained) else super().with_specials(specials)


def _roles(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the ids of special tokens that a tokenizer calls by other names, from its post-processor."""
    processor = json.loads(tokenizer.to_str())["post_processor"] or {}
    entries = processor.get("special_tokens", {})
    return {name: entries[name]["ids"][0] for name in SPECIALS if name in entries}


def special_ids(tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Return the ids of SPECIALS, none where the tokenizer has no such tokens."""
    ids = tokenizer.get_vocab() | _roles(tokenizer)
    return tuple(ids[name] for name in SPECIALS if name in ids)


def _check_size(size: int, documents: Iterable[str]) -> None:
    """Raise InputError for a vocabulary that the text cannot fill."""
    room = 512  # the smallest text may have so many
    for document in documents:
        if room >= size:
            return
        room += len(document.encode("utf-8", "surrogatepass"))
    if size > room:
        raise InputError(f"data.tokenizer.size: {size} tokens are more than the training text can fill, at most {room}")


def longest_run(document: str) -> int:
    """Return the characters of the longest word, number or gap in a document; 0 where none is near MAX_RUN."""
    near = MAX_RUN // 2
    for start in range(0, len(document), near):  # a longer one covers two such places
        run = RUN.match(document, start)
        if run is not None and len(run[0]) >= near:
            return max(map(len, RUN.findall(document)))
    return 0


def _train_on_bytes(model: models.Model, trainer: Any, size: int, documents: Iterable[str]) -> tokenizers.Tokenizer:
    """Train a byte-level model of `size` tokens by a class of trainers. Raises InputError for unsuitable text."""
    _check_size(size, documents)
    longest = max(map(longest_run, documents), default=0)
    if longest > MAX_RUN:  # over text without breaks training takes time quadratic in its length
        problem = f"the text has a word of {longest} characters, expected {MAX_RUN} at most"
        raise InputError(f"data.tokenizer: {problem}; use Characters, Bytes or WordPiece")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    settings = {"vocab_size": size, "initial_alphabet": alphabet, "special_tokens": [END_OF_TEXT]}
    tokenizer = _byte_level(model)
    tokenizer.train_from_iterator(documents, trainer(**settings, show_progress=False))
    return tokenizer


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unknown_token(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Return the token of unknown characters or words; None for a tokenizer without one."""
    own = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(UNKNOWN if tokenizer.token_to_id(UNKNOWN) is not None or own is None else own)


def vocabulary_of(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the size of the vocabulary: the highest token and one."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def token_bytes(tokenizer: tokenizers.Tokenizer) -> list[bytes]:
    """Return the bytes of text behind each token of the vocabulary: none of a special one, one of the unknown.

    One byte is the least that unknown text can be, so that bits per byte are never flattered.
    """
    decoder = json.dumps(json.loads(tokenizer.to_str())["decoder"], ensure_ascii=False)
    added, unknown = tokenizer.get_added_tokens_decoder(), unknown_token(tokenizer)
    # GPT-2's table: characters stand for the printable byte of the same number, from 256 on for the others in turn
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [ord(character) for character in alphabet if ord(character) < 256]
    table = dict(zip(alphabet, [*printable, *sorted(set(range(256)) - set(printable))], strict=True))

    def spelt(token: str) -> bytes:
        if '"ByteLevel"' in decoder and table.keys() >= set(token.removeprefix(CONTINUED)):
            return bytes(table[character] for character in token.removeprefix(CONTINUED))
        if '"ByteFallback"' in decoder and (byte := BYTE.fullmatch(token)):
            return bytes.fromhex(byte[1])
        token = token.replace("\u2581", " ") if "\u2581" in decoder else token
        return token.removeprefix("##" if '"WordPiece"' in decoder else "").encode("utf-8", "surrogatepass")

    spellings = [b""] * vocabulary_of(tokenizer)
    for token, index in tokenizer.get_vocab().items():
        if index == unknown:
            spellings[index] = b"?"
        elif index not in added:
            spellings[index] = spelt(token)
        elif not added[index].special:
            spellings[index] = token.encode()
    return spellings


def bytes_per_token(tokenizer: tokenizers.Tokenizer) -> np.ndarray:
    """Count the UTF-8 bytes of text behind each token of the vocabulary, shape (vocabulary,)."""
    return np.array([len(content) for content in token_bytes(tokenizer)], dtype=np.int64)
