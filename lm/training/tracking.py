"""What follows a run while it trains: loggers are told the rows of its learning curve, and nothing else.

A row is told once a later one has begun, as until then validation may add to it; the last ones are told from
`history.csv`. What has been told is noted in the cell's work folder, so that a run taken up goes on in the same log.
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

Rows = Mapping[int, Mapping[str, float]]
"""A learning curve: for each optimiser step what was measured there."""


class Tracker(Callback):
    """Tells loggers of a run, in the first of its processes, and never harms the run.

    One that fails is left out from then on, with a line. What the loggers do takes no random numbers from the run, and
    its time is not counted as the run's.

    Args:
        work: the folder of the cell in the making.
        say: told of a logger that failed.
    """

    def __init__(self, work: Path, say: LogLine) -> None:
        self.note = work / LOGGED
        self.say = say
        self.process = os.getpid()
        self.loggers: dict[str, Logger] = {}
        self.told: dict[str, int] = {}
        self.seen = 0

    def begin(self, names: Sequence[str], folder: Path, called: str, config: Tree) -> None:
        """Opens the loggers, each where an earlier try has left it."""
        noted, self.loggers, self.seen = self._noted(), {}, 0
        for name in names:
            kind, (run, told) = KINDS[name], noted.get(name, (None, -1))
            with self._forgiven(name):
                self.loggers[name] = kind(folder, called, config, run)
                self.told[name] = -1 if kind.again else told
        self._write()

    def _noted(self) -> dict[str, tuple[str | None, int]]:
        """By which each logger knows the run, and the last step that it was told of."""
        try:
            return {name: (one["run"], int(one["told"])) for name, one in read_json(self.note).items()}
        except (InputError, AttributeError, KeyError, TypeError, ValueError):
            return {}

    def _write(self) -> None:
        noted = {name: {"run": one.run, "told": self.told[name]} for name, one in self.loggers.items()}
        write_atomic(self.note, to_json(noted))

    @contextlib.contextmanager
    def _forgiven(self, name: str) -> Iterator[None]:
        """A logger may fail without harm, and is then told nothing more."""
        try:
            with isolate_rng(include_cuda=False):
                yield
        except Exception as error:
            self.loggers.pop(name, None)
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.say(f"--logger {name}: {redacted(said)}; the run goes on without it")

    def tell(self, rows: Rows, before: int | None = None) -> None:
        """Tells every logger the rows that it has not been told, all or those of earlier steps than `before`.

        A row is noted before it is told: a kill in between may lose it to the logger, and never doubles it.
        """
        for step in sorted(rows):
            if before is not None and step >= before:
                break
            due = [name for name in self.loggers if self.told[name] < step]
            if not due:
                continue
            self.told |= dict.fromkeys(due, step)
            self._write()
            for name in due:
                with self._forgiven(name):
                    self.loggers[name].row(step, rows[step])

    def end(self, status: str) -> None:
        """Closes the loggers."""
        for name in list(self.loggers):
            with self._forgiven(name):
                self.loggers[name].end(status)

    # while it trains

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        recorder: Recorder = next(one for one in trainer.callbacks if isinstance(one, Recorder))
        if os.getpid() != self.process or len(recorder.rows) == self.seen:  # what forked has no loggers of its own
            return
        started, self.seen = time.monotonic(), len(recorder.rows)
        self.tell(recorder.rows, max(recorder.rows))
        recorder.clock += time.monotonic() - started
        recorder.meter.pause()


@contextlib.contextmanager
def tracked(
    names: Sequence[str], work: Path, folder: Path, called: str, config: Tree, say: LogLine
) -> Iterator[Callable[[Any], None]]:
    """Follows a run with loggers; yields what a trainer is to be given to, before it trains.

    Args:
        names: of the loggers; with none, nothing is done.
        work: the folder of the cell in the making, whose `history.csv` is told at the end.
        folder: of what the loggers write.
        called: what the run is called, experiment/arm/seed.
        config: its configuration, and its id.
        say: told of a logger that failed.
    """
    if not names:
        yield lambda trainer: None
        return
    tracker, status = Tracker(work, say), "interrupted"
    tracker.begin(names, folder, called, config)

    def follow(trainer: Any) -> None:
        if tracker.seen:  # another try in this process, from the last checkpoint
            tracker.end("interrupted")
            tracker.begin(names, folder, called, config)
        trainer.callbacks.append(tracker)

    try:
        yield follow
        if (history := work / "history.csv").is_file():  # there is none of a run that was pruned
            tracker.tell(_read(history))
        status = "success"
    except LostError:  # another process goes on with it
        raise
    except Exception:
        status = "failed"
        raise
    finally:
        tracker.end(status)


def _read(path: Path) -> Rows:
    with open(path, encoding="utf-8", newline="") as file:
        return {
            int(row.pop("step")): {unescape_formula(name): float(text) for name, text in row.items() if text}
            for row in csv.DictReader(file)
        }
