"""Text read in pieces: the splits, the fingerprint and the tokens of the same text in memory, whatever its size."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from helpers import Patch, joined
from messages import CheckMessage

from lm.config.tree import InputError
from lm.data import cache, encoding, shards, splits, text_files
from lm.data.cache import verify
from lm.data.corpus import SPLITS, Corpus, LocalText, Splits, fingerprint
from lm.data.encoding import Encoder, EncodingBatch, cut_safely
from lm.data.splits import SplitText, text_facts
from lm.data.text_files import Piece
from lm.data.tokenizer import BPE, END_OF_TEXT, Bytes, Characters, Tokenizer, WordPiece
from lm.data.tokens import Tokens, prepare

pytestmark = pytest.mark.usefixtures("cache")
SHARES = ((0.9, 0.05, 0.05), (0.5, 0.25, 0.25), (0.8, 0.2, 0.0), (0.3, 0.3, 0.4))


class Pieced(Corpus):
    """Documents that come in random pieces."""

    def __init__(self, texts: list[str], seed: int) -> None:
        self.texts, self.seed = texts, seed

    def documents(self) -> Iterator[str]:
        yield from self.texts

    def pieces(self) -> Iterator[Piece]:
        draw = random.Random(self.seed)
        for text in self.texts:
            while len(text) > 3 and draw.random() < 0.8:
                size = draw.randint(0, 3)
                yield text[:size], False
                text = text[size:]
            yield text, True


def split_documents(documents: Sequence[str], fractions: Sequence[float]) -> Splits:
    """Splits by shares of all characters, in order, without cutting a document."""
    bounds = np.cumsum(fractions) * sum(map(len, documents)) - 1e-9
    splits: Splits = {name: [] for name in SPLITS}
    position, current = 0, 0
    for document in documents:
        while current < len(SPLITS) - 1 and position >= bounds[current]:
            current += 1
        splits[SPLITS[current]].append(document)
        position += len(document)
    return splits


def expected_splits(texts: Sequence[str], fractions: Sequence[float]) -> Splits:
    """What a text in memory would be split into; one document alone is cut at the ends of lines."""
    documents = [text for text in texts if text]
    if len(documents) > 1:
        return split_documents(documents, fractions)
    lines = split_documents(documents[0].splitlines(keepends=True), fractions)
    return {name: ["".join(part)] if part else [] for name, part in lines.items()}


@pytest.mark.parametrize("alphabet", ["abc\n", "a\n\r\v\f\x1c\x85é\u2028 🙂"], ids=["lines", "every kind of line end"])
def test_text_in_pieces_has_splits_and_fingerprint_of_the_whole(alphabet: str) -> None:
    for seed in range(500):
        draw = random.Random(seed)
        texts = ["".join(draw.choices(alphabet, k=draw.randint(0, 30))) for _ in range(draw.choice([1, 1, 2, 3, 8]))]
        fractions = draw.choice(SHARES)
        corpus = Pieced(texts, seed)
        text = SplitText(corpus, fractions)
        if not any(texts):
            with pytest.raises(InputError):
                text.facts()
            continue
        expected = expected_splits(texts, fractions)
        facts = text.facts()
        assert joined(text) == expected
        assert facts.fingerprint == fingerprint(expected)
        assert facts.documents == {name: len(documents) for name, documents in expected.items()}
        assert facts.bytes == {name: len("".join(documents).encode()) for name, documents in expected.items()}


@pytest.mark.parametrize("document", ["file", "line", "paragraph"])
@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_chunks_of_a_file_make_no_difference(tmp_path: Path, monkeypatch: Patch, document: str, chunk: int) -> None:
    text = "ab é\r\n\r\ncd\n\n\nef🙂\x85gh\r\n\ni"
    (tmp_path / "a.txt").write_bytes(text.encode())
    corpus = LocalText(str(tmp_path / "a.txt"), document=document)  # type: ignore[arg-type]
    expected = list(corpus.documents())
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    assert [text for text in corpus.documents() if text] == expected


def archive(kind: str, members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
    else:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: bytes(pyarrow.compress(data, codec="zstd", asbytes=True)),
}


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_files_and_files_in_archives_read_as_plain_ones(tmp_path: Path, kind: str) -> None:
    lines = b"".join(json.dumps({"text": f"text {i}"}).encode() + b"\n" for i in range(3))
    members = {"a.jsonl": lines, f"b.jsonl{kind}": PACKED[kind](lines), "deep/c.txt": b"plain"}
    for name, content in (
        (f"one.jsonl{kind}", PACKED[kind](lines)),
        ("some.zip", archive("zip", members)),
        (f"some.tar{kind}", PACKED[kind](archive("tar", members))),
    ):
        (tmp_path / name).write_bytes(content)
    three = [f"text {i}" for i in range(3)]
    assert list(LocalText(str(tmp_path / f"one.jsonl{kind}")).documents()) == three
    for name in ("some.zip", f"some.tar{kind}"):
        assert list(LocalText(str(tmp_path / name)).documents()) == [*three, *three, "plain"]


def test_a_damaged_archive_is_one_line(tmp_path: Path, check_message: CheckMessage) -> None:
    for name in ("a.zip", "a.tar", "a.txt.xz", "a.txt.zst", "a.txt.bz2"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InputError) as caught:
            list(LocalText(str(tmp_path / name)).documents())
        check_message(str(caught.value).partition(" (")[0])  # behind it, what the library says


TEXT = "The cat's 12 hats,\nand  more\n\n\tof them!\n" * 40 + "x" * 300 + " y\r\nz " * 50


@pytest.mark.parametrize(
    "kind", [BPE(300), WordPiece(100), Characters(), Bytes()], ids=lambda kind: type(kind).__name__
)
def test_parts_of_a_document_have_the_tokens_of_the_whole(kind: Tokenizer) -> None:
    trained = kind.train([TEXT])
    encoder = Encoder(trained, np.uint16, trained.token_to_id(END_OF_TEXT))
    whole = EncodingBatch("train", [TEXT], [True], 0, 0)
    expected = trained.encode(TEXT, add_special_tokens=False).ids + ([encoder.end] if encoder.end is not None else [])
    assert encoder(whole).tolist() == expected
    for size in range(1, 60):
        parts = list(cut_safely([("train", TEXT, True)], size, encoder.places))
        assert len(parts) > 5
        texts, ends = [text for _, text, _ in parts], [last for *_, last in parts]
        assert "".join(texts) == TEXT
        assert encoder(EncodingBatch("train", texts, ends, 0, 0)).tolist() == expected


@pytest.mark.parametrize("kind", [Characters(), Bytes()], ids=lambda kind: type(kind).__name__)
def test_a_table_gives_the_ids_of_the_library(kind: Tokenizer) -> None:
    text = "".join(map(chr, [*range(0x500), *range(0x2000, 0x2100), *range(0x1F600, 0x1F610)]))
    trained = kind.train([text[::2]])
    encoder = Encoder(trained, np.uint16, trained.token_to_id(END_OF_TEXT))
    assert encoder.is_table
    for part in (text, text[:90]):
        ids = encoder(EncodingBatch("train", [part], [True], 0, 0))
        assert ids.tolist() == trained.encode(part, add_special_tokens=False).ids


@pytest.mark.slow
def test_a_killed_build_is_taken_up_where_it_was(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {i} of some\n" for i in range(4000)))
    corpus = LocalText(str(tmp_path / "a.txt"))
    monkeypatch.setattr(encoding, "BATCH", 500)
    monkeypatch.setattr(encoding, "PART", 100)
    encode, calls = Encoder.__call__, list[int]()

    def counted(self: Encoder, portion: EncodingBatch) -> np.ndarray:
        calls.append(portion.parts)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return encode(self, portion)

    monkeypatch.setattr(Encoder, "__call__", counted)
    stop = -1
    with monkeypatch.context() as patch:
        patch.setenv("LM_CACHE", str(tmp_path / "whole"))
        whole = prepare(corpus, BPE(300), (0.6, 0.2, 0.2))
        expected = {name: np.asarray(ids) for name, ids in Tokens(whole).split.items()}
    portions = len(calls)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 1000)
    monkeypatch.setattr(cache, "KEPT_BYTES", 1)
    calls.clear()
    stop = 60
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, BPE(300), (0.6, 0.2, 0.2))
    calls.clear()
    stop = -1
    facts = prepare(corpus, BPE(300), (0.6, 0.2, 0.2))
    assert portions - 58 <= len(calls) <= portions - 50, "what was encoded is not encoded again"
    assert {**vars(facts), "folder": ""} == {**vars(whole), "folder": ""}
    for name, ids in Tokens(facts).split.items():
        assert len(ids) > 1000
        assert np.array_equal(ids[:], expected[name])
        places = np.random.RandomState(0).randint(0, len(ids), (5, 7))
        assert np.array_equal(ids[places], expected[name][places])
        assert np.array_equal(ids[17:2345:3], expected[name][17:2345:3])


def test_known_text_is_not_read_again_until_files_change(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(splits, "YOUNG", 0)
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    time.sleep(0.02)
    read: list[int] = []
    facts = lambda: text_facts(SplitText(LocalText(str(path)), (0.5, 0.25, 0.25), read.append))  # noqa: E731
    first = facts()
    assert read
    read.clear()
    assert facts() == first
    assert not read
    path.write_text("one\ntwo\nthree\nfive\n")
    assert facts().fingerprint != first.fingerprint
    assert read


def test_a_file_that_has_just_been_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    found = set()
    for word in ("four", "five", "nine"):  # of one size, perhaps within one tick of the clock
        path.write_text(f"one\ntwo\nthree\n{word}\n")
        found.add(text_facts(SplitText(LocalText(str(path)), (0.5, 0.25, 0.25))).fingerprint)
    assert len(found) == 3


def test_verify_finds_what_has_changed(tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage) -> None:
    monkeypatch.setattr(splits, "YOUNG", 0)
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    facts = prepare(LocalText(str(path)), Characters(), (0.5, 0.25, 0.25))
    assert [problem for *_, problem in verify()] == [None] * 3
    ids = Path(facts.folder) / "train.npy"
    times = ids.stat()
    ids.write_bytes(ids.read_bytes()[:-1] + b"\7")
    os.utime(ids, ns=(times.st_atime_ns, times.st_mtime_ns))
    path.write_text("one\ntwo\nthree\nfive\n")
    problems = {str(place): problem for place, _, problem in verify() if problem}
    assert problems.keys() == {str(path), facts.folder}
    check_message([problems[str(path)], problems[facts.folder]])
