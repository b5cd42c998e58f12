"""Loggers that follow a run while it trains: they receive the rows of its learning curve, and nothing else.

A row is logged once a later one has begun, as until then validation may add to it; the last ones come from
`history.csv`. The last logged step is saved in the cell's work folder, so that a resumed run continues the same log.
"""

import contextlib
import csv
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.utilities.seed import isolate_rng

from lm.config.tree import InputError, Tree
from lm.store.files import read_json, to_json, unescape_formula, write_atomic
from lm.store.leases import LostError
from lm.store.locks import LogLine
from lm.store.redaction import redacted
from lm.store.store import LOGGED
from lm.training.loggers import KINDS, Logger
from lm.training.recorder import Recorder

Rows = Mapping[int, Mapping[str, float]]  # a learning curve: the measurements at each optimiser step


class Tracker(Callback):
    """Passes the rows of a run to loggers, in its first process; one that fails is dropped, and the run goes on."""

    def __init__(self, work: Path, log: LogLine) -> None:
        self.path, self.log, self.process = work / LOGGED, log, os.getpid()
        self.loggers: dict[str, Logger] = {}
        self.last_logged_step: dict[str, int] = {}
        self.num_rows = 0

    def begin(self, names: Sequence[str], folder: Path, run_name: str, config: Tree) -> None:
        """Open the loggers, each at the end of its existing log."""
        try:
            logged = {name: (entry["run"], int(entry["told"])) for name, entry in read_json(self.path).items()}
        except (InputError, AttributeError, KeyError, TypeError, ValueError):
            logged = {}
        self.loggers, self.num_rows = {}, 0
        for name in names:
            kind, (run, step) = KINDS[name], logged.get(name, (None, -1))
            with self._best_effort(name):
                self.loggers[name] = kind(folder, run_name, config, run)
                self.last_logged_step[name] = -1 if kind.restart_on_resume else step
        self._write()

    def _write(self) -> None:
        steps, loggers = self.last_logged_step, self.loggers.items()
        write_atomic(self.path, to_json({name: {"run": of.run, "told": steps[name]} for name, of in loggers}))

    @contextlib.contextmanager
    def _best_effort(self, name: str) -> Iterator[None]:
        """Drop a logger that raises an exception."""
        try:
            with isolate_rng(include_cuda=False):
                yield
        except Exception as error:
            self.loggers.pop(name, None)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.log(f"--logger {name}: {redacted(reason)}; the run goes on without it")

    def log_rows(self, rows: Rows, before: int | None = None) -> None:
        """Pass new rows, `before` a step, to each logger; the step is saved first, so that no row is doubled."""
        for step in sorted(rows):
            if before is not None and step >= before:
                break
            due = [name for name in self.loggers if self.last_logged_step[name] < step]
            if not due:
                continue
            self.last_logged_step |= dict.fromkeys(due, step)
            self._write()
            for name in due:
                with self._best_effort(name):
                    self.loggers[name].row(step, rows[step])

    def end(self, status: str) -> None:
        """Close the loggers."""
        for name in list(self.loggers):
            with self._best_effort(name):
                self.loggers[name].end(status)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Pass new rows of the recorder on to the loggers."""
        recorder: Recorder = next(callback for callback in trainer.callbacks if isinstance(callback, Recorder))
        if os.getpid() != self.process or len(recorder.rows) == self.num_rows:  # a fork has no loggers of its own
            return
        started, self.num_rows = time.monotonic(), len(recorder.rows)
        self.log_rows(recorder.rows, max(recorder.rows))
        recorder.clock += time.monotonic() - started
        recorder.meter.pause()


@contextlib.contextmanager
def tracked(
    names: Sequence[str], work: Path, folder: Path, run_name: str, config: Tree, log: LogLine
) -> Iterator[Callable[[Any], None]]:
    """Follow a run with loggers, if any: yield a function to call with each trainer, and log the rest at the end."""
    if not names:
        yield lambda trainer: None
        return
    tracker, status = Tracker(work, log), "interrupted"
    tracker.begin(names, folder, run_name, config)

    def follow(trainer: Any) -> None:
        if tracker.num_rows:  # another attempt in this process, from the last checkpoint
            tracker.end("interrupted")
            tracker.begin(names, folder, run_name, config)
        trainer.callbacks.append(tracker)

    try:
        yield follow
        if (history := work / "history.csv").is_file():  # there is none of a run that was pruned
            with open(history, encoding="utf-8", newline="") as file:
                rows = {
                    int(row.pop("step")): {unescape_formula(name): float(text) for name, text in row.items() if text}
                    for row in csv.DictReader(file)
                }
            tracker.log_rows(rows)
        status = "success"
    except LostError:  # another process goes on with it
        raise
    except Exception:
        status = "failed"
        raise
    finally:
        tracker.end(status)
