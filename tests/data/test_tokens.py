"""The cache of token ids: the text it was made from, once, whoever asks first."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Listed, Patch, splits_of
from tokenizers import Tokenizer as Trained
from tokenizers import models, normalizers, pre_tokenizers

from lm.config.tree import InputError
from lm.data import cache, encoding, shards
from lm.data.cache import cache_folder
from lm.data.corpus import SPLITS, LocalText
from lm.data.encoding import cuts_alike
from lm.data.tokenizer import BPE, END_OF_TEXT, GPT2, UNKNOWN, Bytes, Characters, Learnt, Tokenizer
from lm.data.tokens import TextStats, Tokens, prepare

pytestmark = pytest.mark.usefixtures("cache")
FRACTIONS = (0.6, 0.2, 0.2)
TEXTS = [f"document {i}: naïve café 日本 {'xyz' * (i % 7)}\n" for i in range(40)]


def tokenizer_of(cache: Path) -> Trained:
    """The tokenizer of the one text in the cache."""
    (path,) = cache.glob("tokens/*/tokenizer.json")
    return Trained.from_file(str(path))


@pytest.mark.parametrize("kind", [Characters(), Bytes(), BPE(300)], ids=lambda kind: type(kind).__name__)
def test_the_mapped_ids_decode_to_the_documents_of_each_split(cache: Path, kind: Tokenizer) -> None:
    tokens, splits = Tokens(prepare(Listed(TEXTS), kind, FRACTIONS)), splits_of(Listed(TEXTS), FRACTIONS)
    decode = tokenizer_of(cache).decode
    end = END_OF_TEXT if isinstance(kind, BPE) else ""
    for name in SPLITS:
        assert isinstance(tokens.split[name], np.memmap)
        assert not tokens.split[name].flags.writeable
        text = decode(tokens.split[name].tolist(), skip_special_tokens=False)
        assert text == "".join(document + end for document in splits[name])


def test_the_facts_count_documents_tokens_bytes_and_unknown_characters() -> None:
    texts = ["abca", "ab", "aé🙂", "é"]  # train: 4 + 2 characters of 10
    facts = prepare(Listed(texts), Characters(), (0.6, 0.3, 0.1))
    assert facts.documents == {"train": 2, "validation": 1, "test": 1}
    assert facts.tokens == {"train": 6, "validation": 3, "test": 1}
    assert facts.bytes == {"train": 6, "validation": 7, "test": 2}
    assert facts.unknown == {"train": 0, "validation": 2, "test": 1}
    assert facts.vocabulary == len({*"abc", UNKNOWN})


def test_an_empty_split_is_an_empty_array() -> None:
    tokens = Tokens(prepare(Listed(["aaaa", "b"]), Characters(), (0.5, 0.5, 0.0)))
    assert (len(tokens.split["train"]), len(tokens.split["validation"]), len(tokens.split["test"])) == (4, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "kind"), [(2**16 - 1, np.uint16), (2**16, np.uint32)])
def test_ids_are_as_wide_as_the_vocabulary_asks(size: int, kind: type) -> None:
    text = "".join(chr(0x10000 + i) for i in range(size))  # and one for the unknown
    tokens = Tokens(prepare(Listed([text, text[-1]]), Characters(), (0.9, 0.1, 0.0)))
    assert tokens.split["train"].dtype == kind
    assert np.array_equal(tokens.split["train"], np.arange(1, size + 1))
    assert tokens.split["validation"].tolist() == [size]


def test_the_cache_is_filled_once_and_read_after_that(monkeypatch: Patch) -> None:
    first = prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    monkeypatch.setattr(BPE, "train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr("lm.data.tokens._write_entry", lambda *_: pytest.fail("encoded again"))
    assert prepare(Listed(TEXTS), BPE(300), FRACTIONS) == first


@pytest.mark.slow
def test_text_split_and_tokenizer_have_cache_entries_each() -> None:
    found = [
        prepare(Listed(TEXTS), Bytes(), FRACTIONS),
        prepare(Listed(TEXTS[1:]), Bytes(), FRACTIONS),
        prepare(Listed(TEXTS), Bytes(), (0.5, 0.3, 0.2)),
        prepare(Listed(TEXTS), Characters(), FRACTIONS),
        prepare(Listed(TEXTS), BPE(300), FRACTIONS),
        prepare(Listed(TEXTS), BPE(301), FRACTIONS),
    ]
    assert len({facts.folder for facts in found}) == len(found)
    assert len({json.dumps(facts.identity()) for facts in found}) == len(found)


def test_identity_of_text_does_not_depend_on_path(tmp_path: Path, monkeypatch: Patch) -> None:
    identities = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{place}.txt").write_text("".join(TEXTS))
        monkeypatch.setenv("LM_CACHE", str(tmp_path / place / "cache"))
        corpus = LocalText(str(tmp_path / place / "*.txt"), document="line")
        identities.append(prepare(corpus, BPE(300), FRACTIONS).identity())
    assert identities[0] == identities[1]


def test_a_vocabulary_changed_on_disk_is_read_anew(tmp_path: Path) -> None:
    vocabulary, merges = tmp_path / "encoder.json", tmp_path / "vocab.bpe"
    gpt2 = {character: i for i, character in enumerate(Bytes().train([]).get_vocab())}
    vocabulary.write_text(json.dumps({**gpt2, "ab": 256}))
    merges.write_text("#version: 0.2\n")
    texts = ["ababab", "ab", "ab"]
    plain = prepare(Listed(texts), GPT2(str(vocabulary), str(merges)), FRACTIONS)
    merges.write_text("#version: 0.2\na b\n")
    merged = prepare(Listed(texts), GPT2(str(vocabulary), str(merges)), FRACTIONS)
    assert (plain.tokens["train"], merged.tokens["train"]) == (6 + 1, 3 + 1)
    assert plain.tokenizer != merged.tokenizer


def test_an_interrupted_write_leaves_nothing_and_is_repeated(cache: Path, monkeypatch: Patch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lm.data.tokens.to_json", killed)  # the last file
        with pytest.raises(KeyboardInterrupt):
            prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    assert [path.name for path in (cache / "tokens").iterdir() if path.is_dir()] == []
    tokens = Tokens(prepare(Listed(TEXTS), Bytes(), FRACTIONS))
    assert len(tokens.split["train"]) == tokens.facts.tokens["train"]


def test_text_that_is_not_unicode_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": "\\ud800"}\n{"text": "abc"}\n')
    with pytest.raises(InputError):
        prepare(LocalText(str(tmp_path / "a.jsonl")), Characters(), FRACTIONS)


def test_the_cache_is_where_the_environment_says(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "y"))
    assert cache_folder() == tmp_path / "y"
    monkeypatch.setenv("LM_CACHE", "")
    assert cache_folder() == tmp_path / "x" / "lm"


STARTER = """
import json, sys, time
from dataclasses import asdict
from pathlib import Path

import lm.data.tokens
from lm.data.corpus import LocalText
from lm.data.tokenizer import BPE

folder, number = Path(sys.argv[1]), sys.argv[2]


class Counted(BPE):
    def train(self, documents):
        (folder / f"trained-{number}").touch()
        time.sleep(0.3)
        return super().train(documents)


def counted(*arguments, write=lm.data.tokens._write_entry):
    (folder / f"encoded-{number}").touch()
    time.sleep(0.3)
    write(*arguments)


lm.data.tokens._write_entry = counted
(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
facts = lm.data.tokens.prepare(LocalText(str(folder / "text.txt"), document="line"), Counted(300), (0.6, 0.2, 0.2))
print(json.dumps(asdict(facts)))
"""


@pytest.mark.slow
def test_processes_that_start_together_fill_the_cache_once(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(TEXTS))
    command = [sys.executable, "-P", "-c", STARTER, str(tmp_path)]
    started = [
        subprocess.Popen(
            [*command, str(number)], stdout=subprocess.PIPE, text=True, env={**os.environ, "LM_CACHE": str(cache)}
        )
        for number in range(4)
    ]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < len(started) and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    found: list[dict[str, Any]] = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    assert all(facts == found[0] for facts in found)
    assert len(list(tmp_path.glob("trained-*"))) == 1
    assert len(list(tmp_path.glob("encoded-*"))) == 1
    tokens = Tokens(TextStats(**found[0]))
    text = tokenizer_of(cache).decode(tokens.split["train"].tolist())
    assert "".join(TEXTS).startswith(text)
    assert text


def test_a_text_resumed_from_other_files_has_every_token_once(tmp_path: Path, monkeypatch: Patch) -> None:
    """Parts of a text depend on its files, so that so many of one source are not so many of another."""
    texts = [f"{i} {'abcdefg ' * 4000}" for i in range(12)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02}.txt").write_text(text)
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    monkeypatch.setattr(shards, "SHARD_TOKENS", 60_000)
    monkeypatch.setattr(encoding, "TABLE_BATCH", 30_000)
    monkeypatch.setattr(cache, "KEPT_BYTES", 1)
    commit, commits = shards.ShardWriter.commit, list[object]()

    def counted(self: shards.ShardWriter, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        commits.append(arguments)
        if len(commits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(shards.ShardWriter, "commit", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare(LocalText(str(tmp_path / "*.txt")), Bytes(), FRACTIONS)
    facts = prepare(LocalText(str(tmp_path / "all.jsonl")), Bytes(), FRACTIONS)
    assert facts.tokens == facts.bytes


def prefixing() -> Trained:
    """As Llama 2 has it: each text begins with a mark of a space."""
    trained = Trained(models.BPE({"\u2581": 0, **{letter: i for i, letter in enumerate("abcd.\n ", 1)}}, []))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return trained


def metaspace() -> Trained:
    trained = prefixing()
    trained.normalizer, trained.pre_tokenizer = None, pre_tokenizers.Metaspace(prepend_scheme="always")
    return trained


def paragraphs() -> Trained:
    trained = prefixing()
    trained.normalizer, trained.pre_tokenizer = None, pre_tokenizers.Split("\n\n", "isolated")
    return trained


@pytest.mark.parametrize("make", [prefixing, metaspace, paragraphs])
def test_documents_are_encoded_whole_where_a_cut_would_show(make: Callable[[], Trained], monkeypatch: Patch) -> None:
    monkeypatch.setattr(encoding, "PART", 100)
    text = "ab cd. ab\n" * 200
    for wrapped in (Learnt(make(), None), Learnt(BPE(300).train([text]), None)):
        tokens = Tokens(prepare(Listed([text, text, text]), wrapped, FRACTIONS))
        assert tokens.split["train"].tolist() == 2 * wrapped.trained.encode(text, add_special_tokens=False).ids
    assert [cuts_alike(make()), cuts_alike(BPE(300).train([text]))] == [False, True]


@pytest.mark.parametrize("state", ["v1", {"version": 1}, [1, 2]])
def test_the_state_of_a_users_corpus_is_any_json(state: Any) -> None:
    class Mine(Listed):
        def state(self) -> Any:
            return state

    assert prepare(Mine(TEXTS), Bytes(), FRACTIONS) == prepare(Mine(TEXTS), Bytes(), FRACTIONS)
