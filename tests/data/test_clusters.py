"""Which targets belong together: documents counted one by one, stretches of a text of few, documents pooled."""

import numpy as np
import pytest
import torch
from helpers import Patch

from lm.data import batch as module
from lm.data.batch import Clusters, clusters_from_documents, clusters_per_row, joined_clusters

END = 9


def told(found: Clusters, rows: int, context: int) -> list[int]:
    """The cluster of every target, in the order of the text."""
    rows_b = torch.arange(rows)
    return found.of(rows_b).expand(rows, context).flatten().tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ended", [True, False])
def test_each_target_belongs_to_the_document_it_lies_in(seed: int, ended: bool) -> None:
    random = np.random.default_rng(seed)
    texts = [[*random.integers(0, END, random.integers(0, 12)), END] for _ in range(60)]
    ids = np.array([token for text in texts for token in text])
    ids = ids if ended else ids[:-3]
    owner = np.repeat(np.arange(60), [len(text) for text in texts])
    context = 5
    blocks = (len(ids) - 1) // context
    found = clusters_from_documents(ids, END, context)
    last = blocks * context
    assert (found.kind, found.each) == ("document", 1)
    assert found.count == owner[last] + 1
    assert told(found, blocks, context) == owner[1 : last + 1].tolist()


def test_documents_beyond_the_most_are_pooled_with_their_neighbours(monkeypatch: Patch) -> None:
    ids = np.tile([1, 2, END], 50)
    single = told(clusters_from_documents(ids, END, 4), 37, 4)
    monkeypatch.setattr(module, "MAX_CLUSTERS", 20)
    found = clusters_from_documents(ids, END, 4)
    assert (found.each, found.count) == (3, 17)
    assert told(found, 37, 4) == [one // 3 for one in single]
    assert clusters_per_row(50).of(torch.arange(50)).flatten().tolist() == [row // 3 for row in range(50)]
    assert (clusters_per_row(50).count, clusters_per_row(20).each) == (17, 1)


@pytest.mark.parametrize("end", [None, END])
def test_text_of_few_documents_is_cut_into_equal_segments(end: int | None) -> None:
    ids = np.ones(1000, dtype=np.int64)
    ids[::100] = END
    found = clusters_from_documents(ids, end, 3)
    assert (found.kind, found.count) == ("stretch", 128)
    counts = np.bincount(told(found, 333, 3))
    assert len(counts) == 128
    assert set(counts // 3) == {2, 3}
    assert clusters_from_documents(ids[:8], end, 3).count == 2


@pytest.mark.parametrize("seed", range(3))
def test_clusters_of_several_corpora_follow_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    ids, context, rows = [random.integers(0, END + 1, 400), np.ones(300, dtype=np.int64)], 4, [99, 74]
    parts = [clusters_from_documents(part, END, context) for part in ids]
    found = joined_clusters({"a": parts[0], "b": parts[1]}, rows)
    expected = [told(parts[0], 99, context), [parts[0].count + one for one in told(parts[1], 74, context)]]
    assert told(found, 173, context) == [*expected[0], *expected[1]]
    assert found.count == parts[0].count + parts[1].count
    order = torch.from_numpy(random.permutation(173))
    whole = found.of(torch.arange(173)).expand(173, context)
    assert torch.equal(found.of(order).expand(173, context), whole[order])
