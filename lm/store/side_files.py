"""Small files beside the records: the progress of a cell, and what was measured once for a folder of results."""

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from typing_extensions import TypedDict

from lm.config.keys import keys
from lm.config.tree import InputError
from lm.store.files import finite, read_json, to_json, write_atomic
from lm.store.formats import PROGRESS, WAYS, Content
from lm.store.locks import locked
from lm.store.validation import errors_in

PROGRESS_FILE = "progress.json"
SECONDS_BETWEEN = 1.0  # shortest interval between two writes; nobody reads faster
CURVE_POINTS = 200  # largest number of points of the curve that `progress.json` holds


class ProgressFile(TypedDict):
    """`progress.json`: the last reported step of how many, its training loss and the seconds a step takes.

    `at` is when, in seconds since 1970. `pace` is None until two steps were reported. `curve` has steps with their
    training losses so far; files of earlier versions have none.
    """

    format: int
    step: int
    steps: int
    loss: float | None
    pace: float | None
    at: float
    curve: list[tuple[int, float]]


def progress_saver(work: Path, report: Callable[[int, int, float], None]) -> Callable[[int, int, float], None]:
    """Extend a callback of step, steps and loss so that it writes them into the work folder too.

    Errors of the disk are ignored here: training itself soon meets them.
    """
    first: list[tuple[int, float]] = []  # a resumed run does not start at step 0
    written = float("-inf")
    earlier = read_progress(work)
    curve = earlier["curve"] if earlier else []

    def save(step: int, steps: int, loss: float) -> None:
        nonlocal written
        report(step, steps, loss)
        while curve and curve[-1][0] >= step:  # a resumed run computes them again
            curve.pop()
        if math.isfinite(loss) and (not curve or (step - curve[-1][0]) * CURVE_POINTS >= steps):
            curve.append((step, loss))
        now = time.monotonic()
        first[:] = first or [(step, now)]
        if now - written < SECONDS_BETWEEN:
            return
        written, (first_step, since) = now, first[0]
        pace = (now - since) / (step - first_step) if step > first_step else None
        progress = {"step": step, "steps": steps, "loss": loss, "pace": pace, "at": time.time(), "curve": curve}
        with contextlib.suppress(OSError):
            write_atomic(work / PROGRESS_FILE, to_json(finite(PROGRESS.stamped(progress))), sync=False)

    return save


def read_progress(work: Path) -> ProgressFile | None:
    """Read the progress of the cell in a work folder; return None if there is none, or it is damaged."""
    path = work / PROGRESS_FILE
    try:
        content = PROGRESS.read(read_json(path), path)
    except InputError:
        return None
    values: Any = {"loss": None, "pace": None, "curve": [], **content}
    for _, place, _ in errors_in(values, ProgressFile, as_json=True):
        if place[0] != "curve":
            return None
        values["curve"] = []
    values["curve"] = [tuple(point) for point in values["curve"]]
    return cast(ProgressFile, {name: values[name] for name in keys(ProgressFile)})


# measurements of a folder of results ---------------------------------------------------------------------------------

WAYS_FILE = "ways.json"


def read_cached(path: Path) -> Content:
    """Return the content of a file of choices of `auto`; raise InputError if it is damaged."""
    content = WAYS.read(read_json(path), path) if path.is_file() else WAYS.stamped({})
    if not isinstance(content.setdefault("decisions", {}), dict):
        raise InputError(f"{path}: decisions: is damaged; delete it, and it is measured anew")
    return content


def measure_once(
    path: Path, read: Callable[[Path], Content], key: str, question: str, measure: Callable[[], Any]
) -> Any:
    """Return the answer to a question under `key` of what `read` returns, or measure it and store it there.

    One process of a folder measures at a time: another would slow it down, and might get another answer.
    """
    if question in (answers := read(path)[key]):
        return answers[question]
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), f"what another command measures for {path}"):
        content = read(path)
        if question not in (answers := content[key]):
            answers[question] = measure()
            write_atomic(path, to_json(content))
    return answers[question]
