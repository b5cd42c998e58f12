"""Several corpora with weights: one entry of the cache, whose ids are those of the corpora's entries."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.config.components import build, resolve
from lm.config.plain import shown
from lm.config.tree import run_id
from lm.data import cache, tokens
from lm.data.corpus import SPLITS, Corpus
from lm.data.hub import HubText
from lm.data.shards import segments_of, write_segments
from lm.data.splits import SplitText, TextFacts, text_facts
from lm.data.streaming import beginning, prepare_stream
from lm.data.token_files import TokenFiles, prepare_tokens
from lm.data.tokenizer import Learnt, Tokenizer
from lm.data.tokens import MIXTURE, TextStats, TrainingText
from lm.store.files import to_json

MAX_CORPORA = 8
NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass
class _Corpus:
    """A corpus of a mixture, as a root of a configuration."""

    corpus: Corpus


class Mixture(Corpus):
    """Several corpora: each block of training is of one of them, drawn by the weights; NLL is measured on each.

    Args:
        corpora: corpora by name, `{web: {class_path: HubText, init_args: {...}}, code: ...}`.
        weights: the share of each in training, and of what is evaluated where that is drawn from more, of any sum; by
            default in proportion to their tokens.
    """

    def __init__(self, corpora: dict[str, Any], weights: dict[str, float] | None = None) -> None:
        if not 2 <= len(corpora) <= MAX_CORPORA or not all(NAME.fullmatch(name) for name in corpora):
            raise ValueError(f"corpora={shown(list(corpora))} must be 2 to {MAX_CORPORA} names of letters and digits")
        if weights is not None and (weights.keys() != corpora.keys() or not all(w > 0 for w in weights.values())):
            raise ValueError(f"weights={weights} must be numbers above 0 for {', '.join(corpora)}")
        path = "data.corpus.corpora"
        self.corpora: dict[str, Corpus] = {}
        for name, node in corpora.items():
            resolved = resolve({"corpus": node}, _Corpus, f"{path}.{name}")
            self.corpora[name] = build(resolved, _Corpus, f"{path}.{name}").corpus
        self.weights = weights

    def documents(self) -> Iterator[str]:
        """Yield the documents of all corpora."""
        return (text for corpus in self.corpora.values() for text in corpus.documents())


class _Chained:
    """Documents of several corpora, again at each pass."""

    def __init__(self, parts: Sequence[Iterable[str]]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[str]:
        return (text for part in self.parts for text in part)


def prepare(corpus: Corpus, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    """Fill the cache with the ids of a corpus of any kind, unless it is filled, and return their statistics."""
    corpus.pin()
    if isinstance(corpus, Mixture):
        return _prepare_mixture(corpus, tokenizer, fractions)
    if isinstance(corpus, TokenFiles):
        return prepare_tokens(corpus, tokenizer, fractions)
    if isinstance(corpus, HubText) and corpus.streaming:
        return prepare_stream(corpus, tokenizer, fractions)
    return replace(tokens.prepare(corpus, tokenizer, fractions), revision=corpus.revision)


def has_own_splits(corpus: Corpus, fractions: Sequence[float]) -> bool:
    """Return True if a source has splits of its own, of which that for the test may be missing."""
    if isinstance(corpus, Mixture):
        return all(has_own_splits(part, fractions) for part in corpus.corpora.values())
    if isinstance(corpus, TokenFiles):
        return corpus.paths["validation"] is not None
    return not (isinstance(corpus, HubText) and corpus.streaming) and corpus.split_pieces(fractions) is not None


def _training_documents(corpus: Corpus, tokenizer: Tokenizer, fractions: Sequence[float]) -> tuple[str, Iterable[str]]:
    """Return a name of the text that a tokenizer learns from, and its documents."""
    corpus.pin()
    if isinstance(corpus, HubText) and corpus.streaming:
        return beginning(corpus, fractions)
    text = SplitText(corpus, fractions)
    return text_facts(text).fingerprint, TrainingText(text, tokenizer)


def _prepare_mixture(corpus: Mixture, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    if tokenizer.learns:
        texts = [_training_documents(part, tokenizer, fractions) for part in corpus.corpora.values()]
        name = run_id(["mixture", [text for text, _ in texts]])
        trained = tokens.train_tokenizer(tokenizer, _Chained([documents for _, documents in texts]), name)
    else:
        trained = tokenizer.train(())
    learnt = Learnt(trained, tokenizer.end_of(trained))
    parts = {name: prepare(part, learnt, fractions) for name, part in corpus.corpora.items()}
    weights: Mapping[str, float] = corpus.weights or {name: part.tokens[SPLITS[0]] for name, part in parts.items()}
    shares = {name: weights[name] / sum(weights.values()) for name in parts}
    name = run_id(["mixture", [[name, shares[name], part.fingerprint] for name, part in parts.items()]])
    counted = {
        field: {split: sum(getattr(part, field)[split] for part in parts.values()) for split in SPLITS}
        for field in ("documents", "bytes")
    }
    _, facts = tokens.describe_entry("tokens", TextFacts(name, counted["documents"], counted["bytes"]), (), learnt)
    folder = Path(facts.folder)

    def write(building: Path) -> None:
        segments = {split: [segments_of(Path(part.folder), split) for part in parts.values()] for split in SPLITS}
        write_segments(
            building, {split: [segment for part in of for segment in part] for split, of in segments.items()}
        )
        mixture = {"weights": shares, "segments": {split: list(map(len, of)) for split, of in segments.items()}}
        (building / MIXTURE).write_text(to_json(mixture), encoding="utf-8")
        tokens.finish_entry(building, trained, facts)

    cache.ensure_entry(folder, facts.stored(), write)
    stored = cache.stored_json(folder / cache.FACTS)
    revisions = {name: str(part.revision) for name, part in parts.items() if part.revision is not None}
    return replace(facts, tokens=stored["tokens"], unknown=stored["unknown"], revision=revisions or None)


def pin_revision(node: dict[str, Any], revision: str | Mapping[str, str]) -> None:
    """Write the commits that were read into the configuration of a corpus."""
    if isinstance(revision, str):
        node["init_args"]["revision"] = revision
        return
    for name, commit in revision.items():
        part = node["init_args"]["corpora"][name]
        part.setdefault("init_args", {})
        pin_revision(part, commit)
