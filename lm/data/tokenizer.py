"""From text to token ids, through the `tokenizers` library.

A tokenizer is trained once per training split and settings, stored as `tokenizer.json`, and known by its hash.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lm.config import InputError

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"


class Tokenizer(ABC):
    """A way of cutting text into tokens."""

    @abstractmethod
    def train(self, documents: Sequence[str]) -> tokenizers.Tokenizer:
        """The trained tokenizer; `documents` are those of the training split."""


class Characters(Tokenizer):
    """One token per character of the training split, and one for characters it never saw."""

    def train(self, documents: Sequence[str]) -> tokenizers.Tokenizer:
        alphabet = sorted(set().union(*documents))
        vocabulary = {UNKNOWN: 0} | {character: i for i, character in enumerate(alphabet, 1)}
        tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        return tokenizer


class Bytes(Tokenizer):
    """One token per UTF-8 byte: 256 of them, nothing unknown, nothing trained."""

    def train(self, documents: Sequence[str]) -> tokenizers.Tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return _byte_level(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]), use_regex=True)


class BPE(Tokenizer):
    """Byte-level byte-pair encoding trained on the training split (Sennrich et al. 2016).

    Args:
        size: the vocabulary, the 256 bytes and the end-of-text token included.
    """

    def __init__(self, size: int = 1024) -> None:
        if size < 257:
            raise ValueError(f"size={size} must be at least 257: 256 bytes and the end of text")
        self.size = size

    def train(self, documents: Sequence[str]) -> tokenizers.Tokenizer:
        tokenizer = _byte_level(models.BPE(), use_regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self.size,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[END_OF_TEXT],
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents, trainer)
        return tokenizer


class GPT2(Tokenizer):
    """GPT-2's byte-level vocabulary of 50,257 tokens, from its two files.

    Args:
        vocab: `encoder.json`, also called `vocab.json`.
        merges: `vocab.bpe`, also called `merges.txt`.
    """

    def __init__(self, vocab: str, merges: str) -> None:
        for name, value in (("vocab", vocab), ("merges", merges)):
            if not Path(value).is_file():
                raise ValueError(f"{name}={value!r} is no file; expected GPT-2's encoder.json and vocab.bpe")
        self.vocab = vocab
        self.merges = merges

    def train(self, documents: Sequence[str]) -> tokenizers.Tokenizer:
        try:
            vocabulary, merges = models.BPE.read_file(self.vocab, self.merges)
        except Exception as error:  # the Rust side raises bare Exception
            raise InputError(
                f"data.tokenizer: {self.vocab} and {self.merges} are not a BPE vocabulary: {error}"
            ) from None
        tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=merges), use_regex=True)
        tokenizer.add_special_tokens([END_OF_TEXT])
        return tokenizer


def _byte_level(model: models.BPE, use_regex: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, documents: Sequence[str]) -> np.ndarray:
    """All documents as one int64 array; each is followed by the end-of-text token if the tokenizer has one."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    tail = [] if end is None else [end]
    encoded = tokenizer.encode_batch_fast(list(documents), add_special_tokens=False)
    parts = [np.asarray([*encoding.ids, *tail], dtype=np.int64) for encoding in encoded]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def bytes_per_token(tokenizer: tokenizers.Tokenizer) -> np.ndarray:
    """UTF-8 bytes of text behind each token of the vocabulary, shape (vocabulary,).

    The end of text stands for no bytes. An unknown character counts as one byte, the least it can be, so that bits
    per byte are never flattered.
    """
    size = tokenizer.get_vocab_size()
    lengths = np.zeros(size, dtype=np.int64)
    byte_level = isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel)
    for token, index in tokenizer.get_vocab().items():
        if token == UNKNOWN:
            lengths[index] = 1
        elif token != END_OF_TEXT:  # byte-level vocabularies spell each byte as one character
            lengths[index] = len(token) if byte_level else len(token.encode("utf-8"))
    return lengths
