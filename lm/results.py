"""The run record and the store on disk. Imports no torch, so that reports are quick and run anywhere.

    OUT/cells/<id>/          a finished cell: config.yaml, record.json, history.csv, last.ckpt, log.txt
    OUT/cells/.<id>.work/    a cell in the making; renamed to <id> once everything in it is written
    OUT/cells/.locks/<id>    held by the process that trains the cell, which alone writes into the work folder
    OUT/<experiment>/        experiment.json, table.md, table.csv, figures

A cell is finished or it is not: the rename is the only step that makes it so.
"""

import contextlib
import csv
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from lm.config import InputError, path_name, require_regular
from lm.damage import of_record
from lm.formats import RECORD
from lm.locks import Say, holder, if_free, locked, to_stderr
from lm.plain import shown
from lm.record import Record
from lm.storage import SAVING, named

WORK_FILES = ("cell.json", "outcome.json", SAVING)
"""What a work folder holds that a finished cell does not."""

LOG = "log.txt"
"""What the process that trained a cell printed, and its traceback if it failed."""


@dataclass(frozen=True)
class Quantity:
    """How a measured quantity is shown: its label, its unit, and which way is better (None: neither)."""

    label: str
    unit: str
    better: Literal["lower", "higher"] | None
    digits: int = 4


QUANTITIES: dict[str, Quantity] = {
    "nll": Quantity("validation NLL", "nats/token", "lower"),
    "perplexity": Quantity("perplexity", "", "lower", 3),
    "bits_per_byte": Quantity("bits per byte", "bits/byte", "lower"),
    "accuracy": Quantity("accuracy", "", "higher"),
    "ece": Quantity("ECE, 15 bins", "", "lower"),
    "mce": Quantity("largest calibration error of a bin", "", "lower"),
    "ece_adaptive": Quantity("ECE, 15 bins of equal mass", "", "lower"),
    "ece_corrected": Quantity("ECE less noise, of which a calibrated model keeps a quarter", "", "lower"),
    "ece_debiased": Quantity("ECE less noise, of which a calibrated model keeps over half", "", "lower"),
    "ece_floor": Quantity("ECE if perfectly calibrated", "", None),
    "ece_classwise": Quantity("ECE, class-wise", "", "lower", 6),
    "brier": Quantity("Brier score", "", "lower"),
    "test_nll": Quantity("test NLL", "nats/token", "lower"),
    "test_perplexity": Quantity("test perplexity", "", "lower", 3),
    "test_ece": Quantity("test ECE, 15 bins", "", "lower"),
    "test_ece_floor": Quantity("test ECE if perfectly calibrated", "", None),
    "test_brier": Quantity("test Brier score", "", "lower"),
    "temperature": Quantity("temperature fitted on validation", "", None),
    "temperature_gain": Quantity("validation NLL that the temperature saves", "nats/token", None, 6),
    "argmax_changed": Quantity("tokens whose best guess the temperature changed", "", None, 0),
    "scaled_nll": Quantity("test NLL at that temperature", "nats/token", "lower"),
    "scaled_ece": Quantity("test ECE at that temperature", "", "lower"),
    "scaled_ece_floor": Quantity("test ECE at that temperature if perfectly calibrated", "", None),
    "scaled_brier": Quantity("test Brier score at that temperature", "", "lower"),
    "excess_nll": Quantity("NLL over the entropy rate", "nats/token", "lower"),
    "train_loss": Quantity("training loss", "nats/token", "lower"),
    "gradient_norm": Quantity("gradient norm, mean", "", None),
    "clipped_share": Quantity("share of clipped steps", "", None, 3),
    "update_ratio": Quantity("update over weight norm, last", "", None, 6),
    "noise_scale": Quantity("gradient noise scale", "tokens", None, 0),
    "attention_entropy": Quantity("attention entropy over ln n", "", None, 3),
    "attention_logit": Quantity("largest attention logit", "", None, 2),
    "attention_first": Quantity("attention on the first token", "", None, 3),
    "residual_norm": Quantity("residual stream norm, last layer", "", None, 2),
    "dead_share": Quantity("dead ReLU units", "", "lower", 3),
    "tokens_per_second": Quantity("tokens per second", "1/s", "higher", 0),
    "step_time_median": Quantity("step time, median", "s", "lower"),
    "step_time_p95": Quantity("step time, 95th percentile", "s", "lower"),
    "flops_per_token": Quantity("training FLOPs per token", "", None, 0),
    "mfu": Quantity("model-FLOPs utilisation", "", "higher", 3),
    "data_wait": Quantity("share of time waiting for data", "", "lower", 4),
    "energy": Quantity("energy of the device", "J", "lower", 0),
    "train_seconds": Quantity("training time", "s", "lower", 1),
    "peak_memory": Quantity("peak memory", "MiB", "lower", 0),
    "parameters": Quantity("parameters", "", None, 0),
    "tokens": Quantity("training tokens", "", None, 0),
}
"""The quantities that tables know, in their order; units and directions live here alone.

A record may hold other metrics: they stand in the tables under their own names, after these, and without a direction.
"""


AT_LENGTH = {
    "nll": Quantity("validation NLL, blocks of {} tokens", "nats/token", "lower"),
    "perplexity": Quantity("perplexity, blocks of {} tokens", "", "lower", 3),
    "sliding_nll": Quantity("validation NLL, window of {} tokens", "nats/token", "lower"),
}


APART = ("evaluated_tokens", "reliability")
"""What an evaluation leaves besides metrics, for other parts of the record."""


def describe(name: str) -> Quantity:
    """What a quantity is: one of QUANTITIES, or one at a length, `nll@512`; anything else speaks for itself."""
    base, at, length = name.partition("@")
    if at and base in AT_LENGTH:
        return replace(AT_LENGTH[base], label=AT_LENGTH[base].label.format(length))
    return QUANTITIES.get(name, Quantity(name, "", None))


def metrics_of(measured: Mapping[str, Any]) -> tuple[dict[str, float | None], list[str]]:
    """The metrics that an evaluation measured, whether QUANTITIES names them or not, and a line for each no number."""
    own = {name: value for name, value in measured.items() if name not in APART}
    kept: dict[str, float | None] = {n: v for n, v in own.items() if isinstance(v, int | float) and type(v) is not bool}
    strange = [f"{name}: not kept, expected a number, found {shown(own[name])}" for name in own if name not in kept]
    return kept, strange


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file under a temporary name and renames it, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise named(error, path) from error
        raise


def to_json(value: Any) -> str:
    """Indented JSON with a final newline; NaN is refused, a missing number is null."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """`value` with numbers that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return value


def curve(rows: Mapping[int, Mapping[str, float]]) -> str:
    """A learning curve as CSV: one line a step, a column for everything measured at any step."""
    columns = list(dict.fromkeys(name for step in sorted(rows) for name in rows[step]))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    for step in sorted(rows):
        writer.writerow({"step": step, **rows[step]})
    return text.getvalue()


def read_json(path: Path) -> Any:
    """The JSON in `path`. Raises InputError naming the file."""
    try:
        require_regular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


class DamagedError(InputError):
    """A record that is no longer what training wrote."""

    def __init__(self, wrong: str, path: Path) -> None:
        super().__init__(f"{path}: damaged: {wrong}; delete its folder, and lm ablate trains the cell again")
        self.wrong = wrong


class Store:
    """The cells under one output folder, shared by every experiment that writes there."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.cells = out / "cells"

    def directory(self, cell: str) -> Path:
        """Where the finished cell with this id lies."""
        return self.cells / path_name(cell, "id of a cell")

    def work(self, cell: str) -> Path:
        """Where the cell with this id is being made."""
        return self.cells / f".{path_name(cell, 'id of a cell')}.work"

    def finished(self, cell: str) -> bool:
        """Whether the cell has a record, whatever its status."""
        return (self.directory(cell) / "record.json").is_file()

    def started(self, cell: str) -> bool:
        """Whether an earlier, unfinished try left a checkpoint."""
        return (self.work(cell) / "last.ckpt").is_file()

    def record(self, cell: str, needed: bool = False) -> Record:
        """The record of a finished cell, as this version writes it; with `needed` one that holds all that reports need.

        Raises:
            InputError: where a newer version wrote it.
            DamagedError: where it is no longer what training wrote.
        """
        path = self.directory(cell) / "record.json"
        try:
            record = read_json(path)
        except InputError as error:
            raise DamagedError(str(error).removeprefix(f"{path}: "), path) from None
        if not isinstance(record, dict) or "format" not in record:
            raise DamagedError(f"expected a mapping with its format, found {shown(record)}", path)
        record = RECORD.read(record, path)
        if wrong := of_record(record, needed):
            raise DamagedError(wrong, path)
        return cast(Record, record)

    def history(self, cell: str) -> Path:
        """Where the learning curve of a finished cell lies."""
        return self.directory(cell) / "history.csv"

    def pending(self, cell: str, again: bool = False) -> bool:
        """Whether the cell is to be trained: it has no record, or with `again` one of a failure."""
        return not self.finished(cell) or (again and self.record(cell)["status"] == "failed")

    @contextlib.contextmanager
    def lock(self, cell: str, say: Say = to_stderr) -> Iterator[None]:
        """Holds the cell against other processes, after waiting for one that holds it; says so where that lasts."""
        with locked(self._lock(cell), f"cell {cell[:8]}", say):
            yield

    @contextlib.contextmanager
    def claim(self, cell: str) -> Iterator[bool]:
        """Holds the cell if no other process does; yields whether it is held."""
        with if_free(self._lock(cell)) as ours:
            yield ours

    def holder(self, cell: str) -> str:
        """Who holds the cell, as far as it said so."""
        return holder(self._lock(cell))

    def _lock(self, cell: str) -> Path:
        locks = self.cells / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return locks / cell

    def finish(self, cell: str, record: Record) -> Record:
        """Writes the record into the cell's work folder and makes the folder the finished cell; returns it."""
        written = cast(Record, RECORD.stamped(record))
        write_atomic(self.work(cell) / "record.json", to_json(written))
        self.complete(cell)
        return written

    def recover(self, cell: str) -> None:
        """Completes a `finish` that was cut short after the record was written; does nothing otherwise.

        A cell that another process holds is left to it: it completes what it has begun.
        """
        if (self.work(cell) / "record.json").is_file():
            with self.claim(cell) as ours:
                if ours:
                    self.complete(cell)

    def complete(self, cell: str) -> None:
        """The second half of `finish`, for who holds the lock."""
        work, directory = self.work(cell), self.directory(cell)
        if not (work / "record.json").is_file():
            return
        if (work / "final.ckpt").is_file():  # not before there is a record, to which it gives its evaluations
            os.replace(work / "final.ckpt", work / "last.ckpt")
        for name in WORK_FILES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(work / name)
        if directory.exists():  # a failed cell that was tried again
            shutil.rmtree(directory)
        os.replace(work, directory)
