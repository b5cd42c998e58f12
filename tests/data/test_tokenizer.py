"""Text to ids and back, and the bytes behind each id."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import Listed, known
from messages import CheckMessage, Refused
from tokenizers import Tokenizer as Trained
from tokenizers import decoders, models, normalizers

from lm.config.choices import choices
from lm.config.tree import InputError
from lm.data.encoding import Encoder, EncodingBatch
from lm.data.tokenizer import (
    BPE,
    CONTINUED,
    END_OF_TEXT,
    GPT2,
    SPECIALS,
    UNKNOWN,
    Bytes,
    Characters,
    Pretrained,
    Tokenizer,
    Unigram,
    WordPiece,
    bytes_per_token,
)
from lm.data.tokens import prepare
from lm.inference.generate import TextStream

TEXT = "naïve café\r\n日本語 🙂\t<unk> the the then\n\n  x_1=+2\x00\u2028é"
KINDS = [Characters(), Bytes(), BPE(300)]
"""Those that are trained to the same model every time."""

EVERY = [*KINDS, Unigram(300), WordPiece(200)]


def encode(tokenizer: Trained, documents: list[str]) -> np.ndarray:
    """The ids of documents, each with its end."""
    return Encoder(tokenizer, np.uint32, tokenizer.token_to_id(END_OF_TEXT))(
        EncodingBatch("train", documents, [True] * len(documents), 0, 0)
    )


def trained(kind: Tokenizer) -> Trained:
    return kind.train([TEXT, "another document"])


def spelt(tokenizer: Trained, ids: np.ndarray) -> str:
    return tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
def test_ids_decode_to_the_text_letter_for_letter(kind: Tokenizer) -> None:
    tokenizer = trained(kind)
    assert spelt(tokenizer, encode(tokenizer, [TEXT])).removesuffix(END_OF_TEXT) == TEXT


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_training_twice_gives_the_same_tokenizer(kind: Tokenizer) -> None:
    assert trained(kind).to_str() == trained(kind).to_str()


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
def test_a_trained_tokenizer_survives_its_file(kind: Tokenizer, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = Trained.from_file(str(tmp_path / "tokenizer.json"))
    assert again.to_str() == tokenizer.to_str()
    assert np.array_equal(encode(again, [TEXT, "x"]), encode(tokenizer, [TEXT, "x"]))
    assert np.array_equal(bytes_per_token(again), bytes_per_token(tokenizer))


def test_characters_are_numbered_in_code_point_order_after_the_unknown() -> None:
    tokenizer = Characters().train(["ba", "cé"])
    assert tokenizer.get_vocab() == {UNKNOWN: 0, "a": 1, "b": 2, "c": 3, "é": 4}
    assert encode(tokenizer, ["abc", "é"]).tolist() == [1, 2, 3, 4]


def test_a_character_never_seen_is_one_unknown_token() -> None:
    tokenizer = Characters().train(["ab"])
    assert encode(tokenizer, ["a🙂b\nz"]).tolist() == [1, 0, 2, 0, 0]


def test_the_word_for_unknown_is_plain_text_to_characters() -> None:
    tokenizer = Characters().train(["<unk> "])
    assert 0 not in encode(tokenizer, ["<unk> <unk>"])


def test_bytes_are_the_utf8_bytes() -> None:
    tokenizer = Bytes().train([])
    assert tokenizer.get_vocab_size() == 256
    everything = "".join(map(chr, range(0x0, 0x800))) + "日🙂"
    ids, found = encode(tokenizer, [everything]), list(everything.encode())
    assert len(ids) == len(found)
    assert len(set(zip(ids.tolist(), found, strict=True))) == len(set(found)) == len(set(ids.tolist()))


def test_bpe_keeps_to_size_and_merges_frequent_pairs() -> None:
    tokenizer = BPE(260).train(["the then them " * 20])
    assert tokenizer.get_vocab_size() == 260
    assert len(encode(tokenizer, ["the"])) - 1 < 3
    assert tokenizer.token_to_id("th") is not None or tokenizer.token_to_id("he") is not None


def test_bpe_without_merges_is_256_bytes_and_end_of_text() -> None:
    tokenizer = BPE(257).train([TEXT])
    assert tokenizer.get_vocab_size() == 257
    assert len(encode(tokenizer, [TEXT])) == len(TEXT.encode()) + 1


def test_each_document_ends_with_end_of_text_token() -> None:
    with_end, without = BPE(300).train(["ab"]), Characters().train(["ab"])
    end = with_end.token_to_id(END_OF_TEXT)
    documents = ["ab", "b", "aa"]
    lengths = [len(encode(with_end, [document])) for document in documents]
    assert np.flatnonzero(encode(with_end, documents) == end).tolist() == [n - 1 for n in np.cumsum(lengths)]
    assert encode(without, documents).tolist() == [1, 2, 2, 1, 1]
    assert encode(with_end, []).tolist() == []


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
def test_the_bytes_behind_the_tokens_add_up_to_the_text(kind: Tokenizer) -> None:
    tokenizer = trained(kind)
    for text in (TEXT, "é", "🙂🙂", "plain"):
        if isinstance(kind, WordPiece) and text not in TEXT:
            continue
        known = text if type(kind) is not Characters else "".join(c for c in text if c in TEXT)
        assert bytes_per_token(tokenizer)[encode(tokenizer, [known])].sum() == len(known.encode())


def test_every_tokenizer_is_tested_here() -> None:
    assert {type(kind) for kind in EVERY} | {GPT2, Pretrained} == set(choices(Tokenizer).values())


def test_an_unknown_character_counts_as_one_byte() -> None:
    tokenizer = Characters().train(["ab"])
    assert bytes_per_token(tokenizer)[encode(tokenizer, ["a🙂"])].tolist() == [1, 1]


@pytest.fixture(scope="module")
def gpt2(shared: Path) -> Trained:
    return GPT2(str(shared / "gpt2" / "encoder.json"), str(shared / "gpt2" / "vocab.bpe")).train([])


def test_gpt2_has_50257_tokens_and_the_end_of_text_last(gpt2: Trained) -> None:
    assert gpt2.get_vocab_size() == 50257
    assert gpt2.token_to_id(END_OF_TEXT) == 50256


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [15496, 995]),
        (" Hello, world!", [18435, 11, 995, 0]),
        ("The quick brown fox jumps over the lazy dog.", [464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13]),
    ],
)
def test_gpt2_gives_the_published_ids(gpt2: Trained, text: str, ids: list[int]) -> None:
    assert encode(gpt2, [text]).tolist() == [*ids, 50256]


def test_gpt2_decodes_to_the_text_and_counts_its_bytes(gpt2: Trained) -> None:
    ids = encode(gpt2, [TEXT])
    assert spelt(gpt2, ids).removesuffix(END_OF_TEXT) == TEXT
    assert bytes_per_token(gpt2)[ids].sum() == len(TEXT.encode())


def test_gpt2_without_its_files_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with refused(ValueError):
        GPT2(str(path), "nowhere")


def test_files_that_are_no_vocabulary_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    (tmp_path / "a").write_text("no json")
    with pytest.raises(InputError) as caught:
        GPT2(str(tmp_path / "a"), str(tmp_path / "a")).train([])
    check_message(str(caught.value).split(": ")[:2])  # behind it, what the library says


def test_unigram_starts_from_the_bytes_and_learns_what_is_frequent() -> None:
    tokenizer = Unigram(300).train(["the then them other " * 50])
    assert set(Bytes().train([]).get_vocab()) <= set(tokenizer.get_vocab())
    assert 257 < tokenizer.get_vocab_size() <= 300
    assert len(encode(tokenizer, ["the"])) - 1 < 3


@pytest.mark.parametrize("size", [258, 300, 512])
def test_unigram_has_no_more_tokens_than_asked_for(size: int) -> None:
    assert Unigram(size).train([TEXT, "another document"]).get_vocab_size() <= size


def test_no_text_is_unknown_to_unigram() -> None:
    tokenizer = Unigram(258).train([])
    everything = "".join(map(chr, range(0x0, 0x800))) + "日🙂"
    ids = encode(tokenizer, [everything])[:-1]
    assert spelt(tokenizer, ids) == everything
    assert bytes_per_token(tokenizer)[ids].sum() == len(everything.encode())


def test_wordpiece_takes_the_longest_token_first() -> None:
    tokenizer = WordPiece(30).train(["abc ab ab " * 20])
    tokens = [tokenizer.id_to_token(i) for i in encode(tokenizer, ["abc ab"])]
    assert tokens[-1] == END_OF_TEXT
    assert tokens[0] == "abc"
    inside = [tokenizer.id_to_token(i) for i in encode(tokenizer, ["abcab"])]
    assert inside[0] == "abc"
    assert len(inside) > 2
    assert all(known(token).startswith(CONTINUED) for token in inside[1:-1])


def test_marks_of_comments_are_text_to_wordpiece() -> None:
    """With ## as the mark, a comment's ## and the inside of a word would share tokens."""
    text = "# ## ### #### a## ##a #a #"
    tokenizer = WordPiece(60).train([text])
    for part in ("##", "###", "a##", "##a", text):
        ids = encode(tokenizer, [part])[:-1]
        assert spelt(tokenizer, ids) == part
        assert bytes_per_token(tokenizer)[ids].sum() == len(part)


def test_wordpiece_word_with_unseen_byte_is_one_unknown_token() -> None:
    tokenizer = WordPiece(50).train(["ab abc"])
    ids = encode(tokenizer, ["ab ab\u00e9z abc"])
    unknown = tokenizer.token_to_id(UNKNOWN)
    assert (ids == unknown).sum() == 1
    assert bytes_per_token(tokenizer)[ids].sum() == len("ab") + 1 + len(" abc")


def test_overlong_word_is_cut_without_loss() -> None:
    text = "x" * 1000 + " " * 300 + "-" * 65
    tokenizer = WordPiece(60).train([text])
    ids = encode(tokenizer, [text])
    assert tokenizer.token_to_id(UNKNOWN) not in ids
    assert spelt(tokenizer, ids) == text + END_OF_TEXT
    assert bytes_per_token(tokenizer)[ids].sum() == len(text)


def test_wordpiece_smaller_than_the_bytes_is_refused(refused: Refused) -> None:
    with refused():
        WordPiece(9).train([TEXT])
    for kind, least in ((WordPiece, 3), (BPE, 257), (Unigram, 258)):
        with refused(ValueError):
            kind(least - 1)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
def test_special_tokens_come_last_without_bytes_and_are_saved(kind: Tokenizer, tmp_path: Path) -> None:
    plain, tokenizer = trained(kind), trained(kind.with_specials())
    size = tokenizer.get_vocab_size()
    assert [tokenizer.token_to_id(name) for name in SPECIALS] == [size - 3, size - 2, size - 1]
    assert all(plain.token_to_id(name) is None for name in SPECIALS)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = Trained.from_file(str(tmp_path / "tokenizer.json"))
    assert again.to_str() == tokenizer.to_str()
    for each in (tokenizer, again):
        assert [each.token_to_id(name) for name in SPECIALS] == [size - 3, size - 2, size - 1]
        assert bytes_per_token(each)[-3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
def test_no_text_is_cut_into_a_special_token(kind: Tokenizer) -> None:
    text = f"a {END_OF_TEXT}{''.join(SPECIALS)} {UNKNOWN} b"
    tokenizer = kind.with_specials().train([text * 3, TEXT])
    ids = encode(tokenizer, [text])
    body = ids[:-1] if tokenizer.token_to_id(END_OF_TEXT) is not None else ids
    special = [tokenizer.token_to_id(name) for name in (*SPECIALS, END_OF_TEXT, UNKNOWN)]
    assert not set(special) & set(body.tolist())
    assert spelt(tokenizer, body) == text
    assert bytes_per_token(tokenizer)[body].sum() == len(text)


def test_asking_for_special_tokens_leaves_the_tokenizer_as_it_was() -> None:
    kind = BPE(300)
    assert kind.with_specials(["<|x|>"]).specials == ("<|x|>",)
    assert kind.specials == ()
    assert vars(kind) == {"size": 300}, "what the cache knows a tokenizer without special tokens by"
    assert vars(kind.with_specials()) == {"size": 300, "specials": SPECIALS}


@pytest.mark.extra
@pytest.mark.parametrize("name", ["Unigram", "WordPiece"])
def test_a_second_process_gets_the_same_trained_tokenizer(name: str, tmp_path: Path) -> None:
    """Two trainings of these give two vocabularies, so a corpus and settings must be trained on once."""
    (tmp_path / "text.txt").write_text(Path(subprocess.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    program = f"""
from lm.data.corpus import LocalText
from lm.data.tokenizer import {name}
from lm.data.tokens import prepare
facts = prepare(LocalText({str(tmp_path / "text.txt")!r}, document="line"), {name}(400), (0.8, 0.1, 0.1))
print(facts.folder, facts.tokenizer, facts.vocabulary)
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "LM_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(3)
    ]
    assert found[0] == found[1] == found[2]
    assert len(list((tmp_path / "cache" / "tokenizers").glob("*/tokenizer.json"))) == 1


def llama_like(path: Path) -> Path:
    """Write a tokenizer as converters of SentencePiece's do: a letter for spaces, tokens for bytes."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *"abcdehlorw\n",
        "he",
        "lo",
    ]
    made = Trained(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("h", "e"), ("l", "o")], byte_fallback=True)
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()],
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.enable_truncation(4)
    made.enable_padding(length=9)
    path.mkdir(exist_ok=True)
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    return path


def test_a_pretrained_tokenizer_is_read_from_its_file_or_folder(tmp_path: Path) -> None:
    folder, text = llama_like(tmp_path / "llama"), "hello world\nnaïve"
    for path in (folder, folder / "tokenizer.json"):
        kind = Pretrained(str(path))
        tokenizer = kind.train(())
        end = kind.end_of(tokenizer)
        assert end == 2
        ids = Encoder(tokenizer, np.uint32, end)(EncodingBatch("train", [text], [True], 0, 0))
        assert tokenizer.decode(ids.tolist()) == text
        assert ids[-1] == end
        assert bytes_per_token(tokenizer)[ids].sum() == len(text.encode())
        stream = TextStream(tokenizer)
        assert "".join(stream.add(token) for token in ids.tolist()) == text


def test_a_pretrained_tokenizer_is_known_by_its_hash(tmp_path: Path, cache: Path) -> None:
    texts = [f"hello {i}\n" for i in range(30)]
    folder = llama_like(tmp_path / "llama")
    facts = prepare(Listed(texts), Pretrained(str(folder)), (0.6, 0.2, 0.2))
    assert (facts.end_of_text, facts.vocabulary) == (2, 273)
    assert sum(facts.tokens.values()) == sum(len(text) - 2 + 1 for text in texts)  # he, lo and the end
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    assert prepare(Listed(texts), Pretrained(str(folder)), (0.6, 0.2, 0.2)).tokenizer != facts.tokenizer


def test_a_tokenizer_that_cannot_be_loaded_is_one_line(
    tmp_path: Path, refused: Refused, check_message: CheckMessage
) -> None:
    (tmp_path / "a.json").write_text("{}")
    for path in (tmp_path / "a.json", tmp_path, tmp_path / "none"):
        with pytest.raises(InputError) as caught:
            Pretrained(str(path)).train(())
        assert "\n" not in str(caught.value)
        check_message([str(caught.value).partition(" (")[0], str(caught.value).rpartition("); ")[2]])
    with refused():
        Pretrained(str(llama_like(tmp_path / "llama")), end="<end>").train(())


@pytest.mark.slow
def test_auto_tokenizer_reads_what_has_no_tokenizer_json(tmp_path: Path, shared: Path) -> None:
    for name, source in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / name).write_bytes((shared / "gpt2" / source).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    kind, own = Pretrained(str(tmp_path)), GPT2(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    loaded, expected = kind.train(()), own.train(())
    assert kind.end_of(loaded) == own.end_of(expected) == 50256
    assert loaded.encode(TEXT, add_special_tokens=False).ids == expected.encode(TEXT, add_special_tokens=False).ids
    assert np.array_equal(bytes_per_token(loaded), bytes_per_token(expected))
