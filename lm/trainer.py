"""From a cell to its record: training, in a work folder that becomes the finished cell."""

import os
import shutil
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only

from lm.cell import Cell, Run, Trainer, quiet
from lm.components import build
from lm.data.tokens import Facts
from lm.evaluate import FREQUENT, add, evaluations
from lm.model.transformer import initialized
from lm.module import LanguageModel
from lm.provenance import provenance
from lm.recorder import Judge, Recorder, Report, go_on
from lm.results import FORMAT, Record, Store, finite, read_json, to_json, write_atomic


def write_work(cell: Cell, store: Store) -> Path:
    """Puts the cell's description where the process that trains it will look, and returns that folder."""
    import yaml

    work = store.work(cell.id)
    write_atomic(work / "cell.json", to_json(asdict(cell)))
    write_atomic(work / "config.yaml", yaml.safe_dump(cell.config, sort_keys=False))
    return work


@dataclass(frozen=True)
class Execution:
    """How a cell is trained, as opposed to what it computes.

    Args:
        threads: of this process; None leaves torch's choice.
        again: whether to train a cell that has a record already; the record stays until the new one is written.
        checkpoint_seconds: between checkpoints; the most that a kill can cost.
    """

    threads: int | None = None
    again: bool = False
    checkpoint_seconds: float = 20.0


def train(work: Path, report: Report, execution: Execution, judge: Judge = go_on) -> None:
    """Trains the cell described in `work` and makes it a finished cell, whatever becomes of it.

    An earlier try's checkpoint is taken up. An exception is a result: it is recorded with its traceback. An interrupt
    (Ctrl-C, SIGTERM) is not: the checkpoint stays for the next try. A run that `judge` stops leaves nothing behind.
    """
    store, cell_id = Store(work.parent.parent), work.name.removeprefix(".").removesuffix(".work")
    if getattr(
        rank_zero_only, "rank", 0
    ):  # another process of a multi-device cell, whose first process keeps the store
        fit(_read(work), work, report, execution)
        return
    with store.lock(cell_id), quiet():
        store.complete(cell_id)
        if store.finished(cell_id) and not execution.again:  # by another command, while this one waited
            shutil.rmtree(work, ignore_errors=True)
            return
        if execution.threads is not None:
            torch.set_num_threads(execution.threads)
        cell = _read(work)
        times = {"started": time.time(), "resumed": store.started(cell_id)}
        try:
            if not (work / "outcome.json").is_file() and not fit(cell, work, report, execution, judge):
                shutil.rmtree(work)
                return
            outcome = evaluated(cell, work, read_json(work / "outcome.json"))
        except Exception as error:
            outcome = failure(f"{type(error).__name__}: {error}", traceback.format_exc())
        finish(cell, store, outcome, {**times, "finished": time.time()})


def evaluated(cell: Cell, work: Path, outcome: Record) -> Record:
    """The outcome with what else is measured of a model that was trained to its end."""
    checkpoint = work / "final.ckpt"
    if outcome["status"] != "ok" or not checkpoint.is_file():  # a sharding strategy leaves a folder
        return outcome
    try:
        for name, found in evaluations(cell, checkpoint):
            add(outcome, name, found)
    except Exception as error:  # the run itself is as good as it was
        traceback.print_exc()
        outcome["flags"].append(f"not evaluated further: {type(error).__name__}: {error}")
    return finite(outcome)


def _read(work: Path) -> Cell:
    described = read_json(work / "cell.json")
    return Cell(described["config"], Facts(**described["facts"]), described["id"])


def failure(error: str, trace: str | None = None) -> Record:
    """The outcome of a cell that could not be trained to its end."""
    return {"status": "failed", "error": error, "traceback": trace, "metrics": {}, "cost": {}}


def fail(cell: Cell, store: Store, error: str, seconds: float) -> Record:
    """Records that the cell's process ended without a word of its own."""
    now = time.time()
    return finish(cell, store, failure(error), {"started": now - seconds, "finished": now, "resumed": False})


def fit(cell: Cell, work: Path, report: Report, execution: Execution, judge: Judge = go_on) -> bool:
    """Runs Lightning on the cell; the recorder leaves `outcome.json` in `work`. Returns whether it ran to its end."""
    pruned = work / "pruned"
    pruned.unlink(missing_ok=True)  # of a try that was killed before it could clear up
    run: Run = build(cell.config, Run)
    data = run.data(run.seed)
    data.facts = cell.facts
    data.setup("fit")
    model = initialized(run.model, cell.facts.vocabulary, data.context, run.seed)
    classes = data.frequent("validation", FREQUENT)
    module = LanguageModel(model, run.optim, data.bytes_per_token(), run.seed, classes)
    trainer: Trainer = run.trainer(Recorder(work, data, report, execution.checkpoint_seconds, judge))
    # Lightning restores weights before it converts the model: a float64 checkpoint would pass through float32.
    trainer.precision_plugin.convert_module(module)
    checkpoint = work / "last.ckpt"
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint if checkpoint.is_file() else None, weights_only=True)
    return not pruned.is_file()


def finish(cell: Cell, store: Store, outcome: Record, times: dict[str, Any]) -> Record:
    """Makes the work folder a finished cell with a record of `outcome`."""
    final = store.work(cell.id) / "final.ckpt"
    if final.is_file():
        os.replace(final, final.with_name("last.ckpt"))
    record = {
        "format": FORMAT,
        "id": cell.id,
        **outcome,
        "data": {key: value for key, value in asdict(cell.facts).items() if key != "folder"},
        "provenance": {**provenance(), "precision": cell.config["trainer"]["precision"] or "32-true", **times},
    }
    return store.finish(cell.id, record)
