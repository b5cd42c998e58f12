"""Documents as padded rows: what is cut, what is padded, and what of it counts."""

from typing import Any

import numpy as np
import pytest
from helpers import Listed, known
from messages import Refused

from lm.data import IGNORED
from lm.data.text import PaddedRows
from lm.data.tokenizer import BPE, Bytes

TEXTS = ["abc", "abcdefgh", "xy", "z", "abcdefghij", "pq", "rst", "uvwxyz", "kk", "mno"]
CONTEXT = 5


def data(rows: int = 3, texts: list[str] = TEXTS, **changes: Any) -> PaddedRows:
    settings: dict[str, Any] = {"context": CONTEXT, "batch_size": 2, "split": (0.6, 0.4, 0.0), **changes}
    return PaddedRows(0, Listed(texts), settings.pop("tokenizer", BPE(257)), rows=rows, **settings)


def begun(**changes: Any) -> PaddedRows:
    found = data(**changes)
    found.setup()
    return found


def test_a_row_is_a_cut_or_padded_document() -> None:
    found = begun()
    end = known(known(found.facts).end_of_text)
    ids = known(found.tokens).split["train"]
    letters = lambda text: [int(ids[place]) for place in range(len(text))]  # noqa: E731
    assert found.table["train"].shape == (3, CONTEXT + 1)
    assert found.table["train"][0].tolist() == [*letters("abc"), end, end, end]
    assert end not in found.table["train"][1], "abcdefgh is cut"
    assert (found.table["train"][2] == end).sum() == CONTEXT + 1 - len("xy")


def test_first_end_is_target_and_padding_is_ignored() -> None:
    found, padded = begun(), begun(ignore_padding=False)
    rows_b = np.array([0, 1])
    targets_bt, whole_bt = found.gather("train", rows_b).targets_bt, padded.gather("train", rows_b).targets_bt
    end = known(known(found.facts).end_of_text)
    assert targets_bt[0].tolist() == [*whole_bt[0, :2].tolist(), end, IGNORED, IGNORED]
    assert whole_bt[0].tolist() == [*whole_bt[0, :2].tolist(), end, end, end]
    assert targets_bt[1].tolist() == whole_bt[1].tolist()


def test_evaluation_may_use_the_training_rows() -> None:
    seen = {
        split: [row for batch in begun(evaluate_on=split).evaluation_batches("validation") for row in batch.inputs[0]]
        for split in ("train", "validation")
    }
    table = begun().table
    for split, rows in seen.items():
        assert [row.tolist() for row in rows] == table[split][:, :-1].tolist()


def test_batches_are_shared_among_devices(refused: Refused) -> None:
    found = begun()
    whole, *parts = (list(found.training_batches(0, 4, *which)) for which in ((0, 1), (0, 2), (1, 2)))
    for batch, *shares in zip(whole, *parts, strict=True):
        assert sorted(batch.rows_b.tolist()) == sorted(row for part in shares for row in part.rows_b.tolist())
    with refused():
        found.check_devices(3)
    found.check_devices(2)


@pytest.mark.parametrize("name", ["context", "rows", "batch_size"])
def test_sizes_below_one_are_refused(name: str, refused: Refused) -> None:
    size: dict[str, Any] = {name: 0}
    with refused(ValueError):
        data(**size)


def test_a_table_larger_than_memory_is_refused_before_reading() -> None:
    with pytest.raises(ValueError, match="rows=1000000000 of context=5 "):
        data(rows=10**9)


def test_too_few_documents_or_no_end_token_is_one_line(refused: Refused) -> None:
    with refused():
        begun(rows=30)
    with refused():
        begun(tokenizer=Bytes())
