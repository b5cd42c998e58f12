"""From a cell to its record: training, in a work folder that becomes the finished cell."""

import contextlib
import functools
import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lm.config.imported import user_frame
from lm.config.tree import InputError, canonical
from lm.data.tokens import TextStats
from lm.store.documents import write_items
from lm.store.files import (
    disk_error,
    finite,
    holds_mapping,
    is_intact,
    read_json,
    remove,
    to_json,
    write_atomic,
)
from lm.store.formats import CELL, OUTCOME, TRIES, nothing_recorded
from lm.store.leases import LostError, guarding_lease
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Outcome, Record
from lm.store.redaction import redacted
from lm.store.side_files import progress_saver
from lm.store.store import EARLIER, LOG, STACK, Store, branch_checkpoint
from lm.training.adapter import quiet, rank, uses_batch_statistics
from lm.training.branch import find_branch
from lm.training.callbacks import build_callbacks
from lm.training.cell import identity
from lm.training.evaluate import FREQUENT, add, evaluations
from lm.training.identified import Cell, seedless
from lm.training.initial_weights import load_source
from lm.training.loggers import FOLDER, tracked
from lm.training.module import LanguageModel, Logits
from lm.training.process import Execution as Execution
from lm.training.process import is_interrupt, keep_freed_memory
from lm.training.provenance import keep_code, provenance
from lm.training.ranks import nonzero_rank, supervise_ranks
from lm.training.recorder import PruningCallback, Recorder, Report, write_document_losses
from lm.training.run import SINGLE_PROCESS, Trainer

UNEVALUATED = "not evaluated further"  # begins the flag of a cell whose evaluation after training raised an exception
HALVED = "memory did not suffice for a batch at once: each was taken in two halves, whose gradients add up to the same"
HUNG = "a try reported nothing for too long and was ended; where it was stands in log.txt"

# parts of the messages of errors that are only a RuntimeError
OUT_OF_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


def train(
    cell: Cell,  # what to train
    store: Store,  # where the record goes
    report: Report,  # called with step, steps in all and training loss
    execution: Execution,  # how it is trained
    # called with the metrics of each validation; returns False to prune the run
    should_continue: PruningCallback = lambda *_: True,
    log: LogLine = to_stderr,  # called with a line if another process holds the cell
    on_start: Callable[[Path], None] | None = None,  # called with the work folder once this process holds the cell
    wait: bool = True,  # True to wait for another process that holds the cell
) -> None:
    """Train a cell, from its last checkpoint if there is one, and write its record.

    An exception is recorded with its traceback. An interrupt (Ctrl-C, SIGTERM) is not: the checkpoint stays for the
    next attempt. Nor is a disk that is full or fails, which raises OSError. A pruned run leaves nothing behind. Raises
    HeldError if another process holds the cell, and `wait` is False, and LostError if another process has taken the
    cell over, as this one sent no heartbeat for too long.
    """
    work = store.work(cell.id)
    if rank():  # the first process holds the cell
        with nonzero_rank(work):
            fit(cell, work, report, execution)
        return
    with store.lock(cell.id, log, wait), quiet():
        store.complete(cell.id)
        if not store.pending(cell.id, execution.retrain):  # by another command, while this one waited
            store.drop(cell.id)
            return
        write_work(cell, store)
        if on_start is not None:
            on_start(work)
        recover_previous_attempt(work)
        set_threads(cell, store, execution.threads)
        keep_freed_memory()
        _train_held(cell, store, report, execution, should_continue, log)


class ChangedCodeError(InputError):
    """The code of a cell is no longer that of its id, which nothing was trained with."""


def set_threads(cell: Cell, store: Store, threads: int | None) -> None:
    """Use so many threads, or those that torch chooses; for a run that goes on, as many as it began with.

    Another number adds in another order, and a resumed run would not be the one that was never stopped.
    """
    work = store.work(cell.id)
    is_begun = store.started(cell.id) or (work / "outcome.json").is_file()
    earlier = read_previous_attempts(work)["threads"] if is_begun else None
    goes_on = type(earlier) is int and earlier > 0
    if (number := earlier if goes_on else threads) is not None:
        torch.set_num_threads(number)
    if not goes_on:
        add_attempt(work, threads=torch.get_num_threads())


def _train_held(
    cell: Cell, store: Store, report: Report, execution: Execution, should_continue: PruningCallback, log: LogLine
) -> None:
    """Train a cell that this process holds, and write its record."""
    work = store.work(cell.id)
    clock = time.monotonic()  # which nobody sets
    before = read_previous_attempts(work)["resumed"]
    if (resumed := before + 1 if store.started(cell.id) else 0) != before:
        add_attempt(work, resumed=resumed)
    times: dict[str, Any] = {"started": time.time(), "resumed": resumed, "seconds": 0.0}
    begin_from_branch(cell.id, store)
    if (branched := read_previous_attempts(work)["branched"]) is not None:
        times["branched"] = branched

    def end(outcome: Outcome) -> None:
        finish(cell, store, outcome, {**times, "finished": time.time(), "seconds": time.monotonic() - clock})

    try:
        times["code"] = keep_code(cell.config, work)
        if times["code"] and identity(cell.config, cell.facts) != cell.id:
            names = ", ".join(times["code"])
            raise ChangedCodeError(f"{names}: its code was changed after this cell was planned; give the command again")
        config = {**cell.config, "cell": cell.id}
        validated: Logits | None = None
        with tracked(execution.loggers, work, store.out / FOLDER, execution.run_name, config, log) as follow:
            if not (work / "outcome.json").is_file():
                with supervise_ranks(work, lambda error: end(failure(error))):
                    progress = progress_saver(work, report)
                    attempt = functools.partial(fit, cell, work, progress, execution, should_continue, follow)
                    validated = fit_with_oom_retry(cell, work, attempt)
                    if validated is None:
                        store.drop(cell.id)
                        return
        outcome = evaluate_trained(cell, work, validated)
    except (Exception, SystemExit) as error:
        raise_unrecorded(error, work)
        outcome = failure(format_error(error), log_traceback(work))
    outcome["flags"] = [*outcome.get("flags", []), *read_previous_attempts(work)["flags"]]
    end(outcome)


def begin_from_branch(cell: str, store: Store) -> None:
    """Take the checkpoint that a longer run left for a cell, unless the cell has one of its own or is trained."""
    work = store.work(cell)
    if store.started(cell) or (work / "outcome.json").is_file():
        return
    if (branched := find_branch(store.cells, cell)) != read_previous_attempts(work)["branched"]:
        add_attempt(work, branched=branched)
    if branched is not None:
        branch_checkpoint(store.cells, cell).replace(work / "last.ckpt")


def raise_unrecorded(error: BaseException, work: Path) -> None:
    """Raise an error that is no failure of a cell: an interrupt, one of the disk, code or a lease that is another."""
    if isinstance(error, LostError | ChangedCodeError) or (isinstance(error, SystemExit) and is_interrupt(error)):
        raise error
    if (error_of_disk := disk_error(error)) is not None:
        raise error_of_disk from error
    if (lease := guarding_lease(work)) is not None:
        lease.check()


def run_nonzero_rank(work: Path, execution: Execution) -> None:
    """Train in a process of rank 1 or above; the first one holds the cell and has described it in `work`."""
    path = work / "cell.json"
    content = CELL.read(read_json(path), path)
    cell = Cell(content["config"], TextStats(**content["facts"]), content["id"])
    with nonzero_rank(work):
        fit(cell, work, lambda *_: None, execution)


def write_work(cell: Cell, store: Store) -> Path:
    """Write the cell's description, which other processes read, into its work folder; return the folder."""
    import yaml

    work = store.work(cell.id)
    write_atomic(work / "cell.json", to_json(CELL.stamped(asdict(cell))))
    write_atomic(work / "config.yaml", yaml.safe_dump(cell.config, sort_keys=False))
    return work


def evaluate_trained(cell: Cell, work: Path, validated: Logits | None = None) -> Outcome:
    """Return the recorder's outcome with the final evaluations of a trained model, whose `validated` `fit` returned."""
    path, checkpoint = work / "outcome.json", work / "final.ckpt"
    outcome: Outcome = OUTCOME.read(read_json(path), path)
    if outcome["status"] != "ok" or not checkpoint.is_file():
        return outcome
    try:
        for name, evaluation in evaluations(cell, checkpoint, validated):
            if "clusters" in evaluation:
                clusters, *sums = evaluation.pop("clusters")
                measured = {"nll": evaluation["nll"], "clusters": sums}
                outcome |= write_document_losses(work, clusters, measured, "test_nll")
            if name == "tasks":
                outcome["items"] = write_items(work, evaluation.pop("scores"))
            add(outcome, name, evaluation)
    except Exception as error:  # the run itself is as good as it was
        raise_unrecorded(error, work)
        log_traceback(work)
        outcome["flags"].append(f"{UNEVALUATED}: {format_error(error)}")
    return finite(outcome)


def format_error(error: BaseException) -> str:
    """Format an error with its kind, and on the first line where a user's code raised it."""
    first, newline, rest = str(error).partition("\n")
    return f"{type(error).__name__}: {first}{user_frame(error)}{newline}{rest}"


def log_traceback(work: Path) -> str:
    """Write the traceback of the error being handled into the cell's log, and return it."""
    trace = redacted(traceback.format_exc())
    with open(work / LOG, "a", encoding="utf-8") as log:
        log.write(trace)
    return trace


def failure(error: str, trace: str | None = None) -> Outcome:
    """Return the outcome of a cell that could not be trained to its end."""
    return {"status": "failed", "error": error, "traceback": trace, "metrics": {}, "cost": {}}


def fail(
    cell: Cell, store: Store, error: str, seconds: float, retrain: bool = False, trace: Any = None
) -> Record | None:
    """Write and return a `failed` record for a cell whose process died; None if another process holds the cell."""
    with store.claim(cell.id) as claimed:
        if not claimed:
            return None
        store.complete(cell.id)
        if not store.pending(cell.id, retrain):
            return store.record(cell.id)
        now, resumed = time.time(), read_previous_attempts(store.work(cell.id))["resumed"]
        times = {"started": now - seconds, "finished": now, "seconds": seconds, "resumed": resumed}
        return finish(cell, store, failure(error, trace), times)


def finish(cell: Cell, store: Store, outcome: Outcome, times: dict[str, Any]) -> Record:
    """Make the work folder a finished cell with a record of `outcome`."""
    without = ("folder",) if cell.facts.revision else ("folder", "revision")
    record: Any = {
        **nothing_recorded(),
        "id": cell.id,
        **outcome,
        "data": {name: value for name, value in asdict(cell.facts).items() if name not in without},
        "provenance": {**provenance(), "precision": cell.config["trainer"]["precision"] or "32-true", **times},
    }
    return store.finish(cell.id, record)


def fit_with_oom_retry(cell: Cell, work: Path, attempt: Callable[[], Logits | None]) -> Logits | None:
    """Call `attempt`, and again from the last checkpoint with halved batches if memory does not suffice."""
    try:
        return attempt()
    except Exception as error:
        if not is_out_of_memory(error) or read_previous_attempts(work)["halved"] or not can_halve_batch(cell):
            raise
        log_traceback(work)
    gc.collect()  # of what the traceback held
    torch.cuda.empty_cache()
    add_attempt(work, HALVED, halved=True)
    return attempt()


def fit(
    cell: Cell,
    work: Path,
    report: Report,
    execution: Execution,
    should_continue: PruningCallback = lambda *_: True,
    follow: Callable[[Recorder], None] = lambda _: None,
) -> Logits | None:
    """Run Lightning, which leaves `outcome.json`; return None if the run was pruned, else the logits it kept."""
    pruned = work / "pruned"
    pruned.unlink(missing_ok=True)  # of a try that was killed before it could clear up
    built = cell.open()
    run, data = built.run, built.data
    halved = read_previous_attempts(work)["halved"]
    branches: dict[int, list[str]] = {}
    for step, other in () if halved else execution.branches:
        branches.setdefault(step, []).append(other)
    recorder = Recorder(work, data, report, execution.checkpoint_seconds, should_continue, branches)
    follow(recorder)
    trainer: Trainer = run.trainer(recorder)
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks[:0] = build_callbacks(cell.config["trainer"].get("callbacks"), run.seed)  # before what saves them
    code = canonical(seedless(cell.config)) if trainer.compile else None
    model = trainer.prepared(built.model())
    classes, clusters = data.frequent("validation", FREQUENT), data.clusters("validation")
    module = LanguageModel(model, run.optim, data.bytes_per_token(), run.seed, classes, code, halved, clusters)
    # Lightning restores weights before it converts the model: a float64 checkpoint would pass through float32.
    trainer.precision_plugin.convert_module(module)
    checkpoint = work / "last.ckpt"
    if not checkpoint.exists() and trainer.init_from is not None:
        load_source(model, trainer.init_from)
    resumed = checkpoint if checkpoint.exists() else None
    trainer.fit(module, datamodule=data, ckpt_path=resumed, weights_only=True)
    return None if pruned.is_file() else module.last_logits


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if an error, or one that led to it, is that memory did not suffice."""
    if error is None or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return error is not None
    has_message = isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_MESSAGES)
    return has_message or is_out_of_memory(error.__cause__)


def can_halve_batch(cell: Cell) -> bool:
    """Return True if halves of a batch make the same step: one process, and rows that do not affect each other."""
    settings, built = cell.config["trainer"], cell.open()
    if any(settings.get(name, value) != value for name, value in SINGLE_PROCESS.items()):
        return False
    with torch.device("meta"):
        model = built.run.model(built.facts.vocabulary, built.data.context)
    rows = len(next(iter(built.data.training_batches(0, 1))).rows_b)
    return rows > 1 and not any(map(uses_batch_statistics, model.modules()))


def read_previous_attempts(work: Path) -> dict[str, Any]:
    """Read the notes of previous attempts; the plain values if missing or damaged."""
    attempts: dict[str, Any] = {"halved": False, "flags": [], "resumed": 0, "threads": None, "branched": None}
    with contextlib.suppress(InputError):
        content = TRIES.read(read_json(work / EARLIER), work / EARLIER)
        attempts |= {name: content[name] for name in attempts if name in content}
    return attempts


def add_attempt(work: Path, *flags: str, **changes: Any) -> None:
    """Add flags to those of the previous attempts, and change other values."""
    attempts = read_previous_attempts(work)
    attempts |= {**changes, "flags": list(dict.fromkeys([*attempts["flags"], *flags]))}
    write_atomic(work / EARLIER, to_json(TRIES.stamped(attempts)))


def recover_previous_attempt(work: Path) -> None:
    """Append the stack of a previous attempt that hung to the log, and delete its files that are damaged on disk."""
    path = work / STACK
    if path.is_file() and (stack := path.read_text(encoding="utf-8", errors="replace")):
        with open(work / LOG, "a", encoding="utf-8") as log:
            log.write(f"{HUNG.partition(';')[0]}:\n{stack}\n")
        add_attempt(work, HUNG)
    path.unlink(missing_ok=True)
    for name, is_sound, consequence in (
        ("last.ckpt", is_intact, "the cell begins anew"),
        ("outcome.json", holds_mapping, "the end of its training is done again"),
    ):
        if (path := work / name).exists() and not is_sound(path):
            print(f"{path}: damaged; {consequence}", file=sys.stderr)
            remove(path)
