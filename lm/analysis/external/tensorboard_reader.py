"""Runs of TensorBoard: folders with files of events, read by TensorBoard itself."""

import importlib.util
import re
from pathlib import Path
from typing import Any

from lm.analysis.external.table import Row, Table
from lm.config.plain import shown
from lm.config.tree import InputError

ARM, SEED = "{arm}", "{seed}"

USUAL = re.compile(r"(?P<arm>.+?)[/_.-]+(?:(?:seed|s|run|version)[=_-]?)?(?P<seed>\d+)")
"""Names such as base/0, base_seed0 and base-s0."""


def read_events(path: Path, folders: list[Path], called: str | None) -> Table:
    """Read the runs in a folder, the last value of each scalar.

    Args:
        path: of the folder.
        folders: those in it that hold files of events, a run each.
        called: how these are called, such as `{arm}/{seed}`; None for the usual ways.

    Raises:
        InputError: without TensorBoard, or where a name does not say arm and seed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            f"{path}: TensorBoard's events are read by the package tensorboard, which is not installed; "
            "pip install 'lm-ablations[track]'"
        )
    pattern = USUAL if called is None else _pattern(called)
    rows = []
    for folder in sorted(folders):
        name = folder.relative_to(path).as_posix() if folder != path else path.resolve().name
        match = pattern.fullmatch(name)
        if match is None:
            expected = "names such as base/0 or base_seed0, or --runs-called" if called is None else called
            raise InputError(f"{path}: the run {shown(name)} does not say its arm and its seed; expected {expected}")
        rows.append({"run": name, "arm": match["arm"], "seed": match["seed"], **_last(folder)})
    return Table(path, "TensorBoard's runs", rows, ("scalars.",), ("scalars.",), last=True)


def _pattern(called: str) -> re.Pattern[str]:
    """Compile the pattern of run names.

    Raises:
        InputError: where arm or seed is not in it once.
    """
    if called.count(ARM) != 1 or called.count(SEED) != 1:
        raise InputError(f"--runs-called {called}: expected {ARM} and {SEED}, each once, as in {ARM}/{SEED}")
    escaped = re.escape(called)
    return re.compile(
        escaped.replace(re.escape(ARM), r"(?P<arm>.+?)").replace(re.escape(SEED), r"(?P<seed>[^/]+)"), re.DOTALL
    )


def _last(folder: Path) -> Row:
    """Read the last value of each scalar in the files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(folder), size_guidance={"scalars": 1, "tensors": 1})
    events.Reload()
    values: dict[str, Any] = {}
    for tag in events.Tags()["scalars"]:
        values[tag] = events.Scalars(tag)[-1].value
    for tag in events.Tags()["tensors"]:
        value = tensor_util.make_ndarray(events.Tensors(tag)[-1].tensor_proto)
        if value.size == 1 and value.dtype.kind in "fiu":
            values[tag] = value.item()
    return {f"scalars.{tag}": repr(float(value)) for tag, value in values.items()}
