"""How far a cell in the making has come, left in its work folder for those who look at it from another process."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from lm.config.tree import InputError
from lm.store.damage import is_number
from lm.store.files import finite, read_json, to_json, write_atomic
from lm.store.formats import PROGRESS

FILE = "progress.json"
SECONDS_BETWEEN = 1.0
"""At least, between two that are written; nobody reads faster."""


class Progress(TypedDict):
    """`progress.json`: the last optimiser step that was told of, of how many, its training loss, and seconds a step.

    `at` is when, in seconds since 1970. `pace` is None until two steps were told of.
    """

    format: int
    step: int
    steps: int
    loss: float | None
    pace: float | None
    at: float


def kept(work: Path, report: Callable[[int, int, float], None]) -> Callable[[int, int, float], None]:
    """`report` of step, steps and loss, which leaves what it is told in the work folder too.

    A disk that does not take it is none of its business: training itself soon finds that out.
    """
    first: list[tuple[int, float]] = []  # a resumed run does not begin at step 0
    written = [float("-inf")]

    def told(step: int, steps: int, loss: float) -> None:
        report(step, steps, loss)
        now = time.monotonic()
        first[:] = first or [(step, now)]
        if now - written[0] < SECONDS_BETWEEN:
            return
        written[0] = now
        begun, since = first[0]
        pace = (now - since) / (step - begun) if step > begun else None
        found = {"step": step, "steps": steps, "loss": loss, "pace": pace, "at": time.time()}
        with contextlib.suppress(OSError):
            write_atomic(work / FILE, to_json(finite(PROGRESS.stamped(found))))

    return told


def progress_of(work: Path) -> Progress | None:
    """What was told last of the cell in a work folder; None where that is nothing, or nothing that can be read."""
    path = work / FILE
    try:
        found: dict[str, Any] = PROGRESS.read(read_json(path), path)
    except InputError:
        return None
    whole = all(isinstance(found.get(name), int) and is_number(found[name]) for name in ("step", "steps"))
    known = all(found.get(name) is None or is_number(found[name]) for name in ("loss", "pace"))
    if not (whole and known and is_number(found.get("at"))):
        return None
    return Progress(
        format=found["format"],
        step=found["step"],
        steps=found["steps"],
        loss=found.get("loss"),
        pace=found.get("pace"),
        at=float(found["at"]),
    )
