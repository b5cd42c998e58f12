"""What a finished cell keeps of each document of its validation split."""

import math
from pathlib import Path
from typing import Any

from lm.store.documents import FILE, described, packed
from lm.store.files import write_atomic
from lm.training.module import LanguageModel


def by_document(work: Path, module: LanguageModel, measured: dict[str, Any]) -> dict[str, Any]:
    """Leaves the losses by document in `work`, and returns what the record says of them.

    Nothing where the data does not know its documents, or the run diverged.
    """
    of = module.clusters
    if of is None or "clusters" not in measured or not math.isfinite(measured["nll"]):
        return {}
    content = packed(*measured["clusters"])
    write_atomic(work / FILE, content)
    return {"documents": described(content, of.kind, of.each, of.count)}
