"""`lm evaluate`: a finished run is measured again, on its own text or another, and its record keeps what was found."""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from lm.config.components import blame, build, resolve
from lm.config.tree import InputError, Tree, override
from lm.data import IGNORED
from lm.data.batch import Data
from lm.data.pairs import check_pairs, pairs_folder
from lm.data.tokenizer import UNKNOWN, Tokenizer
from lm.data.tokens import Facts, check_entry, sound, tokens_folder
from lm.inference.finished import FinishedRun
from lm.store.metrics import describe
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.evaluate import Trained, add
from lm.training.run import Evaluation, Run

SPLIT = "test"

EXACT, ROUGH = 1e-3, 1e-2
"""By how much of itself a loss may differ between kinds of processors: where logits are computed in float32 or float64,
and in less."""


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        split: None for the test split, if there is one.
        lengths: contexts in tokens.
        tokens: over which lengths are measured, at most; None for as many as the run's configuration says.
        changes: dotted settings of the data, where it is not the run's own.
    """

    split: str | None = None
    lengths: Sequence[int] = ()
    tokens: int | None = None
    changes: Tree | None = None


class _Stored(Tokenizer):
    """A tokenizer that learnt from another text.

    Args:
        path: its `tokenizer.json`.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def learn(self, documents: Sequence[str]) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_file(self.path)


# a finished run ------------------------------------------------------------------------------------------------------


def cell_of(run: FinishedRun) -> Cell:
    """The cell behind a finished run, its text as it lies in the cache or prepared again.

    Raises:
        InputError: where the text is no longer what the run was trained on.
    """
    config, record = resolve(run.config, Run), run.record
    text = record["data"]
    hashes = text["fingerprint"], text["tokenizer"]
    for cached, check in ((tokens_folder(*hashes), check_entry), (pairs_folder(*hashes), check_pairs)):
        facts = Facts(folder=str(cached.resolve()), **text)
        if sound(cached, facts, check):
            return Cell(config, facts, record["id"])
    data = run.data()
    data.prepare_data()
    if (data.facts.fingerprint, data.facts.tokenizer) != hashes:
        raise InputError(
            f"{run.folder}: its text is no longer in the cache, and cannot be prepared again: the text, or what "
            "training a tokenizer on it gives, is another now"
        )
    return Cell(config, data.facts, record["id"])


def other_data(cell: Cell, changes: Tree) -> tuple[Data, Tree]:
    """The run's data with other settings, cut into tokens by the run's own tokenizer; and its configuration.

    Raises:
        InputError: for a setting that is none of the data's, or belongs to the run.
    """
    for key in changes:
        if not key.startswith("data."):
            raise InputError(f"{key}: a finished run can be measured with other settings of data only, as data.corpus")
        if key.startswith(("data.tokenizer", "data.init_args.tokenizer", "data.class_path")):
            raise InputError(f"{key}: is decided by the run, which knows no other tokens; leave it out")
    config = resolve(override(cell.config, changes), Run)
    with blame("data"):
        data: Any = build(config, Run).data(config["seed"])
    data.tokenizer = _Stored(str(Path(cell.facts.folder) / "tokenizer.json"))
    data.prepare_data()
    assert data.facts is not None
    if data.facts.tokenizer != cell.facts.tokenizer:
        raise RuntimeError(f"{cell.facts.folder}: the stored tokenizer reads back as another one")
    return data, config["data"]["init_args"]


# measuring -----------------------------------------------------------------------------------------------------------


def remeasure(folder: Path, request: Request) -> dict[str, dict[str, Any]]:
    """Measures a finished run, adds what is found to its record, and returns that by its name there.

    The test split and lengths on validation stand in tables, anything else in the record's details alone.

    Raises:
        InputError: where the run has no model, or nothing of what is asked for can be measured; where its checkpoint is
            not the one that the record was written with, as far as hashes and losses tell.
    """
    place = folder.resolve()
    FinishedRun.at(place)
    if not os.access(place, os.W_OK):
        raise InputError(f"{folder}: cannot be written to, and what is measured belongs into its record")
    store = Store(place.parent.parent)
    with store.lock(place.name):
        run = FinishedRun.at(place)
        record, cell, checkpoint = run.record, cell_of(run), run.checkpoint
        found = _other(cell, checkpoint, request) if request.changes else _own(cell, checkpoint, record, request)
        for name, measured in found.items():
            keep(record, name, measured)
        store.rewrite(place.name, record)
    return found


def measure_lengths(cell: Cell, store: Store) -> None:
    """Measures a finished cell at the lengths that its configuration asks for, which it was not trained with."""
    place, wanted = store.directory(cell.id), cell.config["evaluate"]
    with store.lock(cell.id):
        run = FinishedRun.at(place)
        record, trained = run.record, _trained(cell, run.checkpoint)
        check_losses(record, {}, trained, run.checkpoint)
        keep(record, "lengths", lengths(trained, record, wanted["lengths"], wanted["tokens"]))
        store.rewrite(cell.id, record)


def keep(record: Record, name: str, found: dict[str, Any]) -> None:
    """Puts a measurement into a record; into its metrics only if a table has a name for it."""
    if name == "lengths":
        record["metrics"] = {key: value for key, value in record["metrics"].items() if "@" not in key}
    if name in (SPLIT, "lengths"):
        add(record, name, found)
    else:
        record["evaluations"][name] = found


def lengths(trained: Trained, record: Record, wanted: Sequence[int], tokens: int) -> dict[str, Any]:
    """NLL on validation at the lengths wanted and those measured before, all over the same tokens."""
    before = [int(length) for length in record["evaluations"].get("lengths", {})]
    every = sorted({*wanted, *before})
    if tokens < every[-1]:
        raise InputError(
            f"evaluate.tokens: expected {every[-1]} or more, the longest of the lengths {', '.join(map(str, every))} "
            f"that are asked for or were measured before, found {tokens}"
        )
    return trained.lengths(every, "validation", tokens)


def _trained(cell: Cell, checkpoint: Path, data: Data | None = None) -> Trained:
    with blame("trainer"):  # Lightning checks accelerator and precision against this machine
        return Trained(cell, checkpoint, data)


def _tokens(cell: Cell, request: Request) -> int:
    return request.tokens or (cell.config["evaluate"] or {}).get("tokens") or Evaluation().tokens


def _own(cell: Cell, checkpoint: Path, record: Record, request: Request) -> dict[str, Any]:
    trained, found = _trained(cell, checkpoint), dict[str, Any]()
    has_test = bool(len(trained.data.evaluation_batches(SPLIT)))
    if request.split or has_test or not request.lengths:
        found[request.split or SPLIT] = trained.split(request.split or SPLIT)
    if request.lengths:
        found["lengths"] = lengths(trained, record, request.lengths, _tokens(cell, request))
    check_losses(record, found, trained, checkpoint)
    return found


def check_losses(record: Record, found: dict[str, Any], trained: Trained, checkpoint: Path) -> None:
    """Check that what is measured of a run's own text comes to the losses in its record.

    Where the record holds the hash of the checkpoint, which was looked at before, a difference is said in a line on
    standard error. Where it holds none, as of an older version, the weights may be another cell's.

    Args:
        record: of the run.
        found: what was measured by now, by split; where that says nothing of validation, and there is no hash, the
            validation split is measured.
        trained: the model.
        checkpoint: where its weights lie.

    Raises:
        InputError: for losses that differ, without a hash.
    """
    hashed = record["provenance"].get("checkpoint") is not None
    for split, loss in _losses(found, trained, hashed).items():
        name = "nll" if split == "validation" else f"{split}_nll"
        written = record["metrics"].get(name)
        reduced = (record["provenance"]["precision"] or "32-true") not in ("32-true", "64-true")
        if written is None or math.isclose(loss, written, rel_tol=ROUGH if reduced else EXACT):
            continue
        differs = f"{checkpoint}: gives {_label(name)} of {loss:z.6g}, expected {written:z.6g} as in the record"
        if not hashed:
            raise InputError(f"{differs}; these are other weights, or other code; nothing was written")
        print(f"{differs}; its weights are the record's, so other code or another machine makes it so", file=sys.stderr)


def _losses(found: dict[str, Any], trained: Trained, hashed: bool) -> dict[str, float]:
    """Return the NLL of the run's own splits that are in its record, in nats per token."""
    losses = {split: float(found[split]["nll"]) for split in ("validation", SPLIT) if split in found}
    for measured in found.values():
        if scaled := measured.get("scaled"):
            losses["validation"] = float(scaled["validation_nll"][0])
    if "validation" not in losses and not hashed:
        losses["validation"] = float(trained.split("validation")["nll"])
    return losses


def _label(name: str) -> str:
    return f"a {describe(name).label}"


def _other(cell: Cell, checkpoint: Path, request: Request) -> dict[str, Any]:
    data, settings = other_data(cell, request.changes or {})
    trained, split, facts = _trained(cell, checkpoint, data), request.split or SPLIT, data.facts
    assert facts is not None
    with blame("data"):  # an encoding that ends with the trained length says so
        found = trained.split(split)
    if request.lengths:
        found["lengths"] = trained.lengths(request.lengths, split, _tokens(cell, request))
    found["text"] = {
        "data": settings | {"tokenizer": "the run's own"},
        "fingerprint": facts.fingerprint,
        "tokens": facts.tokens[split],
        "unknown_share": unknown_share(cell, data, split),
    }
    return {f"{split} of {facts.fingerprint[:12]}": found}


def unknown_share(cell: Cell, data: Data, split: str) -> float:
    """The share of a split's targets that the run's tokenizer does not know."""
    path = Path(cell.facts.folder) / "tokenizer.json"
    unknown = tokenizers.Tokenizer.from_file(str(path)).token_to_id(UNKNOWN)
    targets = [batch.targets_bt[batch.targets_bt != IGNORED] for batch in data.evaluation_batches(split)]
    count = sum(int((targets_n == unknown).sum()) for targets_n in targets) if unknown is not None else 0
    return count / sum(map(len, targets))
