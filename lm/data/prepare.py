"""From a corpus and a tokenizer to token ids in the cache, by the kind of the corpus."""

from collections.abc import Sequence
from dataclasses import replace

from lm.data import tokens
from lm.data.corpus import Corpus
from lm.data.hub import HubText
from lm.data.streaming import prepare_stream
from lm.data.tokenizer import Tokenizer
from lm.data.tokens import TextStats


def prepare(corpus: Corpus, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    """Fill the cache with the ids of a corpus, unless it is filled, and return their statistics."""
    corpus.pin()
    if isinstance(corpus, HubText) and corpus.streaming:
        return prepare_stream(corpus, tokenizer, fractions)
    facts = tokens.prepare(corpus, tokenizer, fractions)
    return facts if corpus.revision is None else replace(facts, revision=corpus.revision)
