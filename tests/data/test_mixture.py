"""Several corpora with weights: the draw of their blocks, and what is measured on each."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RUN
from messages import Refused
from small_runs import train_cell
from tokenizers import Tokenizer as Trained

from lm.ablation.experiment import _check_quantity
from lm.analysis.claims import _metric
from lm.config.tree import override
from lm.data.batch import nll_by_corpus
from lm.data.mixture import Mixture, prepare
from lm.data.order import MIXED, mixed_rows
from lm.data.text import TextData
from lm.data.tokenizer import BPE, Bytes
from lm.data.tokens import Tokens
from lm.store.metrics import describe
from lm.training.cell import check

pytestmark = pytest.mark.usefixtures("cache")
SHARES = (0.6, 0.2, 0.2)
WEIGHTS = {"a": 0.7, "b": 0.2995, "c": 0.0005}


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, Any]:
    """Two corpora of different letters: capitals, and twice as many small ones."""
    (tmp_path / "upper.txt").write_text("".join(f"ABC {'XYZ' * (i % 7)}\n" for i in range(1000)))
    (tmp_path / "lower.txt").write_text("".join(f"abc {'xyz' * (i % 7)}\n" for i in range(2000)))
    paths = {name: str(tmp_path / f"{name}.txt") for name in ("upper", "lower")}
    node = {"class_path": "LocalText", "init_args": {"document": "line"}}
    return {name: {**node, "init_args": {**node["init_args"], "path": path}} for name, path in paths.items()}  # type: ignore[dict-item]


@pytest.mark.slow
def test_each_corpus_has_its_share_of_every_stretch() -> None:
    rows = [50, 40, 3]
    drawn = mixed_rows(5, 0, 20 * MIXED, WEIGHTS, rows)
    assert np.array_equal(drawn, mixed_rows(5, 0, 20 * MIXED, WEIGHTS, rows))
    assert not np.array_equal(drawn, mixed_rows(6, 0, 20 * MIXED, WEIGHTS, rows))
    corpus = np.searchsorted(np.cumsum(rows), drawn, side="right")
    for block in np.split(corpus, 20):
        shares = np.bincount(block, minlength=3) / MIXED
        assert np.abs(shares - [*WEIGHTS.values()]).max() < 2 / MIXED
    for index, count in enumerate(rows):
        own = drawn[corpus == index]
        passes = len(own) // count
        for number in range(passes):
            assert sorted(own[number * count : (number + 1) * count]) == sorted(set(own)), "a pass has every row once"


@pytest.mark.parametrize(("first", "count"), [(0, 16), (1000, 48), (MIXED, 3), (5 * MIXED - 1, 2), (700, 3 * MIXED)])
def test_the_draw_can_start_anywhere(first: int, count: int) -> None:
    whole = mixed_rows(5, 0, 10 * MIXED, WEIGHTS, [50, 40, 3])
    assert np.array_equal(mixed_rows(5, first, count, WEIGHTS, [50, 40, 3]), whole[first : first + count])


def data(nodes: dict[str, Any], weights: dict[str, float] | None = None, tokens: int = 10**6) -> TextData:
    made = TextData(0, Mixture(nodes, weights), BPE(300), 8, 4, SHARES)
    made.evaluation_tokens = tokens
    made.setup()
    return made


def is_upper(batch: torch.Tensor, made: TextData) -> list[bool]:
    """Whether the text of each row is in capitals."""
    assert made.facts is not None
    decode = Trained.from_file(str(Path(made.facts.folder) / "tokenizer.json")).decode
    texts = [decode(row) for row in batch.tolist()]
    assert all(text in (text.upper(), text.lower()) for text in texts), "no row is of two corpora"
    return [text == text.upper() for text in texts]


@pytest.mark.slow
def test_blocks_are_of_one_corpus_and_drawn_by_the_weights(nodes: dict[str, Any]) -> None:
    made = data(nodes, {"upper": 3.0, "lower": 1.0})
    rows = torch.cat([batch.inputs[0] for batch in made.training_batches(0, 256)])
    upper = is_upper(rows, made)
    assert sum(upper) == 0.75 * len(rows)
    resumed = torch.cat([batch.inputs[0] for batch in made.training_batches(100, 256)])
    assert torch.equal(resumed, rows[400:])
    assert sum(made.rows_by_corpus("train").values()) == made.count_rows("train")


def test_without_weights_corpora_count_by_their_tokens(nodes: dict[str, Any]) -> None:
    made = data(nodes)
    shares = list(made.tokens.weights.values())
    assert shares == pytest.approx([1 / 3, 2 / 3], abs=0.02)


def test_evaluation_draws_from_each_corpus_and_tells_their_clusters_apart(nodes: dict[str, Any]) -> None:
    made = data(nodes, {"upper": 3.0, "lower": 1.0}, tokens=160)
    rows_of = made.rows_by_corpus("validation")
    assert (110 // 8 < rows_of["upper"] < 120 // 8, 30 // 8 < rows_of["lower"] < 40 // 8) == (True, True)
    clusters = made.clusters("validation")
    assert clusters.count == sum(clusters.corpora.values())
    rows = torch.arange(made.count_rows("validation"))
    index = clusters.of(rows).expand(len(rows), 8)
    upper = is_upper(made.gather("validation", rows.numpy()).inputs[0], made)
    for row, is_first in zip(index, upper, strict=True):
        assert bool((row < clusters.corpora["upper"]).all()) == is_first
    tokens = np.bincount(index.flatten(), minlength=clusters.count)
    losses = np.where(np.arange(clusters.count) < clusters.corpora["upper"], 2.0, 5.0) * tokens
    assert nll_by_corpus(clusters, losses, tokens) == {"nll_on_upper": 2.0, "nll_on_lower": 5.0}


def test_corpora_share_entries_and_weights_belong_to_the_text(nodes: dict[str, Any]) -> None:
    found = [prepare(Mixture(nodes, weights), Bytes(), SHARES) for weights in (None, {"upper": 1.0, "lower": 1.0})]
    assert len({facts.fingerprint for facts in found}) == 2
    alone = prepare(Mixture(nodes).corpora["upper"], Bytes(), SHARES)
    joined = Tokens(found[0])
    assert np.array_equal(joined.parts["train"][0], Tokens(alone).split["train"])
    assert found[0].bytes["test"] == sum(len(ids) for ids in joined.parts["test"])


@pytest.mark.parametrize(
    "options",
    [
        {"weights": {"upper": 1.0}},
        {"weights": {"upper": 1.0, "lower": 0.0}},
        {"corpora": {}},
        {"corpora": {"a b": "StdlibText", "c": "StdlibText"}},
        {"corpora": {"a": "StdlibTxt", "b": "StdlibText"}},
    ],
    ids=str,
)
def test_wrong_mixtures_are_refused(nodes: dict[str, Any], refused: Refused, options: dict[str, Any]) -> None:
    with refused(Exception):
        Mixture(**{"corpora": nodes, **options})


def test_the_nll_of_a_corpus_is_a_quantity(refused: Refused) -> None:
    _check_quantity("nll_on_upper", "metric")
    assert _metric("nll_on_upper - nll", "claim") == "nll_on_upper - nll"
    with refused():
        _check_quantity("nll_in_upper", "metric")


@pytest.mark.slow
def test_a_record_has_the_nll_of_each_corpus(nodes: dict[str, Any], tmp_path: Path) -> None:
    mixture = {"class_path": "Mixture", "init_args": {"corpora": nodes, "weights": {"upper": 1, "lower": 1}}}
    changes = {"data.corpus": mixture, "data.context": 8}
    _, record, _ = train_cell(tmp_path / "out", changes)
    metrics = record["metrics"]
    by_corpus = [metrics["nll_on_upper"], metrics["nll_on_lower"]]
    assert None not in by_corpus
    assert min(by_corpus) <= metrics["nll"] <= max(by_corpus)  # type: ignore[type-var, operator]
    assert describe("nll_on_upper").label == "validation NLL on upper"
    assert Counter(describe(name).better for name in ("nll_on_upper", "nll_on_lower")) == {"lower": 2}
    other = {**mixture, "init_args": {"corpora": nodes, "weights": {"upper": 2, "lower": 1}}}
    assert check(override(RUN, {**changes, "data.corpus": other})).id != record["id"]
