"""Text to ids and back, and the bytes behind each id."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Trained

from lm.config import InputError
from lm.data.tokenizer import BPE, END_OF_TEXT, GPT2, UNKNOWN, Bytes, Characters, Tokenizer, bytes_per_token, encode
from lm.metrics.tokens import TokenStatistics

TEXT = "naïve café\r\n日本語 🙂\t<unk> the the then\n\n  x_1=+2\x00\u2028é"
KINDS = [Characters(), Bytes(), BPE(300)]


def trained(kind: Tokenizer) -> Trained:
    return kind.train([TEXT, "another document"])


def spelt(tokenizer: Trained, ids: np.ndarray) -> str:
    return tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_ids_decode_to_the_text_letter_for_letter(kind: Tokenizer) -> None:
    tokenizer = trained(kind)
    assert spelt(tokenizer, encode(tokenizer, [TEXT])).removesuffix(END_OF_TEXT) == TEXT


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_training_twice_gives_the_same_tokenizer(kind: Tokenizer) -> None:
    assert trained(kind).to_str() == trained(kind).to_str()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
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


def test_bpe_has_no_more_tokens_than_asked_for_and_merges_what_is_frequent() -> None:
    tokenizer = BPE(260).train(["the then them " * 20])
    assert tokenizer.get_vocab_size() == 260
    assert len(encode(tokenizer, ["the"])) - 1 < 3
    assert tokenizer.token_to_id("th") is not None or tokenizer.token_to_id("he") is not None


def test_bpe_without_a_merge_is_the_256_bytes_and_the_end_of_text() -> None:
    tokenizer = BPE(257).train([TEXT])
    assert tokenizer.get_vocab_size() == 257
    assert len(encode(tokenizer, [TEXT])) == len(TEXT.encode()) + 1


def test_bpe_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="size=256 must be at least 257"):
        BPE(256)


def test_each_document_ends_in_the_end_of_text_where_there_is_one() -> None:
    with_end, without = BPE(300).train(["ab"]), Characters().train(["ab"])
    end = with_end.token_to_id(END_OF_TEXT)
    documents = ["ab", "b", "aa"]
    lengths = [len(encode(with_end, [document])) for document in documents]
    assert np.flatnonzero(encode(with_end, documents) == end).tolist() == [n - 1 for n in np.cumsum(lengths)]
    assert encode(without, documents).tolist() == [1, 2, 2, 1, 1]
    assert encode(with_end, []).tolist() == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_the_bytes_behind_the_tokens_add_up_to_the_text(kind: Tokenizer) -> None:
    tokenizer = trained(kind)
    for text in (TEXT, "é", "🙂🙂", "plain"):
        known = text if type(kind) is not Characters else "".join(c for c in text if c in TEXT)
        assert bytes_per_token(tokenizer)[encode(tokenizer, [known])].sum() == len(known.encode())


def test_an_unknown_character_counts_as_one_byte() -> None:
    tokenizer = Characters().train(["ab"])
    assert bytes_per_token(tokenizer)[encode(tokenizer, ["a🙂"])].tolist() == [1, 1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_bits_per_byte_divide_by_the_bytes_of_the_text(kind: Tokenizer) -> None:
    tokenizer = trained(kind)
    ids = torch.from_numpy(encode(tokenizer, [TEXT]))
    size = tokenizer.get_vocab_size()
    statistics = TokenStatistics(torch.from_numpy(bytes_per_token(tokenizer)))
    statistics.update(torch.zeros(len(ids), size, dtype=torch.float64), ids)
    expected = len(ids) * math.log2(size) / len(TEXT.encode())
    assert statistics.compute()["bits_per_byte"] == pytest.approx(expected, rel=1e-12)


# GPT-2


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


def test_gpt2_without_its_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"merges='nowhere' is no file; expected GPT-2's encoder\.json and vocab\.bpe"):
        GPT2(str(path), "nowhere")


def test_files_that_are_no_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no json")
    with pytest.raises(InputError, match="are not a BPE vocabulary"):
        GPT2(str(tmp_path / "a"), str(tmp_path / "a")).train([])
