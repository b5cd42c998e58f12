"""Which targets of a split belong together, as losses within a document are no independent sample of text.

Legend: b batch, t time, d clusters.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST = 2**14
"""Clusters of a split; beyond, neighbouring documents are pooled, which leaves no text out."""

FEWEST = 20
"""Documents from which on they are the clusters."""

STRETCHES = 128
"""Clusters, at most, of a text of fewer documents."""


@dataclass(frozen=True)
class Clusters:
    """The clusters of a split.

    Args:
        kind: `document`, or `stretch` for equal parts of a text of few documents or of unknown ones.
        count: how many there are.
        each: documents pooled in one, at most.
        of: for the numbers of rows (b,) the clusters of their targets, int64 (b, t) or (b, 1).
    """

    kind: str
    count: int
    each: int
    of: Callable[[Tensor], Tensor]


def of_rows(rows: int) -> Clusters:
    """Each row is a document."""
    each = -(-rows // MOST)
    return Clusters("document", -(-rows // each), each, lambda rows_b: (rows_b // each)[:, None])


def of_text(ids: np.ndarray, end: int | None, context: int) -> Clusters:
    """Blocks of packed text, each of whose targets belongs to the document that its place lies in.

    Args:
        ids: tokens of the split, of which row r predicts those from r * context + 1 on.
        end: the token that ends a document, and is part of it; None where the tokenizer has none.
        context: tokens of a block.
    """
    blocks = (len(ids) - 1) // context
    last = blocks * context
    ends = np.zeros(0, dtype=np.int64) if end is None else np.flatnonzero(ids[: last + 1] == end)
    documents = len(ends) + (len(ends) == 0 or int(ends[-1]) < last)
    if documents < FEWEST:
        count = max(1, min(STRETCHES, blocks))
        return Clusters("stretch", count, 1, lambda rows_b: (rows_b * count // max(1, blocks))[:, None])
    each = -(-documents // MOST)
    ends_d = torch.from_numpy(ends)

    def of(rows_b: Tensor) -> Tensor:
        places_bt = rows_b[:, None] * context + torch.arange(1, context + 1, device=rows_b.device)
        return torch.searchsorted(ends_d.to(rows_b.device), places_bt) // each

    return Clusters("document", -(-documents // each), each, of)
