"""What earlier tries at a cell came to, kept in its work folder until it is in the record."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch

from lm.config.tree import InputError
from lm.store.files import holds_mapping, read_json, remove, restore_backup, to_json, write_atomic
from lm.store.formats import TRIES
from lm.store.store import EARLIER, LOG, STACK
from lm.training.adapter import looks_across_rows
from lm.training.cell import Cell
from lm.training.run import ALONE
from lm.training.sharded import whole

HALVED = "memory did not suffice for a batch at once: each was taken in two halves, whose gradients add up to the same"
HUNG = "a try reported nothing for too long and was ended; where it was stands in log.txt"


def earlier(work: Path) -> dict[str, Any]:
    """Return what earlier tries left: nothing where that cannot be read.

    `halved` says whether batches are taken in halves, `flags` go into the record, `resumed` counts how often the run
    was taken up from a checkpoint.
    """
    path = work / EARLIER
    nothing: dict[str, Any] = {"halved": False, "flags": [], "resumed": 0}
    if not path.is_file():
        return nothing
    with contextlib.suppress(InputError):
        found = TRIES.read(read_json(path), path)
        count = found.get("resumed", 0)
        if isinstance(found.get("halved"), bool) and isinstance(found.get("flags"), list) and isinstance(count, int):
            return {"halved": found["halved"], "flags": [str(flag) for flag in found["flags"]], "resumed": count}
    return nothing


def note(work: Path, flag: str, halved: bool = False) -> None:
    """Adds a flag to those of the tries before."""
    before = earlier(work)
    flags = list(dict.fromkeys([*before["flags"], flag]))
    _leave(work, {**before, "halved": halved or before["halved"], "flags": flags})


def count_resumed(work: Path, checkpoint: bool) -> int:
    """Return how often a run was resumed, this time included; a run without a `checkpoint` begins anew, with 0."""
    before = earlier(work)
    count: int = before["resumed"] + 1 if checkpoint else 0
    if count != before["resumed"]:
        _leave(work, {**before, "resumed": count})
    return count


def _leave(work: Path, tries: dict[str, Any]) -> None:
    write_atomic(work / EARLIER, to_json(TRIES.stamped(tries)))


def divides(cell: Cell) -> bool:
    """Whether the halves of a cell's batches make the same step: one process, and rows that do not see each other."""
    settings, found = cell.config["trainer"], cell.open()
    if any(settings.get(name, value) != value for name, value in ALONE.items()):
        return False
    with torch.device("meta"):
        model = found.run.model(found.facts.vocabulary, found.data.context)
    rows = len(next(iter(found.data.training_batches(0, 1))).rows_b)
    return rows > 1 and not any(map(looks_across_rows, model.modules()))


def take_in_stack(work: Path) -> None:
    """Puts into the log where a try was that hung, for who holds the cell."""
    path = work / STACK
    if path.is_file() and (stack := path.read_text(encoding="utf-8", errors="replace")):
        with open(work / LOG, "a", encoding="utf-8") as log:
            log.write(f"{HUNG.partition(';')[0]}:\n{stack}\n")
        note(work, HUNG)
    path.unlink(missing_ok=True)


def drop_damaged(work: Path) -> None:
    """What the disk did not keep of an earlier try is no reason for a cell to fail: it goes on from what is left."""
    restore_backup(work / "last.ckpt")
    anew, again = "the cell begins anew", "the end of its training is done again"
    for path, holds, then in ((work / "last.ckpt", whole, anew), (work / "outcome.json", holds_mapping, again)):
        if path.exists() and not holds(path):
            print(f"{path}: damaged; {then}", file=sys.stderr)
            remove(path)
