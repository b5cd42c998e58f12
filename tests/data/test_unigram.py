"""The loss of a unigram model, against one that is counted token by token over the batches."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Capture, Patch

from lm.data import IGNORED, shards, tokens
from lm.data.batch import Data
from lm.data.corpus import LocalText
from lm.data.pairs import LocalPairs, PairData
from lm.data.text import PaddedRows, TextData
from lm.data.tokenizer import BPE, Bytes, Characters
from lm.data.tokens import UNIGRAM, TextStats, Tokens, is_usable, prepare, row_counts, token_counts, unigram_nll

pytestmark = pytest.mark.usefixtures("cache")
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "it", "slept"]


def lines(count: int, seed: int) -> list[str]:
    draw = np.random.RandomState(seed)
    return [" ".join(draw.choice(WORDS, draw.randint(1, 12))) + "\n" for _ in range(count)]


def corpus(folder: Path) -> LocalText:
    path = folder / "text.txt"
    path.write_text("".join(lines(300, 0)))
    return LocalText(str(path), document="line")


def pairs(folder: Path) -> LocalPairs:
    paths = {}
    for seed, split in enumerate(("train", "validation", "test")):
        for side in ("source", "target"):
            paths[f"{split}_{side}"] = str(folder / f"{split}.{side}")
            Path(paths[f"{split}_{side}"]).write_text("".join(lines(60, 10 * seed + len(side))))
    return LocalPairs(**paths)


def text_data(folder: Path) -> Data:
    return TextData(0, corpus(folder), Characters(), context=7, batch_size=4, split=(0.6, 0.2, 0.2))


def pair_data(folder: Path) -> Data:
    return PairData(0, pairs(folder), Bytes(), context=40, batch_tokens=256)


def rows_data(folder: Path, **changes: Any) -> Data:
    settings: dict[str, Any] = {"rows": 20, "batch_size": 4, "split": (0.6, 0.4, 0.0), **changes}
    return PaddedRows(0, corpus(folder), BPE(300), context=9, **settings)


MAKERS = {
    "pairs": pair_data,
    "rows": rows_data,
    "rows with their padding": lambda folder: rows_data(folder, ignore_padding=False),
    "rows evaluated on themselves": lambda folder: rows_data(folder, evaluate_on="train"),
}


def targets(data: Data, split: str) -> list[int]:
    batches = data.evaluation_batches(split)
    return [int(x) for batch in batches for x in batch.targets_bt.flatten() if x != IGNORED]


@pytest.mark.parametrize("kind", MAKERS)
def test_unigram_nll_is_loss_of_training_frequencies_on_validation(kind: str, tmp_path: Path) -> None:
    data = MAKERS[kind](tmp_path)
    data.prepare_data()
    assert data.facts is not None
    found = data.facts.unigram_nll
    data.setup("fit")
    counts, total = Counter(targets(data, "train")), len(targets(data, "train"))
    losses = [-math.log((counts[x] + 1) / (total + data.facts.vocabulary)) for x in targets(data, "validation")]
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_counting_in_parts_is_counting_at_once(monkeypatch: Patch) -> None:
    ids = np.random.RandomState(0).randint(0, 9, 1000).astype(np.uint16)
    at_once = token_counts(ids, 9)
    monkeypatch.setattr(shards, "COUNT_CHUNK", 7)
    assert token_counts(ids, 9).tolist() == at_once.tolist() == [int((ids == token).sum()) for token in range(9)]
    assert token_counts(ids[:0], 9).tolist() == [0] * 9


def test_rows_that_are_left_out_do_not_count() -> None:
    ids, lengths = np.array([0, 1, 1, 2, 2, 2], dtype=np.uint16), np.array([1, 2, 0, 3])
    assert row_counts(ids, lengths, np.array([0, 2, 3]), 4).tolist() == [1, 0, 3, 0]


def test_unigram_nll_is_finite_for_unseen_tokens_none_without_text() -> None:
    assert unigram_nll(np.array([3, 0]), np.array([0, 2])) == pytest.approx(math.log(5))
    assert unigram_nll(np.array([3, 0]), np.array([0, 0])) is None


def test_unigram_nll_of_packed_text_uses_all_tokens(tmp_path: Path) -> None:
    data = text_data(tmp_path)
    data.prepare_data()
    assert data.facts is not None
    split = Tokens(data.facts).split
    counts, total = Counter(split["train"].tolist()), len(split["train"])
    losses = [-math.log((counts[x] + 1) / (total + data.facts.vocabulary)) for x in split["validation"].tolist()]
    assert data.facts.unigram_nll == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def files_of(entry: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in entry.iterdir()}


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("make", [text_data, pair_data])
def test_cache_entry_of_any_version_is_reused(
    make: Callable[[Path], Data], older: bool, cache: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Older versions store no such loss, and read a `facts.json` that has no more keys than they know."""
    first = make(tmp_path)
    first.prepare_data()
    (entry,) = (path for folder in ("tokens", "pairs") for path in (cache / folder).glob("*") if path.is_dir())
    assert "unigram_nll" not in json.loads((entry / "facts.json").read_text())
    if older:
        (entry / UNIGRAM).unlink(missing_ok=True)
        sums = json.loads((entry / "sums.json").read_text())
        (entry / "sums.json").write_text(json.dumps({name: x for name, x in sums.items() if name != UNIGRAM}))
    before = files_of(entry)
    again = make(tmp_path)
    again.prepare_data()
    assert files_of(entry) == before
    assert again.facts == first.facts
    assert capsys.readouterr().err == ""


def test_a_stored_loss_is_read_and_not_counted_again(cache: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    text_data(tmp_path).prepare_data()
    monkeypatch.setattr(tokens, "token_counts", None)
    again = text_data(tmp_path)
    again.prepare_data()
    assert again.facts is not None
    assert again.facts.unigram_nll is not None


def test_an_entry_serves_facts_that_have_the_loss(tmp_path: Path) -> None:
    data = text_data(tmp_path)
    data.prepare_data()
    assert data.facts is not None
    recorded = {key: value for key, value in asdict(data.facts).items() if key != "folder"}
    assert recorded["unigram_nll"] > 0
    assert is_usable(TextStats(folder=data.facts.folder, **recorded))


def test_prepared_text_alone_has_no_unigram_nll(tmp_path: Path) -> None:
    assert prepare(corpus(tmp_path), Characters(), (0.6, 0.2, 0.2)).unigram_nll is None
