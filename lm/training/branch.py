"""A run that begins from a checkpoint of a longer one, which has computed the same until then."""

import sys
from pathlib import Path
from typing import Any

import torch

from lm.config.tree import InputError
from lm.store.files import is_intact, read_json, remove, save_checkpoint, to_json, write_atomic
from lm.store.formats import BRANCH, CELL
from lm.store.record import Branched
from lm.store.store import branch_checkpoint


def leave_branch(trainer: Any, work: Path, cell: str) -> None:
    """Write a checkpoint of the run in a work folder, from which `cell` begins, then whose it is beside it."""
    checkpoint = branch_checkpoint(work.parent, cell)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(trainer, checkpoint)
    if trainer.is_global_zero:
        source = CELL.read(read_json(work / "cell.json"), work / "cell.json")["id"]
        content = {"cell": source, "step": trainer.global_step, "threads": torch.get_num_threads()}
        write_atomic(checkpoint.with_suffix(".json"), to_json(BRANCH.stamped(content)))


def find_branch(cells: Path, cell: str) -> Branched | None:
    """Return whose checkpoint was left for a cell, and its step; None without one that this process can go on from.

    With another number of threads it would add in another order. A checkpoint that is damaged is removed.
    """
    checkpoint = branch_checkpoint(cells, cell)
    description = checkpoint.with_suffix(".json")
    if not description.is_file():
        return None
    try:
        content = BRANCH.read(read_json(description), description)
        if not content.keys() >= {"cell", "step", "threads"} or not is_intact(checkpoint):
            raise InputError(f"{checkpoint}: damaged")
    except InputError as error:
        print(f"{error}; the cell begins anew", file=sys.stderr)
        remove(checkpoint.parent)
        return None
    is_alike = content["threads"] == torch.get_num_threads()
    return Branched(cell=content["cell"], step=content["step"]) if is_alike else None
