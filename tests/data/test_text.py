"""Batches of packed text: the right tokens, wherever training is taken up and on however many devices."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from messages import Refused

from lm.data.batch import Batch
from lm.data.corpus import LocalText
from lm.data.order import batch_rows
from lm.data.text import TextData
from lm.data.tokenizer import Characters

CONTEXT, BATCH = 5, 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> LocalText:
    """Lines of numbers: 640 characters in 128 documents."""
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text("".join(f"{i:04d}\n" for i in range(128)))
    return LocalText(str(path), document="line")


def prepared(corpus: LocalText, **settings: Any) -> TextData:
    given = {"context": CONTEXT, "batch_size": BATCH, "split": (0.6, 0.2, 0.2), **settings}
    data = TextData(settings.pop("seed", 3), corpus, Characters(), **{k: v for k, v in given.items() if k != "seed"})
    data.setup()
    return data


@pytest.fixture
def data(corpus: LocalText) -> TextData:
    return prepared(corpus)


def ids(data: TextData, split: str) -> np.ndarray:
    assert data.tokens is not None
    return np.asarray(data.tokens.split[split], dtype=np.int64)


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, b)
        for x, y in zip(left, right, strict=True)
        for a, b in zip((*x.inputs, *x[1:]), (*y.inputs, *y[1:]), strict=True)
    )


def test_a_row_is_its_block_with_next_token_targets(data: TextData) -> None:
    train = ids(data, "train")
    for step, batch in enumerate(data.training_batches(0, 30)):
        assert batch.rows_b.tolist() == batch_rows(3, step, BATCH, data.count_rows("train")).tolist()
        for row, block in enumerate(batch.rows_b.tolist()):
            assert batch.inputs[0][row].tolist() == train[block * CONTEXT : (block + 1) * CONTEXT].tolist()
            assert batch.targets_bt[row].tolist() == train[block * CONTEXT + 1 : (block + 1) * CONTEXT + 1].tolist()
        assert batch.inputs[0].dtype == batch.targets_bt.dtype == torch.int64
        assert batch.inputs[0].is_contiguous()
        assert batch.targets_bt.is_contiguous()


@pytest.mark.parametrize(("length", "blocks"), [(6, 1), (10, 1), (11, 2), (25, 4), (26, 5)])
def test_there_are_as_many_blocks_as_have_all_their_targets(tmp_path: Path, length: int, blocks: int) -> None:
    (tmp_path / "a.txt").write_text("a" * (length - 1) + "\n" + "b" * (length - 1) + "\n")
    data = TextData(0, LocalText(str(tmp_path / "a.txt"), document="line"), Characters(), CONTEXT, 1, (0.5, 0.5, 0))
    data.setup()
    assert (len(ids(data, "train")), len(ids(data, "validation"))) == (length, length)
    assert (data.count_rows("train"), data.count_rows("validation")) == (blocks, blocks)


def test_evaluation_predicts_every_token_of_every_block_once(data: TextData) -> None:
    found = torch.cat([batch.targets_bt.flatten() for batch in data.evaluation_batches("validation")])
    expected = ids(data, "validation")[1 : data.count_rows("validation") * CONTEXT + 1]
    assert found.tolist() == expected.tolist()


def test_evaluation_does_not_depend_on_its_batch_size(corpus: LocalText) -> None:
    rows = [
        torch.cat(
            [batch.inputs[0] for batch in prepared(corpus, evaluation_batch_size=size).evaluation_batches("test")]
        )
        for size in (1, 3, 100)
    ]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def joined(parts: Sequence[Batch]) -> Batch:
    """One batch of the rows of several."""
    inputs = zip(*(part.inputs for part in parts), strict=True)
    targets, rows = [part.targets_bt for part in parts], [part.rows_b for part in parts]
    return Batch(tuple(map(torch.cat, inputs)), torch.cat(targets), torch.cat(rows))


@pytest.mark.parametrize("start", [0, 1, 7, 20])
def test_resumed_training_sees_same_batches(data: TextData, start: int) -> None:
    whole = list(data.training_batches(0, 20))
    assert same(list(data.training_batches(start, 20)), whole[start:])


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_rows_of_all_processes_are_the_batches_of_one(data: TextData, world: int) -> None:
    for ranks, whole in [
        ([data.training_batches(2, 15, rank, world) for rank in range(world)], data.training_batches(2, 15)),
        ([data.evaluation_batches("test", rank, world) for rank in range(world)], data.evaluation_batches("test")),
    ]:
        shares = [list(batches) for batches in ranks]
        by_block = {
            int(block): row
            for part in shares
            for batch in part
            for block, row in zip(batch.rows_b, batch.inputs[0], strict=True)
        }
        expected = {
            int(block): row for batch in whole for block, row in zip(batch.rows_b, batch.inputs[0], strict=True)
        }
        assert by_block.keys() == expected.keys()
        assert all(torch.equal(by_block[block], expected[block]) for block in expected)
    train = [list(data.training_batches(0, 15, rank, world)) for rank in range(world)]
    assert same([joined(parts) for parts in zip(*train, strict=True)], list(data.training_batches(0, 15)))


def test_the_seed_decides_the_order_and_nothing_else(corpus: LocalText) -> None:
    one, other = prepared(corpus, seed=0), prepared(corpus, seed=1)
    assert not same(list(one.training_batches(0, 5)), list(other.training_batches(0, 5)))
    assert same(list(one.evaluation_batches("validation")), list(other.evaluation_batches("validation")))
    passes = one.count_rows("train")  # that many batches are BATCH passes
    counts = [torch.cat([b.rows_b for b in each.training_batches(0, passes)]).bincount() for each in (one, other)]
    assert counts[0].tolist() == counts[1].tolist() == [BATCH] * passes


def test_the_loader_starts_where_the_trainer_stands(data: TextData) -> None:
    share = {"rank": 1, "num_replicas": 2}
    stand = {"accumulate_grad_batches": 2, "max_steps": 6, "global_step": 2, "distributed_sampler_kwargs": share}
    data.trainer = SimpleNamespace(**stand)  # type: ignore[assignment]
    assert same(list(data.train_dataloader()), list(data.training_batches(4, 12, 1, 2)))
    assert len(data.train_dataloader()) == 12
    assert same(list(data.val_dataloader()), list(data.evaluation_batches("validation", 1, 2)))


def test_split_shorter_than_block_is_refused_with_numbers(corpus: LocalText, refused: Refused) -> None:
    data = TextData(0, corpus, Characters(), context=130, batch_size=1, split=(0.6, 0.2, 0.2))
    with refused():
        data.prepare_data()


def test_a_split_of_exactly_one_block_is_enough(corpus: LocalText) -> None:
    data = TextData(0, corpus, Characters(), context=124, batch_size=1, split=(0.6, 0.2, 0.2))
    data.prepare_data()
    assert data.count_rows("test") == 1


def test_a_test_split_not_asked_for_may_be_empty(corpus: LocalText) -> None:
    data = TextData(0, corpus, Characters(), CONTEXT, BATCH, split=(0.8, 0.2, 0.0))
    data.prepare_data()
    assert data.count_rows("validation") > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"context": 0},
        {"batch_size": -1},
        {"evaluation_batch_size": 0},
        {"split": (0.9, 0.2, 0.1)},
        {"split": (1.0, 0.0, 0.0)},
        {"split": (1.1, 0.1, -0.2)},
    ],
    ids=str,
)
def test_sizes_and_shares_that_cannot_be_are_refused(
    corpus: LocalText, refused: Refused, settings: dict[str, Any]
) -> None:
    with refused(ValueError):
        prepared(corpus, **settings)
