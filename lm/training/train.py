"""From a cell to its record: training, in a work folder that becomes the finished cell."""

import gc
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lm.config.imported import user_frame
from lm.config.tree import InputError, canonical
from lm.data.tokens import Facts
from lm.model.attention import attending
from lm.store.files import disk_error, finite, read_json, to_json, write_atomic
from lm.store.formats import CELL, OUTCOME, nothing_recorded
from lm.store.leases import LostError, guarding_lease
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Outcome, Record
from lm.store.redaction import redacted
from lm.store.side_files import progress_saver
from lm.store.store import LOG, Store
from lm.training import callbacks
from lm.training.adapter import convert, is_further_process, quiet
from lm.training.by_document import by_document
from lm.training.cell import Cell, identity, seedless
from lm.training.evaluate import FREQUENT, add, evaluations
from lm.training.halves import out_of_memory
from lm.training.life import HANG_SECONDS
from lm.training.loggers import FOLDER
from lm.training.module import LanguageModel
from lm.training.provenance import keep_code, provenance
from lm.training.ranks import further, side_by_side
from lm.training.recorder import Judge, Recorder, Report, go_on
from lm.training.run import Trainer
from lm.training.sharded import for_strategy
from lm.training.signals import by_signal
from lm.training.tracking import tracked
from lm.training.tries import HALVED, count_resumed, divides, drop_damaged, earlier, note, take_in_stack

UNEVALUATED = "not evaluated further"
"""Begins the flag of a cell that was trained well, and whose evaluation raised an exception."""


def write_work(cell: Cell, store: Store) -> Path:
    """Makes the cell's work folder, for who holds the cell: its description, which further processes read."""
    import yaml

    work = store.work(cell.id)
    write_atomic(work / "cell.json", to_json(CELL.stamped(asdict(cell))))
    write_atomic(work / "config.yaml", yaml.safe_dump(cell.config, sort_keys=False))
    return work


Logits = list[tuple[torch.Tensor, torch.Tensor]]
"""Of each batch of a split: logits (n, v) and targets (n,)."""


@dataclass(frozen=True)
class Execution:
    """How a cell is trained, as opposed to what it computes.

    Args:
        threads: of this process; None leaves torch's choice.
        again: whether to train a cell that has a record already; the record stays until the new one is written.
        checkpoint_seconds: between checkpoints; the most that a kill can cost.
        hang_seconds: without a sign of life after which its process is ended; 0 for never.
        loggers: that follow the run, by their names in `lm.training.loggers`.
        called: experiment/arm/seed, by which the loggers know the run.
    """

    threads: int | None = None
    again: bool = False
    checkpoint_seconds: float = 20.0
    hang_seconds: float = HANG_SECONDS
    loggers: tuple[str, ...] = ()
    called: str = ""


def nothing(work: Path) -> None:
    """What most do as training begins."""


def train(
    cell: Cell,
    store: Store,
    report: Report,
    execution: Execution,
    judge: Judge = go_on,
    say: LogLine = to_stderr,
    begun: Callable[[Path], None] = nothing,
    wait: bool = True,
) -> None:
    """Trains the cell and makes it a finished cell, whatever becomes of it.

    An earlier try's checkpoint is taken up. An exception is a result: it is recorded with its traceback. An interrupt
    (Ctrl-C, SIGTERM) is not: the checkpoint stays for the next try. Nor is a disk that is full or fails: OSError says
    so. A run that `judge` stops leaves nothing behind. `say` is told of another process that holds the cell, `begun`
    of the work folder once this one does.

    Raises:
        HeldError: where another process holds the cell, and there is to be no waiting.
        LostError: where another has taken the cell over, as this process showed no life for too long.
    """
    work = store.work(cell.id)
    if is_further_process():
        with further(work):
            fit(cell, work, report, execution)
        return
    with store.lock(cell.id, say, wait), quiet():
        store.complete(cell.id)
        if not store.pending(cell.id, execution.again):  # by another command, while this one waited
            store.drop(cell.id)
            return
        write_work(cell, store)
        take_in_stack(work)
        begun(work)
        drop_damaged(work)
        if execution.threads is not None:
            torch.set_num_threads(execution.threads)
        resumed = count_resumed(work, store.started(cell.id))
        times: dict[str, Any] = {"started": time.time(), "resumed": resumed, "seconds": -time.monotonic()}
        try:
            times["code"] = unchanged_code(cell, work)
            known: Logits | None = []
            described = {**cell.config, "cell": cell.id}
            with tracked(execution.loggers, work, store.out / FOLDER, execution.called, described, say) as follow:
                if not (work / "outcome.json").is_file():
                    with side_by_side(work, lambda said: finish(cell, store, failure(said), _until_now(times))):
                        known = fitted(cell, work, progress_saver(work, report), execution, judge, follow)
            if known is None:
                store.drop(cell.id)
                return
            outcome = evaluated(cell, work, outcome_of(work), known)
        except LostError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and by_signal(error):
                raise
            if (broken := disk_error(error)) is not None:
                raise broken from error
            if (lease := guarding_lease(work)) is not None:  # what another took away is no failure of the cell
                lease.check()
            outcome = failure(_in_words(error), _logged_trace(work))
        outcome["flags"] = [*outcome.get("flags", []), *earlier(work)["flags"]]
        finish(cell, store, outcome, _until_now(times))


def _until_now(times: dict[str, Any]) -> dict[str, Any]:
    """Return the times with when they end; how long that took is by a clock that nobody sets."""
    return {**times, "finished": time.time(), "seconds": times["seconds"] + time.monotonic()}


def unchanged_code(cell: Cell, work: Path) -> dict[str, Any]:
    """Keeps a user's own code with the cell. Raises InputError where it no longer is what the cell is known by."""
    kept = keep_code(cell.config, work)
    if kept and identity(cell.config, cell.facts) != cell.id:
        raise InputError(f"{', '.join(kept)}: its code was changed after this cell was planned; give the command again")
    return kept


def outcome_of(work: Path) -> Outcome:
    """What the recorder left at the end of training; before outcomes had a format they had the first."""
    path = work / "outcome.json"
    found = read_json(path)
    return OUTCOME.read({"format": 1, **found} if isinstance(found, dict) else found, path)


def assist(work: Path, execution: Execution) -> None:
    """A further process of a multi-device cell; the first one holds the cell and has described it in `work`."""
    path = work / "cell.json"
    described = CELL.read(read_json(path), path)
    cell = Cell(described["config"], Facts(**described["facts"]), described["id"])
    with further(work):
        fit(cell, work, lambda *_: None, execution)


def evaluated(cell: Cell, work: Path, outcome: Outcome, known: Logits) -> Outcome:
    """The outcome with what else is measured of a model that was trained to its end.

    Its logits on validation may be `known`; that list is emptied.
    """
    checkpoint = work / "final.ckpt"
    if outcome["status"] != "ok" or not checkpoint.is_file():  # a sharding strategy leaves a folder
        return outcome
    try:
        for name, found in evaluations(cell, checkpoint, known):
            if "clusters" in found:
                of, *sums = found.pop("clusters")
                outcome |= by_document(work, of, {"nll": found["nll"], "clusters": sums}, "test_nll")
            add(outcome, name, found)
    except LostError:
        raise
    except Exception as error:  # the run itself is as good as it was
        if (broken := disk_error(error)) is not None:
            raise broken from error
        _logged_trace(work)
        outcome["flags"].append(f"{UNEVALUATED}: {_in_words(error)}")
    return finite(outcome)


def _in_words(error: BaseException) -> str:
    """An error with its kind, and on the first line where a user's code raised it."""
    first, newline, rest = str(error).partition("\n")
    return f"{type(error).__name__}: {first}{user_frame(error)}{newline}{rest}"


def _logged_trace(work: Path) -> str:
    """The traceback of the error being handled, which goes into the cell's log too."""
    trace = redacted(traceback.format_exc())
    with open(work / LOG, "a", encoding="utf-8") as log:
        log.write(trace)
    return trace


def failure(error: str, trace: str | None = None) -> Outcome:
    """The outcome of a cell that could not be trained to its end."""
    return {"status": "failed", "error": error, "traceback": trace, "metrics": {}, "cost": {}}


def fail(cell: Cell, store: Store, error: str, seconds: float, again: bool = False, trace: Any = None) -> Record | None:
    """Records that the cell's process ended without a word of its own; returns the cell's record.

    Who does not hold a cell does not write it: None where another process holds it, whose the cell is now.
    """
    with store.claim(cell.id) as ours:
        if not ours:
            return None
        store.complete(cell.id)
        if not store.pending(cell.id, again):
            return store.record(cell.id)
        now, resumed = time.time(), earlier(store.work(cell.id))["resumed"]
        times = {"started": now - seconds, "finished": now, "seconds": seconds, "resumed": resumed}
        return finish(cell, store, failure(error, trace), times)


def fitted(
    cell: Cell, work: Path, report: Report, execution: Execution, judge: Judge, follow: Callable[[Trainer], None]
) -> Logits | None:
    """`fit`, once more from the last checkpoint where memory does not suffice, with each batch in two halves."""
    try:
        return fit(cell, work, report, execution, judge, follow)
    except Exception as error:
        if not out_of_memory(error) or earlier(work)["halved"] or not divides(cell):
            raise
        _logged_trace(work)
    gc.collect()  # of what the traceback held
    torch.cuda.empty_cache()
    note(work, HALVED, halved=True)
    return fit(cell, work, report, execution, judge, follow)


def fit(
    cell: Cell,
    work: Path,
    report: Report,
    execution: Execution,
    judge: Judge = go_on,
    follow: Callable[[Trainer], None] = lambda _: None,
) -> Logits | None:
    """Runs Lightning on the cell; the recorder leaves `outcome.json` in `work`. `follow` is given the trainer first.

    Returns:
        Logits and targets of the validation split at the end, where they are small enough to be kept, so that they need
        not be computed again; None where the run was pruned.
    """
    pruned = work / "pruned"
    pruned.unlink(missing_ok=True)  # of a try that was killed before it could clear up
    built = cell.open()
    run, data = built.run, built.data
    classes = data.frequent("validation", FREQUENT)
    trainer: Trainer = run.trainer(Recorder(work, data, report, execution.checkpoint_seconds, judge))
    trainer.begin_with(callbacks.built(cell.config["trainer"].get("callbacks")))
    follow(trainer)
    code = canonical(seedless(cell.config)) if trainer.compile else None
    model = attending(built.model(), trainer.attention)
    halved = earlier(work)["halved"]
    module = LanguageModel(
        model, run.optim, data.bytes_per_token(), run.seed, classes, code, halved, data.clusters("validation")
    )
    # Lightning restores weights before it converts the model: a float64 checkpoint would pass through float32.
    convert(trainer, module)
    checkpoint = for_strategy(trainer, work / "last.ckpt")
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    logits, module.logits = module.logits, []  # the module lives on in Lightning's circles
    return None if pruned.is_file() else logits


def finish(cell: Cell, store: Store, outcome: Outcome, times: dict[str, Any]) -> Record:
    """Makes the work folder a finished cell with a record of `outcome`."""
    record: Any = {
        **nothing_recorded(),
        "id": cell.id,
        **outcome,
        "data": {key: value for key, value in asdict(cell.facts).items() if key != "folder"},
        "provenance": {**provenance(), "precision": cell.config["trainer"]["precision"] or "32-true", **times},
    }
    return store.finish(cell.id, record)
