"""What a finished cell keeps of each document of its evaluation splits."""

import math
from pathlib import Path
from typing import Any

from lm.data.batch import Clusters
from lm.store.documents import KEPT, described, packed
from lm.store.files import write_atomic


def by_document(work: Path, of: Clusters | None, measured: dict[str, Any], quantity: str) -> dict[str, Any]:
    """Leaves the losses by document behind a quantity in `work`, and returns what the record says of them.

    Nothing where the data does not know its documents, or the run diverged.

    Args:
        work: the folder of the cell.
        of: how the text is told apart.
        measured: over all of it, `nll` and perhaps `clusters`.
        quantity: a key of KEPT.
    """
    if of is None or "clusters" not in measured or not math.isfinite(measured["nll"]):
        return {}
    content = packed(*measured["clusters"])
    part, file = KEPT[quantity]
    write_atomic(work / file, content)
    return {part: described(content, of.kind, of.each, of.count)}
