"""What is evaluated of a large split: whole documents, the same for every model, as many as the budget holds."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RUN, Listed
from messages import Refused

from lm.config.tree import override
from lm.data.batch import MAX_SEGMENTS
from lm.data.draw import draw_documents, draw_ids
from lm.data.shards import Sharded
from lm.data.text import PaddedRows, TextData
from lm.data.tokenizer import BPE
from lm.training.cell import check
from lm.training.run import Evaluation

pytestmark = pytest.mark.usefixtures("cache")
END = 0


def packed(seed: int, documents: int = 200) -> np.ndarray:
    random = np.random.default_rng(seed)
    texts = [[*random.integers(1, 9, random.integers(1, 30)), END] for _ in range(documents)]
    return np.array([token for text in texts for token in text], dtype=np.uint16)


def documents_of(ids: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, np.flatnonzero(ids == END) + 1) if len(part)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [100, 500, 2000])
def test_whole_documents_are_drawn_up_to_the_budget(seed: int, budget: int) -> None:
    ids = packed(seed)
    drawn = draw_ids(ids, END, budget, ("text",))
    whole, chosen = documents_of(ids), documents_of(drawn)
    assert budget - 30 < len(drawn) <= budget
    places = iter(whole)
    assert all(document in places for document in chosen), "in the order of the text"
    assert np.array_equal(drawn, draw_ids(ids, END, budget, ("text",)))
    assert not np.array_equal(drawn, draw_ids(ids, END, budget, ("other",)))
    assert np.array_equal(drawn, draw_ids(Sharded([ids[:700], ids[700:1100], ids[1100:]]), END, budget, ("text",)))


def test_a_smaller_budget_draws_some_of_a_larger_one() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    draws = [set(draw_documents(lengths, budget, ("text",)).tolist()) for budget in (10, 400, 1000, 10**6)]
    assert all(small < large for small, large in itertools.pairwise(draws))
    assert len(draws[-1]) == 300


def test_a_split_within_the_budget_is_evaluated_whole() -> None:
    ids = packed(0)
    assert draw_ids(ids, END, len(ids), ("text",)) is ids


def test_of_few_documents_segments_are_taken_from_everywhere() -> None:
    ids = np.arange(100_000)
    for end in (None, 50_000):
        drawn = draw_ids(ids, end, 1280, ("text",))
        assert len(drawn) == 1280
        starts = drawn[:: 1280 // MAX_SEGMENTS]
        assert starts.tolist() == [i * 100_000 // MAX_SEGMENTS for i in range(MAX_SEGMENTS)]


TEXTS = [f"text {i} {'ab' * (i % 9)}\n" for i in range(400)]


def data(budget: int, **options: Any) -> TextData:
    made = TextData(0, Listed(TEXTS), BPE(300), 8, 4, (0.4, 0.3, 0.3), **options)
    made.evaluation_tokens = budget
    made.setup()
    return made


def test_batches_and_clusters_are_those_of_the_drawn_documents() -> None:
    whole, small = data(10**6), data(300)
    for split in ("validation", "test"):
        targets = [batch.targets_bt for batch in small.evaluation_batches(split)]
        tokens = torch.cat(targets).numel()
        assert 250 < tokens <= 300
        assert small.count_rows(split) * 8 == tokens
        clusters = small.clusters(split)
        assert clusters.kind == "document"
        last = clusters.of(torch.arange(small.count_rows(split)))
        assert int(last.max()) + 1 == clusters.count < whole.clusters(split).count
    train = [next(iter(made.training_batches(0, 1))).inputs[0] for made in (whole, small)]
    assert torch.equal(*train)


def test_padded_rows_are_drawn_too() -> None:
    rows = PaddedRows(0, Listed(TEXTS), BPE(300), 8, 100, 4, split=(0.4, 0.3, 0.3))
    rows.evaluation_tokens = 80
    rows.setup()
    assert (rows.count_rows("train"), rows.count_rows("validation")) == (100, 10)
    assert rows.clusters("validation").count == 10


def test_a_budget_below_one_block_is_one_line(refused: Refused) -> None:
    with refused():
        data(8)


def test_a_budget_that_leaves_text_out_is_in_the_id(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(TEXTS))
    corpus = {"class_path": "LocalText", "init_args": {"path": str(tmp_path / "a.txt"), "document": "line"}}
    base = override(RUN, {"data.corpus": corpus})
    plain = check(base)
    held_out = max(plain.facts.tokens[split] for split in ("validation", "test"))
    ids = [check(override(base, {"evaluate": {"tokens": n}})).id for n in (held_out, held_out - 1, held_out - 2)]
    assert ids[0] == plain.id
    assert len(set(ids)) == 3
    lengths = check(override(base, {"evaluate": {"lengths": [8], "tokens": 16}}))
    assert lengths.id == plain.id, "with lengths, tokens are those of the lengths"


def test_tokens_are_of_the_lengths_unless_these_have_their_own(refused: Refused) -> None:
    found = [
        (made.tokens, made.length_tokens)
        for made in (
            Evaluation(),
            Evaluation(tokens=5),
            Evaluation([4], tokens=5),
            Evaluation([4], tokens=7, length_tokens=6),
            Evaluation([4], length_tokens=6),
        )
    ]
    assert found == [(2**21, 65_536), (5, 65_536), (2**21, 5), (7, 6), (2**21, 6)]
    for options in ({"tokens": 0}, {"lengths": [9], "tokens": 8}, {"lengths": [9], "length_tokens": 8}):
        with refused(ValueError):
            Evaluation(**options)


def test_a_draw_without_a_whole_block_is_refused(refused: Refused) -> None:
    texts = ["x" * 8] * 100 + [
        "y" * 300
    ] * 100  # of validation a document of 8 tokens and its end, or a part of a long one
    made = TextData(
        0, Listed([text for pair in zip(texts, texts[::-1], strict=True) for text in pair]), BPE(257), 20, 4
    )
    made.evaluation_tokens = 21
    with refused():
        made.setup()
    made.evaluation_tokens = 2000
    made.setup()
    assert made.count_rows("validation") > 1
