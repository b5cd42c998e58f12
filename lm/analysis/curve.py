"""A learning curve from its file."""

import functools
from pathlib import Path

import pandas as pd

from lm.store.files import unescape_formula
from lm.store.thin_curves import THIN_NAME, read_thin_curve


def curve_table(path: Path, parts: bool = False) -> pd.DataFrame:
    """A learning curve, a row a step; one file is read once for all that is asked of it, until it is another file.

    Most columns are of parts of the model, `gradient_norm/blocks.0`: they are read where that is asked for.
    """
    file = path.stat()
    return _curve_table(path, parts, (file.st_ino, file.st_mtime_ns, file.st_size))


@functools.lru_cache(maxsize=4096)
def _curve_table(path: Path, parts: bool, version: tuple[int, int, int]) -> pd.DataFrame:
    if path.name == THIN_NAME:
        return pd.DataFrame(read_thin_curve(path)).set_index("step")
    table = pd.read_csv(path, index_col="step", usecols=lambda name: parts or "/" not in name)
    return table.rename(columns=unescape_formula)
