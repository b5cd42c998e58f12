"""Token ids that others prepared: read as their own programs write them, and only with the right tokenizer."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet_files
import pytest
from helpers import Patch
from messages import CheckMessage, Refused

from lm.config.tree import InputError
from lm.data import cache, shards, text, token_files
from lm.data.mixture import Mixture, prepare
from lm.data.shards import ShardWriter
from lm.data.text import PaddedRows, TextData
from lm.data.token_files import TokenFiles
from lm.data.tokenizer import BPE, Bytes, Pretrained
from lm.data.tokens import Tokens, is_usable

pytestmark = pytest.mark.usefixtures("cache")
SHARES = (0.6, 0.2, 0.2)
END = 256
random = np.random.default_rng(0)
LISTS = [[*random.integers(0, 256, random.integers(1, 40)).tolist(), END] for _ in range(300)]
FLAT = np.array([token for ids in LISTS for token in ids])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Pretrained:
    """One token a byte, and an end."""
    trained = Bytes().train(())
    trained.add_special_tokens(["<|endoftext|>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    return Pretrained(str(tmp_path / "tokenizer.json"))


def nanogpt(folder: Path) -> str:
    FLAT.astype(np.uint16).tofile(folder / "train.bin")
    return "train.bin"


def modded(folder: Path) -> str:
    for number, ids in enumerate(np.array_split(FLAT, 3)):
        header = np.zeros(256, dtype=np.int32)
        header[:3] = 20240520, 1, len(ids)
        (folder / f"train_{number}.bin").write_bytes(header.tobytes() + ids.astype(np.uint16).tobytes())
    return "train_*.bin"


def megatron(folder: Path) -> str:
    lengths = np.array([len(ids) for ids in LISTS], dtype=np.int32)
    starts = 4 * (np.cumsum(lengths, dtype=np.int64) - lengths)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1, dtype=np.int64)
    (folder / "text.idx").write_bytes(head + lengths.tobytes() + starts.tobytes() + documents.tobytes())
    FLAT.astype(np.int32).tofile(folder / "text.bin")
    return "text.bin"


def litdata(folder: Path) -> str:
    """As litdata 0.2.76 writes tensors of int32 for its TokensLoader, which was compared by hand."""
    (folder / "lit").mkdir()
    chunks = []
    for number, start in enumerate(range(0, 300, 70)):
        items = [np.array(ids, dtype=np.int32).tobytes() for ids in LISTS[start : start + 70]]
        ends = np.cumsum([0, *map(len, items)]).astype(np.uint32) + 4 * (len(items) + 2)
        name, body = f"chunk-0-{number}.bin", b"".join(items)
        (folder / "lit" / name).write_bytes(np.uint32(len(items)).tobytes() + ends.astype(np.uint32).tobytes() + body)
        sizes = {"chunk_bytes": len(body), "chunk_size": len(items), "dim": len(body) // 4}
        chunks.append({"filename": name, **sizes})
    config = {"compression": None, "data_format": ["no_header_tensor:16"]}
    (folder / "lit" / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return "lit"


def parquet(folder: Path, added: int = 0) -> str:
    lists = [[token + added for token in ids[:-1]] for ids in LISTS]
    pd.DataFrame({"input_ids": lists}).to_parquet(folder / "a.parquet", row_group_size=100)
    return "a.parquet"


def texts(folder: Path) -> str:
    parquet_files.write_table(pa.table({"input_ids": ["a", "b"]}), folder / "a.parquet")
    return "a.parquet"


FORMATS: dict[str, Callable[[Path], str]] = {
    "nanogpt": nanogpt,
    "modded_nanogpt": modded,
    "megatron": megatron,
    "litdata": litdata,
    "parquet": parquet,
}


def joined(tokens: Tokens) -> np.ndarray:
    return np.concatenate([ids[:] for ids in tokens.split.values()])


@pytest.mark.parametrize("kind", FORMATS)
def test_ids_are_of_the_files_and_splits_end_with_documents(tmp_path: Path, tokenizer: Pretrained, kind: str) -> None:
    path = tmp_path / FORMATS[kind](tmp_path)
    for named in ("auto", kind):
        facts = prepare(TokenFiles(str(path), kind=named), tokenizer, SHARES)  # type: ignore[arg-type]
        tokens = Tokens(facts)
        assert np.array_equal(joined(tokens), FLAT)
        assert all(ids[len(ids) - 1] == END for ids in tokens.split.values())
        assert sum(facts.documents.values()) == len(LISTS)
        assert sum(facts.bytes.values()) == len(FLAT) - len(LISTS)
        assert facts.tokens["train"] / len(FLAT) == pytest.approx(0.6, abs=0.03)


def test_the_same_ids_are_one_text_in_every_format(tmp_path: Path, tokenizer: Pretrained) -> None:
    found = {
        prepare(TokenFiles(str(tmp_path / FORMATS[kind](tmp_path))), tokenizer, SHARES).fingerprint
        for kind in ("nanogpt", "modded_nanogpt", "megatron", "litdata")
    }
    assert len(found) == 1


def test_splits_may_have_files_of_their_own(tmp_path: Path, tokenizer: Pretrained) -> None:
    modded(tmp_path)
    train, validation, test = (str(tmp_path / f"train_{number}.bin") for number in range(3))
    tokens = Tokens(prepare(TokenFiles(train, validation, test), tokenizer, SHARES))
    assert [len(ids) for ids in tokens.split.values()] == [len(ids) for ids in np.array_split(FLAT, 3)]
    assert np.array_equal(joined(tokens), FLAT)
    parquet(tmp_path)
    lists = str(tmp_path / "a.parquet")
    assert [*prepare(TokenFiles(lists, lists), tokenizer, SHARES).documents.values()] == [300, 300, 0]


def test_blocks_of_training_are_read_where_the_files_lie(tmp_path: Path, tokenizer: Pretrained) -> None:
    modded(tmp_path)
    data = TextData(0, TokenFiles(str(tmp_path / "train_*.bin")), tokenizer, 16, 4, SHARES)
    data.setup()
    batch = data.gather("train", np.array([0, 3, 200]))
    for row, start in zip(batch.inputs[0].tolist(), (0, 48, 3200), strict=True):
        assert row == FLAT[start : start + 16].tolist()
    assert data.clusters("validation").kind == "document"


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="needs Linux's list of mapped pages")
def test_pages_that_were_read_do_not_stay_in_memory(tmp_path: Path, tokenizer: Pretrained, monkeypatch: Patch) -> None:
    np.tile(FLAT, 500).astype(np.uint16).tofile(tmp_path / "train.bin")
    monkeypatch.setattr(text, "RELEASED_ROWS", 50)
    data = TextData(0, TokenFiles(str(tmp_path / "train.bin")), tokenizer, 16, 4, SHARES)
    data.setup()

    def resident() -> int:
        maps = Path("/proc/self/smaps").read_text().split(" " + str(tmp_path / "train.bin"))[1:]
        return sum(int(part.split("Rss:")[1].split()[0]) for part in maps)

    rows = np.arange(0, 40_000, 1000)
    first = data.gather("train", rows)
    assert resident() > 100
    again = data.gather("train", rows)
    assert resident() == 0
    assert again.targets_bt.equal(first.targets_bt)


def test_known_files_are_not_read_again_until_they_change(
    tmp_path: Path, tokenizer: Pretrained, monkeypatch: Patch
) -> None:
    corpus = TokenFiles(str(tmp_path / nanogpt(tmp_path)))
    facts = prepare(corpus, tokenizer, SHARES)
    with monkeypatch.context() as patch:
        patch.setattr(token_files, "_fingerprint", lambda *_: pytest.fail("read again"))
        assert prepare(corpus, tokenizer, SHARES) == facts
    FLAT[::-1].astype(np.uint16).tofile(tmp_path / "train.bin")
    assert prepare(corpus, tokenizer, SHARES).fingerprint != facts.fingerprint


def test_lists_of_parquet_are_taken_up_after_a_kill(tmp_path: Path, tokenizer: Pretrained, monkeypatch: Patch) -> None:
    pd.DataFrame({"input_ids": LISTS * 8}).to_parquet(tmp_path / "a.parquet")
    corpus, commits = TokenFiles(str(tmp_path / "a.parquet")), list[int]()
    monkeypatch.setattr(cache, "KEPT_BYTES", 1)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 1)

    def commit(writer: ShardWriter, done: int, last: bool = False) -> None:
        commits.append(done)
        if len(commits) == 2:
            raise KeyboardInterrupt
        original(writer, done, last)

    original = ShardWriter.commit
    monkeypatch.setattr(ShardWriter, "commit", commit)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tokenizer, SHARES)
    commits.append(-1)
    assert np.array_equal(joined(Tokens(prepare(corpus, tokenizer, SHARES))), np.tile(FLAT, 8))
    assert commits == [1024, 2048, -1, 2048, 2400, 2400]


WRONG: dict[str, Callable[[Path], dict[str, Any]]] = {
    "other bytes": lambda folder: {"path": nanogpt(folder), "kind": "modded_nanogpt"},
    "cut": lambda folder: {"path": cut(folder / modded(folder).replace("*", "1"))},
    "no index": lambda folder: {"path": nanogpt(folder), "kind": "megatron"},
    "wide ids": lambda folder: {"path": even(folder), "dtype": "uint32"},
    "compressed": lambda folder: {"path": changed(folder, compression="zstd")},
    "floats": lambda folder: {"path": changed(folder, data_format=["no_header_tensor:1"])},
    "no column": lambda folder: {"path": parquet(folder), "field": "ids"},
    "no lists": lambda folder: {"path": texts(folder)},
    "large ids": lambda folder: {"path": parquet(folder, 2**16)},
    "nothing": lambda folder: {"path": f"{nanogpt(folder)}x"},
}


def even(folder: Path) -> str:
    FLAT[:1000].astype(np.uint16).tofile(folder / "train.bin")
    return "train.bin"


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-2])
    return path.name


def changed(folder: Path, **config: Any) -> str:
    litdata(folder)
    index = json.loads((folder / "lit" / "index.json").read_text())
    (folder / "lit" / "index.json").write_text(json.dumps({**index, "config": {**index["config"], **config}}))
    return "lit"


@pytest.mark.parametrize("case", WRONG)
def test_files_of_another_kind_are_one_line(tmp_path: Path, tokenizer: Pretrained, refused: Refused, case: str) -> None:
    options = WRONG[case](tmp_path)
    with refused():
        prepare(TokenFiles(**{**options, "path": str(tmp_path / options["path"])}), tokenizer, SHARES)


def test_another_tokenizer_is_refused(tmp_path: Path, refused: Refused) -> None:
    corpus = TokenFiles(str(tmp_path / nanogpt(tmp_path)))
    with refused():
        prepare(corpus, Bytes(), SHARES)
    with refused():
        prepare(corpus, BPE(300), SHARES)
    with refused():
        list(corpus.documents())


def test_an_index_beside_its_file_is_read_once(tmp_path: Path, tokenizer: Pretrained) -> None:
    megatron(tmp_path)
    found = [
        prepare(TokenFiles(str(tmp_path / name)), tokenizer, SHARES) for name in ("text.bin", "text.*", "text.idx")
    ]
    assert found[0] == found[1] == found[2]
    assert sum(found[0].tokens.values()) == len(FLAT)


def test_ids_elsewhere_are_checked_again_when_files_change(
    tmp_path: Path, tokenizer: Pretrained, check_message: CheckMessage
) -> None:
    corpus = TokenFiles(str(tmp_path / nanogpt(tmp_path)))
    facts = prepare(corpus, tokenizer, SHARES)
    assert is_usable(facts)
    FLAT[::-1].astype(np.uint16).tofile(tmp_path / "train.bin")
    assert not is_usable(facts), "a finished run would be measured on other text"
    (folder, _, damage) = next(entry for entry in cache.verify() if entry[0] == Path(facts.folder))
    assert damage is not None, folder
    check_message(damage)
    assert prepare(corpus, tokenizer, SHARES).fingerprint != facts.fingerprint


def test_a_mixture_follows_a_file_that_was_moved(tmp_path: Path, tokenizer: Pretrained) -> None:
    def mixture(name: str) -> Mixture:
        node = {"class_path": "TokenFiles", "init_args": {"path": str(tmp_path / name)}}
        return Mixture({"one": node, "two": {**node, "init_args": {"path": str(tmp_path / "two.bin")}}})

    (tmp_path / nanogpt(tmp_path)).rename(tmp_path / "one.bin")
    FLAT[::-1].astype(np.uint16).tofile(tmp_path / "two.bin")
    before = prepare(mixture("one.bin"), tokenizer, SHARES)
    (tmp_path / "one.bin").rename(tmp_path / "renamed.bin")
    after = prepare(mixture("renamed.bin"), tokenizer, SHARES)
    assert after == before
    assert len(Tokens(after).split["train"]) == after.tokens["train"]


def test_a_source_with_its_own_splits_needs_no_test_split(tmp_path: Path, tokenizer: Pretrained) -> None:
    path = str(tmp_path / nanogpt(tmp_path))
    made = TextData(0, TokenFiles(path, path), tokenizer, 8, 4, (0.9, 0.05, 0.05))
    made.setup()
    assert made.count_rows("test") == 0


def test_rows_of_several_files_are_those_of_one(tmp_path: Path, tokenizer: Pretrained) -> None:
    tables = []
    ends = np.flatnonzero(FLAT == END) + 1
    for number, parts in enumerate(([FLAT], np.split(FLAT, ends[[100, 101, 250]]))):
        for index, ids in enumerate(parts):
            ids.astype(np.uint16).tofile(tmp_path / f"rows{number}_{index}.bin")
        corpus = TokenFiles(str(tmp_path / f"rows{number}_*.bin"))
        made = PaddedRows(0, corpus, tokenizer, 8, rows=150, batch_size=4, split=SHARES)
        made.setup()
        tables.append(made.table)
    assert len(tables[0]["train"]) == 150
    for name, table in tables[0].items():
        assert np.array_equal(table, tables[1][name])


def test_a_file_that_is_no_parquet_is_one_line(
    tmp_path: Path, tokenizer: Pretrained, check_message: CheckMessage
) -> None:
    (tmp_path / "a.parquet").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InputError) as caught:
        prepare(TokenFiles(str(tmp_path / "a.parquet")), tokenizer, SHARES)
    check_message(str(caught.value).partition(" (")[0])  # behind it, what the library says


@pytest.mark.slow
def test_a_model_without_its_tokenizer_is_none(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with refused():
        Pretrained(str(tmp_path)).learn([])
