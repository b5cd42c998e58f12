"""Documents and splits: where text comes from, and that none of it is in two places."""

import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from helpers import Listed, Patch, splits_of
from messages import CheckMessage, Refused

from lm.config.tree import InputError
from lm.data.corpus import SPLITS, LocalText, StdlibText, expand_user, fingerprint
from lm.data.hub import HubText

TEXT = "first line\nsecond\n\nthird é\n"


def documents(path: str | list[str], **options: Any) -> list[str]:
    return list(LocalText(path, **options).documents())


def written(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def ours(message: str) -> str:
    """What of a message stands before what a library says, in brackets."""
    return message.partition(" (")[0]


def refusal(path: str | list[str], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        documents(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def random_documents(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [f"{i}:" + "x" * int(random.integers(1, 200)) for i in range(count)]


@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.25, 0.25), (0.8, 0.2, 0.0)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_document_is_in_one_split_and_in_its_place(seed: int, fractions: Sequence[float]) -> None:
    texts = random_documents(60, seed)
    splits = splits_of(Listed(texts), fractions)
    assert tuple(splits) == SPLITS
    assert [text for name in SPLITS for text in splits[name]] == texts
    assert bool(splits["test"]) == (fractions[2] > 0)


@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.25, 0.25)])
def test_a_split_ends_within_one_document_of_its_share(fractions: Sequence[float]) -> None:
    texts = random_documents(200, 5)
    splits = splits_of(Listed(texts), fractions)
    total, longest = sum(map(len, texts)), max(map(len, texts))
    ends = np.cumsum([sum(map(len, splits[name])) for name in SPLITS]) - np.cumsum(fractions) * total
    assert (ends >= -1e-6).all()
    assert (ends < longest).all()


def test_a_document_belongs_to_the_split_in_which_it_begins() -> None:
    assert splits_of(Listed(["aaaa", "bb", "cc", "dd"]), (0.5, 0.3, 0.2)) == {
        "train": ["aaaa", "bb"],
        "validation": ["cc"],
        "test": ["dd"],
    }


def test_one_line_is_not_cut() -> None:
    assert splits_of(Listed(["abc"]), (0.9, 0.05, 0.05)) == {"train": ["abc"], "validation": [], "test": []}


def test_a_single_file_is_split_at_the_ends_of_lines(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(100))
    splits = splits_of(LocalText(written(tmp_path / "a.txt", text)), (0.8, 0.1, 0.1))
    assert [len(splits[name]) for name in SPLITS] == [1, 1, 1]
    assert "".join(splits[name][0] for name in SPLITS) == text
    assert all(splits[name][0].endswith("\n") for name in SPLITS)
    assert len(splits["train"][0]) == pytest.approx(0.8 * len(text), abs=9)


def test_the_fingerprint_tells_texts_boundaries_and_splits_apart() -> None:
    splits = [
        {"train": ["ab"], "validation": ["c"], "test": []},
        {"train": ["a", "b"], "validation": ["c"], "test": []},
        {"train": ["ab"], "validation": [], "test": ["c"]},
        {"train": ["ab"], "validation": ["d"], "test": []},
        {"train": ["ab", ""], "validation": ["c"], "test": []},
        {"train": ["ab"], "validation": ["c\n"], "test": []},
    ]
    assert len({fingerprint(each) for each in splits}) == len(splits)
    assert fingerprint(splits[0]) == fingerprint(json.loads(json.dumps(splits[0])))


def test_empty_documents_are_dropped_and_empty_corpus_is_refused(refused: Refused) -> None:
    assert splits_of(Listed(["", "a", "", "b"]), (0.5, 0.5, 0))["train"] == ["a"]
    with refused():
        splits_of(Listed(["", ""]), (0.9, 0.05, 0.05))


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    assert documents(written(tmp_path / "a.txt", TEXT)) == [TEXT]
    assert documents(written(tmp_path / "a.md", TEXT)) == [TEXT]


@pytest.mark.parametrize("document", ["file", "line", "paragraph"])
@pytest.mark.parametrize("text", [TEXT, "a\n\n\n\nb", "a\r\n\r\nb\r\n", "\n\na\n\nb\n\n"])
def test_the_documents_of_a_file_add_up_to_the_file(tmp_path: Path, document: str, text: str) -> None:
    assert "".join(documents(written(tmp_path / "a.txt", text), document=document)) == text


def test_a_file_is_cut_into_lines_or_paragraphs(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\ntwo\n\nthree\n\n")
    assert documents(path, document="line") == ["one\n", "two\n", "\n", "three\n", "\n"]
    assert documents(path, document="paragraph") == ["one\ntwo\n\n", "three\n\n"]


def test_each_json_line_is_a_document(tmp_path: Path) -> None:
    lines = '{"text": "a\\nb", "n": 1}\n\n{"text": "é"}\n'
    assert documents(written(tmp_path / "a.jsonl", lines)) == ["a\nb", "é"]
    assert documents(written(tmp_path / "a.jsonl", '{"body": "a"}\n'), field="body") == ["a"]


def test_a_json_line_ends_at_a_newline_and_nowhere_else(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\x85d", "e\u2029f"]  # what str.splitlines takes for ends of lines
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    assert documents(written(tmp_path / "a.jsonl", lines)) == texts


def test_each_row_of_a_parquet_file_is_a_document(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "é"], "body": ["c", "d"]}).to_parquet(tmp_path / "a.parquet")
    assert documents(str(tmp_path / "a.parquet")) == ["a", "é"]
    assert documents(str(tmp_path / "a.parquet"), field="body") == ["c", "d"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_missing_text_never_becomes_a_word(tmp_path: Path, kind: str) -> None:
    pd.DataFrame({"text": ["a", None]}).to_parquet(tmp_path / "a.parquet")
    written(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": null}\n')
    try:
        found = documents(str(tmp_path / f"a.{kind}"))
    except InputError:
        return
    assert [text for text in found if text] == ["a"]


@pytest.mark.parametrize("values", [[b"caf\xc3\xa9"], [[1, 2]], [3]], ids=["bytes", "lists", "numbers"])
def test_a_column_of_anything_but_text_is_refused(
    tmp_path: Path, values: list[Any], monkeypatch: Patch, check_message: CheckMessage
) -> None:
    pd.DataFrame({"text": values}).to_parquet(tmp_path / "a.parquet")
    check_message(refusal(str(tmp_path / "a.parquet")))
    hub(monkeypatch, datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": values})}))
    with pytest.raises(InputError) as caught:
        list(HubText("some/text").documents())
    check_message(str(caught.value))


def test_paragraphs_end_at_empty_lines_of_either_kind(tmp_path: Path) -> None:
    for end in ("\n", "\r\n"):
        text = end.join(["one", "two", "", "three", "", "", "four"])
        expected = [end.join(part) for part in (["one", "two", "", ""], ["three", "", "", ""], ["four"])]
        (tmp_path / "a.txt").write_bytes(text.encode())
        assert documents(str(tmp_path / "a.txt"), document="paragraph") == expected


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("a.txt", TEXT, [TEXT]), ("a.md", TEXT, [TEXT]), ("a.jsonl", '{"text": "a"}\n{"text": "b"}\n', ["a", "b"])],
)
def test_a_gzipped_file_reads_as_the_plain_one(tmp_path: Path, name: str, content: str, expected: list[str]) -> None:
    path = written(tmp_path / f"{name}.gz", gzip.compress(content.encode()))
    assert documents(path) == expected


def test_a_gzipped_parquet_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "b"]}).to_parquet(tmp_path / "a.parquet")
    path = written(tmp_path / "b.parquet.gz", gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert documents(path) == ["a", "b"]


def test_glob_with_no_or_too_many_matches_is_one_line(
    tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    check_message(refusal(f"{tmp_path}/a\0*.txt"))
    for n in range(3):
        written(tmp_path / f"{n}.txt", TEXT)
    monkeypatch.setattr("lm.data.corpus.MAX_FILES", 2)
    check_message(refusal(f"{tmp_path}/*.txt"))


def test_home_folder_of_unknown_user_is_plain_name() -> None:
    assert expand_user("~nobody-has-this-name/a.txt") == Path("~nobody-has-this-name/a.txt")
    assert expand_user("~/a.txt") == Path.home() / "a.txt"


def test_a_glob_names_files_in_sorted_order_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.txt", "deep/c.txt", "d.md"):
        written(tmp_path / name, name)
    assert documents(f"{tmp_path}/*.txt") == ["a.txt", "b.txt"]
    assert documents(f"{tmp_path}/**/*.txt") == ["a.txt", "b.txt", "deep/c.txt"]
    assert documents([f"{tmp_path}/d.md", f"{tmp_path}/*.txt", f"{tmp_path}/a.txt"]) == ["d.md", "a.txt", "b.txt"]


def test_a_path_that_looks_like_a_glob_names_its_file(tmp_path: Path) -> None:
    assert documents(written(tmp_path / "part[1].txt", TEXT)) == [TEXT]


def test_a_missing_file_is_answered_with_the_nearest_one(
    tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    written(tmp_path / "input.txt", TEXT)
    monkeypatch.chdir(tmp_path)
    check_message([refusal("inptu.txt"), refusal(str(tmp_path / "no" / "such" / "*.txt"))])


def test_a_wrong_field_is_answered_with_the_fields_there_are(tmp_path: Path, check_message: CheckMessage) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "a"}\n{"body": "b", "id": 1}\n')
    check_message(refusal(path, field="text"))
    path = written(tmp_path / "a.jsonl", '{"boddy": "a"}\n{"body": "b", "id": 1}\n')
    check_message(refusal(path, field="boddy"))
    pd.DataFrame({"body": ["a"], "id": [1]}).to_parquet(tmp_path / "a.parquet")
    check_message(refusal(str(tmp_path / "a.parquet"), field="boddy"))


@pytest.mark.parametrize("line", ["[1]", '"text"', "{", "3"])
def test_a_line_without_a_json_object_is_refused_by_number(
    tmp_path: Path, line: str, check_message: CheckMessage
) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "a"}\n' + line + "\n")
    check_message(refusal(path))


def test_text_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path, check_message: CheckMessage) -> None:
    path = written(tmp_path / "a.txt", b"abc\xff")
    check_message(refusal(path))


WHOLE = gzip.compress(b"hello world " * 500)


@pytest.mark.parametrize(
    "content",
    [b"plain", WHOLE[:-20], WHOLE[:10] + b"\xff\xff" + WHOLE[12:], WHOLE[:-8] + bytes(8)],
    ids=["not gzip", "cut short", "damaged", "wrong checksum"],
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, content: bytes, check_message: CheckMessage) -> None:
    path = written(tmp_path / "a.txt.gz", content)
    check_message(ours(refusal(path)))


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    path = written(tmp_path / "a.parquet", "plain")
    check_message(ours(refusal(path)))


def test_an_encrypted_archive_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", TEXT)
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for start in (6, content.index(b"PK\x01\x02") + 8):  # the flag of encryption, in both headers
        content[start] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    check_message(ours(refusal(str(tmp_path / "a.zip"))))


def test_an_empty_file_is_refused(tmp_path: Path, refused: Refused) -> None:
    with refused():
        splits_of(LocalText(written(tmp_path / "a.txt", "")), (0.9, 0.05, 0.05))


def test_stdlib_text_is_reproducible_and_within_size() -> None:
    texts = list(StdlibText(20_000, 3_000).documents())
    assert texts == list(StdlibText(20_000, 3_000).documents())
    assert sum(map(len, texts)) == 20_000
    assert max(map(len, texts)) == 3_000


def test_more_of_the_standard_library_begins_with_the_same_text() -> None:
    short, long = list(StdlibText(10_000, 1_000).documents()), list(StdlibText(20_000, 1_000).documents())
    assert long[: len(short) - 1] == short[:-1]


@pytest.mark.parametrize("options", [{"size": 0}, {"longest": -1}], ids=str)
def test_sizes_below_one_character_are_refused(options: dict[str, int], refused: Refused) -> None:
    with refused(ValueError):
        StdlibText(**options)


def hub(monkeypatch: Patch, answer: Any) -> None:
    """Makes `datasets` answer with a value, or raise it."""

    def load_dataset(*_: object, **__: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("lm.data.hub.answers", lambda *_: True)


@pytest.mark.parametrize(
    "error",
    [ConnectionError("no route\nto host"), datasets.exceptions.DatasetNotFoundError("no such"), OSError()],
    ids=lambda error: type(error).__name__,
)
def test_without_the_hub_one_line_says_what_to_use_instead(
    monkeypatch: Patch, refused: Refused, error: Exception
) -> None:
    hub(monkeypatch, error)
    with refused():
        splits_of(HubText("some/text"), (0.9, 0.05, 0.05))


def rows(*texts: str | None) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def test_the_splits_of_the_hub_are_kept(monkeypatch: Patch) -> None:
    found = {"test": rows("e"), "train": rows("a", "", None, "b"), "validation": rows("c"), "extra": rows("x")}
    hub(monkeypatch, datasets.DatasetDict(found))
    assert splits_of(HubText("some/text"), (0.9, 0.05, 0.05)) == {
        "train": ["a", "b"],
        "validation": ["c"],
        "test": ["e"],
    }


def test_a_dataset_without_splits_is_split_here(monkeypatch: Patch) -> None:
    hub(monkeypatch, datasets.DatasetDict({"train": rows("aa", "bb", "", "cc")}))
    assert splits_of(HubText("some/text"), (0.3, 0.3, 0.4)) == {"train": ["aa"], "validation": ["bb"], "test": ["cc"]}


def test_a_wrong_hub_field_is_answered_with_the_columns(monkeypatch: Patch, refused: Refused) -> None:
    hub(monkeypatch, datasets.DatasetDict({"train": rows("a")}))
    with refused():
        list(HubText("some/text", field="txt").documents())
