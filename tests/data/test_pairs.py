"""Pairs of texts: files, token ids, and batches of similar lengths."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import known
from messages import Refused

from lm.data import IGNORED
from lm.data.batch import Batch
from lm.data.order import update_order_hash
from lm.data.pairs import LocalPairs, PairData, bucket_rows, prepare_pairs
from lm.data.tokenizer import SPECIALS, Bytes, Tokenizer, WordPiece

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}


def sentences(count: int, seed: int) -> list[list[str]]:
    draw = np.random.RandomState(seed)
    return [list(draw.choice(list(WORDS), draw.randint(1, 9))) for _ in range(count)]


def files(folder: Path, **changes: str) -> LocalPairs:
    """Made-up pairs of each split as files, some of them compressed; `changes` replace what is in a file."""
    paths = {}
    for seed, (split, count) in enumerate({"train": 200, "validation": 30, "test": 10}.items()):
        drawn = sentences(count, seed)
        texts = {
            f"{split}_source": "".join(" ".join(words) + "\n" for words in drawn),
            f"{split}_target": "".join(" ".join(map(WORDS.__getitem__, words)) + "\n" for words in drawn),
        }
        for name, text in {**texts, **{key: value for key, value in changes.items() if key in texts}}.items():
            path = folder / (f"{name}.gz" if split == "test" else name)
            path.write_bytes(gzip.compress(text.encode()) if split == "test" else text.encode())
            paths[name] = str(path)
    return LocalPairs(**paths)


def data(folder: Path, tokenizer: Tokenizer | None = None, batch_tokens: int = 256, **changes: str) -> PairData:
    found = PairData(3, files(folder, **changes), tokenizer or Bytes(), context=64, batch_tokens=batch_tokens)
    found.setup("fit")
    return found


def text(found: PairData, ids: list[int]) -> str:
    return str(found.tokens.tokenizer.decode(ids, skip_special_tokens=True))


def test_a_batch_is_teacher_forced(tmp_path: Path) -> None:
    found = data(tmp_path)
    begin, end, padding = (known(found.tokens.tokenizer.token_to_id(name)) for name in SPECIALS)
    batch = next(iter(found.evaluation_batches("test")))
    inputs_bt, source_bs, hidden_bs = batch.inputs
    for row, (source, target) in enumerate(zip(*found.corpus.lines("test"), strict=True)):
        length = len(target.encode())
        assert inputs_bt[row, 0] == begin
        assert inputs_bt[row, 1 : length + 1].tolist() == batch.targets_bt[row, :length].tolist()
        assert text(found, batch.targets_bt[row, :length].tolist()) == target
        assert batch.targets_bt[row, length] == end
        assert (batch.targets_bt[row, length + 1 :] == IGNORED).all()
        assert (inputs_bt[row, length + 1 :] == padding).all()
        assert text(found, source_bs[row][~hidden_bs[row]].tolist()) == source
        assert source_bs[row, len(source)] == end
        assert (source_bs[row][hidden_bs[row]] == padding).all()
        assert hidden_bs[row].tolist() == [place > len(source) for place in range(source_bs.shape[1])]


def test_a_batch_holds_no_more_tokens_than_its_budget(tmp_path: Path) -> None:
    found = data(tmp_path)
    rows = [batch.rows_b.tolist() for batch in found.training_batches(0, len(found.batches["train"]))]
    assert sorted(itertools.chain.from_iterable(rows)) == list(range(200))
    for batch in found.training_batches(0, len(rows)):
        target_bt, source_bs, _ = batch.inputs
        assert target_bt.numel() + source_bs.numel() <= 256
    padding = sum(int((batch.targets_bt == IGNORED).sum()) for batch in found.training_batches(0, len(rows)))
    assert padding < 0.05 * 200 * found.context


def test_buckets_are_filled_greedily() -> None:
    source, target = np.array([2, 2, 5, 1, 9]), np.array([1, 3, 3, 3, 3])
    assert [list(rows) for rows in bucket_rows(np.arange(5), source, target, 16)] == [[0, 1], [2, 3], [4]]


def test_batches_are_a_pure_function_of_seed_and_step(tmp_path: Path) -> None:
    found, again = data(tmp_path), data(tmp_path)
    passes = len(found.batches["train"])
    whole = list(found.training_batches(0, 2 * passes + 3))
    for left, right in zip(whole[passes - 2 :], again.training_batches(passes - 2, 2 * passes + 3), strict=True):
        assert torch.equal(left.rows_b, right.rows_b)
        assert all(map(torch.equal, left.inputs, right.inputs))
    first, second = ([tuple(b.rows_b.tolist()) for b in whole[n * passes : (n + 1) * passes]] for n in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second), "a batch is made of the same pairs in every pass"
    again.seed = 4
    assert first != [tuple(b.rows_b.tolist()) for b in again.training_batches(0, passes)]


def order_of(batches: list[Batch]) -> str:
    digest = ""
    for batch in batches:
        digest = update_order_hash(digest, batch.rows_b.numpy())
    return digest


def test_processes_share_the_rows_of_each_batch(tmp_path: Path, refused: Refused) -> None:
    found = data(tmp_path)
    found.check_devices(2)
    parts = zip(*(found.training_batches(0, 20, rank, 2) for rank in (0, 1)), strict=True)
    for whole, shares in zip(found.training_batches(0, 20), parts, strict=True):
        assert torch.equal(torch.cat([part.rows_b for part in shares]), whole.rows_b)
    with refused():
        found.check_devices(1000)


def test_evaluation_sees_every_pair_once_and_in_order(tmp_path: Path) -> None:
    found = data(tmp_path)
    rows = torch.cat([batch.rows_b for batch in found.evaluation_batches("validation")])
    assert rows.tolist() == list(range(30))


def test_facts_say_what_the_text_came_to(tmp_path: Path) -> None:
    found = data(tmp_path)
    assert found.facts is not None
    _, targets = found.corpus.lines("train")
    assert found.facts.vocabulary == 256 + 3 == len(found.bytes_per_token())
    assert found.facts.documents["train"] == 200
    assert found.facts.bytes["train"] == sum(map(len, targets))
    assert found.facts.tokens["train"] == sum(map(len, targets)) + 200
    assert all(found.bytes_per_token()[found.tokens.tokenizer.token_to_id(name)] == 0 for name in SPECIALS)


def test_the_fingerprint_covers_both_sides(tmp_path: Path) -> None:
    texts = {}
    for name in ("plain", "source", "target"):
        folder = tmp_path / name
        folder.mkdir()
        changed = {} if name == "plain" else {f"train_{name}": "one\n" * 200}
        texts[name] = prepare_pairs(files(folder, **changed), Bytes()).fingerprint
    assert len(set(texts.values())) == 3


def test_a_trained_tokenizer_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (data(tmp_path / name, WordPiece(60)).facts for name in "ab")
    assert first == second, "the same text elsewhere"


def test_empty_and_long_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    drawn = ["one"] * 30
    drawn[4], drawn[7] = "", "x" * 64
    found = data(tmp_path, validation_target="\n".join(drawn) + "\n")
    assert found.facts is not None
    counts = {name: found.facts.documents[name] for name in ("validation", "validation_empty", "validation_too_long")}
    assert counts == {"validation": 29, "validation_empty": 1, "validation_too_long": 1}
    rows = torch.cat([batch.rows_b for batch in found.evaluation_batches("validation")])
    assert len(rows) == 28
    assert len(found.corpus.lines("validation")[0]) == 30, "what is translated is whole"


def test_sources_beyond_the_context_are_cut(tmp_path: Path) -> None:
    found = data(tmp_path)
    source_bs, hidden_bs = found.sources([np.arange(100), np.arange(3)])
    assert source_bs.shape == hidden_bs.shape == (2, 64)
    assert source_bs[0].tolist() == [*range(63), found.tokens.end]
    assert hidden_bs.sum(1).tolist() == [0, 60]


def test_a_special_name_in_the_text_is_text(tmp_path: Path) -> None:
    found = data(tmp_path, test_target="<|end|>\n" * 10)
    batch = next(iter(found.evaluation_batches("test")))
    assert text(found, batch.targets_bt[0, :-1].tolist()) == "<|end|>"


def test_a_line_is_cut_at_line_feeds_alone(tmp_path: Path) -> None:
    found = data(tmp_path, test_source="one\u2028two\x0cthree\r\n" * 10)
    assert found.corpus.lines("test")[0] == ["one\u2028two\x0cthree"] * 10


@pytest.mark.parametrize(
    "change",
    [
        {"train_target": "eins\n"},
        {"train_source": "\n" * 200},
    ],
    ids=["fewer lines", "empty lines"],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, str], refused: Refused) -> None:
    with refused():
        PairData(3, files(tmp_path, **change), Bytes(), context=64, batch_tokens=256).setup("fit")


def test_a_missing_file_is_answered_with_the_nearest(tmp_path: Path, refused: Refused) -> None:
    files(tmp_path)
    names = [str(tmp_path / name) for name in ("train_sauce", "train_target", "validation_source", "validation_target")]
    with refused():
        LocalPairs(*names).lines("train")
    (tmp_path / "latin").write_bytes(b"\xff\n")
    with refused():
        LocalPairs(str(tmp_path / "latin"), *names[1:]).lines("train")


def test_settings_that_cannot_be_are_refused(tmp_path: Path, refused: Refused) -> None:
    with refused(ValueError):
        LocalPairs("a", "b", "c", "d", "e")
    with refused(ValueError):
        PairData(0, files(tmp_path), Bytes(), context=64, batch_tokens=100)
