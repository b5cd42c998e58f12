"""`lm evaluate`: measure a finished run again, on its own text or another, and add the results to its record."""

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
from lm.data.tokenizer import Learnt, unknown_token
from lm.data.tokens import TOKENIZER
from lm.inference.finished import FinishedRun
from lm.store.documents import write_items
from lm.store.metrics import describe, is_at_length
from lm.store.record import Record
from lm.store.store import Store
from lm.training.evaluate import TrainedCell, add
from lm.training.identified import Cell
from lm.training.run import RunConfig, evaluation_of

SPLIT = "test"

# relative tolerance of a loss between kinds of processors: with logits in float32 or float64, and in less
EXACT, ROUGH = 1e-3, 1e-2


@dataclass(frozen=True)
class Request:
    """Measurements to make."""

    split: str | None = None  # None for the test split, if there is one
    lengths: Sequence[int] = ()  # contexts in tokens
    tokens: int | None = None  # at most over which lengths are measured; None for the number in the configuration
    changes: Tree | None = None  # dotted settings of the data, where it is not the run's own
    tasks: Sequence[str] = ()  # of lm-evaluation-harness, each a YAML file or a name
    limit: int | None = None  # items of each task, at most


def cell_of(run: FinishedRun) -> Cell:
    """Return the cell of a finished run. Raises InputError where its text is no longer that of the run."""
    return Cell(resolve(run.config, RunConfig), run.facts(), run.record["id"])


def other_data(cell: Cell, changes: Tree) -> tuple[Data, Tree]:
    """Return data with other settings and the run's tokenizer, and its configuration. Raises InputError."""
    for key in changes:
        if not key.startswith("data."):
            raise InputError(f"{key}: a finished run can be measured with other settings of data only, as data.corpus")
        if key.startswith(("data.tokenizer", "data.init_args.tokenizer", "data.class_path")):
            raise InputError(f"{key}: is decided by the run, which knows no other tokens; leave it out")
    config = resolve(override(cell.config, changes), RunConfig)
    with blame("data"):
        data: Any = build(config, RunConfig).data(config["seed"])
    stored = tokenizers.Tokenizer.from_file(str(Path(cell.facts.folder) / TOKENIZER))
    data.tokenizer = Learnt(stored, cell.facts.end_of_text)
    data.prepare_data()
    assert data.facts is not None
    if data.facts.tokenizer != cell.facts.tokenizer:
        raise RuntimeError(f"{cell.facts.folder}: the stored tokenizer reads back as another one")
    return data, config["data"]["init_args"]


def remeasure(folder: Path, request: Request) -> dict[str, dict[str, Any]]:
    """Measure a finished run, add the results to its record, and return them by their name there. Raises InputError."""
    resolved = folder.resolve()
    FinishedRun.at(resolved)
    if not os.access(resolved, os.W_OK):
        raise InputError(f"{folder}: cannot be written to, and what is measured belongs into its record")
    store = Store(resolved.parent.parent)
    with store.lock(resolved.name):
        run = FinishedRun.at(resolved)
        record, cell, checkpoint = run.record, cell_of(run), run.checkpoint
        tokens = request.tokens or evaluation_of(cell.config).length_tokens
        if request.changes:
            results = _measure_other_data(cell, checkpoint, request, request.changes, tokens)
        else:
            trained, results = _trained(cell, checkpoint), {}
            has_test = bool(len(trained.data.evaluation_batches(SPLIT)))
            if request.split or not (request.lengths or request.tasks) or (has_test and not request.tasks):
                results[request.split or SPLIT] = trained.split(request.split or SPLIT)
            if request.lengths:
                results["lengths"] = lengths(trained, record, request.lengths, tokens)
            check_losses(record, results, trained, checkpoint)
            if request.tasks:
                results["tasks"] = tasks(trained, record, cell, request, resolved)
        for name, measured in results.items():
            add_to_record(record, name, measured)
        store.rewrite(resolved.name, record)
    return results


def measure_lengths(cell: Cell, store: Store) -> None:
    """Measure a finished cell at the context lengths that were added to its configuration since."""
    settings = evaluation_of(cell.config)
    with store.lock(cell.id):
        run = FinishedRun.at(store.directory(cell.id))
        record, trained = run.record, _trained(cell, run.checkpoint)
        check_losses(record, {}, trained, run.checkpoint)
        add_to_record(record, "lengths", lengths(trained, record, settings.lengths, settings.length_tokens))
        store.rewrite(cell.id, record)


def add_to_record(record: Record, name: str, measured: dict[str, Any]) -> None:
    """Add a measurement to a record, and to its metrics if a table has a name for it."""
    if name == "lengths":
        record["metrics"] = {key: value for key, value in record["metrics"].items() if not is_at_length(key)}
    if name in (SPLIT, "lengths", "tasks"):
        add(record, name, measured)
    else:
        record["evaluations"][name] = measured


def lengths(trained: TrainedCell, record: Record, requested: Sequence[int], tokens: int) -> dict[str, Any]:
    """Return NLL on validation at the requested lengths and those measured before, all over the same tokens."""
    before = [int(length) for length in record["evaluations"].get("lengths", {})]
    every = sorted({*requested, *before})
    if tokens < every[-1]:
        reason = f"the longest of the lengths {', '.join(map(str, every))} that are asked for or were measured before"
        raise InputError(f"evaluate.tokens: expected {every[-1]} or more, {reason}, found {tokens}")
    return trained.lengths(every, "validation", tokens)


def tasks(trained: TrainedCell, record: Record, cell: Cell, request: Request, folder: Path) -> dict[str, Any]:
    """Measure tasks, and write the scores of their items beside the record.

    Raises InputError for other items of a task that the run was planned with, as these are part of its id.
    """
    from lm.training.harness.tasks import resolve_tasks  # an optional package, and seconds

    nodes = resolve_tasks(request.tasks, request.limit, trained.data.context)
    for planned in (cell.config.get("evaluate") or {}).get("tasks") or ():
        for node in nodes:
            if set(node["quantities"]) & set(planned["quantities"]) and node["sha256"] != planned["sha256"]:
                name = node["quantities"][0].partition("@")[2]
                raise InputError(f"--tasks: {name}: this run was planned with other items of it; give it another name")
    measured = trained.tasks(nodes, request.limit)
    record["items"] = {**record.get("items", {}), **write_items(folder, measured.pop("scores"))}
    return measured


def _trained(cell: Cell, checkpoint: Path, data: Data | None = None) -> TrainedCell:
    with blame("trainer"):  # Lightning checks accelerator and precision against this machine
        return TrainedCell(cell, checkpoint, data)


def check_losses(record: Record, results: dict[str, Any], trained: TrainedCell, checkpoint: Path) -> None:
    """Check losses against the record's: report a difference, or raise InputError if no hash vouches for weights."""
    hashed = record["provenance"].get("checkpoint") is not None
    losses = {split: float(results[split]["nll"]) for split in ("validation", SPLIT) if split in results}
    for measured in results.values():
        if scaled := measured.get("scaled"):
            losses["validation"] = float(scaled["validation_nll"][0])
    if "validation" not in losses and not hashed:
        losses["validation"] = float(trained.split("validation")["nll"])
    for split, loss in losses.items():
        name = "nll" if split == "validation" else f"{split}_nll"
        written = record["metrics"].get(name)
        reduced = (record["provenance"]["precision"] or "32-true") not in ("32-true", "64-true")
        if written is None or math.isclose(loss, written, rel_tol=ROUGH if reduced else EXACT):
            continue
        label = describe(name).label
        differs = f"{checkpoint}: gives a {label} of {loss:z.6g}, expected {written:z.6g} as in the record"
        if not hashed:
            raise InputError(f"{differs}; these are other weights, or other code; nothing was written")
        print(f"{differs}; its weights are the record's, so other code or another machine makes it so", file=sys.stderr)


def _measure_other_data(
    cell: Cell, checkpoint: Path, request: Request, changes: Tree, tokens: int
) -> dict[str, dict[str, Any]]:
    """Return measurements on the data with other settings, by a name that holds the fingerprint of its text."""
    data, settings = other_data(cell, changes)
    trained, split, facts = _trained(cell, checkpoint, data), request.split or SPLIT, data.facts
    assert facts is not None
    with blame("data"):  # an encoding that ends with the trained length says so
        measured = trained.split(split)
    if request.lengths:
        measured["lengths"] = trained.lengths(request.lengths, split, tokens)
    measured["text"] = {
        "data": settings | {"tokenizer": "the run's own"},
        "fingerprint": facts.fingerprint,
        "tokens": facts.tokens[split],
        "unknown_share": unknown_share(cell, data, split),
    }
    return {f"{split} of {facts.fingerprint[:12]}": measured}


def unknown_share(cell: Cell, data: Data, split: str) -> float:
    """Return the share of a split's targets that the run's tokenizer does not know."""
    path = Path(cell.facts.folder) / TOKENIZER
    unknown = unknown_token(tokenizers.Tokenizer.from_file(str(path)))
    targets = [batch.targets_bt[batch.targets_bt != IGNORED] for batch in data.evaluation_batches(split)]
    count = sum(int((targets_n == unknown).sum()) for targets_n in targets) if unknown is not None else 0
    return count / sum(map(len, targets))
