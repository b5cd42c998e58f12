"""Whether records and learning curves are still what training wrote: what was damaged since is named, not averaged."""

import csv
import hashlib
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.store.record import Seal
from lm.store.thin_curves import THIN_NAME, validate_thin_curve

STATUSES = ("ok", "diverged", "failed")


def is_number(found: Any) -> bool:
    """Whether this is a number that can be averaged."""
    try:
        return isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    except OverflowError:  # a whole number past float64
        return False


# records -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A test of what lies at a path into a record, and that in words."""

    fits: Callable[[Any], bool]
    words: str


MAPPING = Part(lambda found: isinstance(found, Mapping), "a mapping")
TEXT = Part(lambda found: isinstance(found, str), "text")
TEXTS = Part(lambda found: isinstance(found, list) and all(isinstance(one, str) for one in found), "a list of texts")
WHOLE = Part(lambda found: is_number(found) and isinstance(found, int) and found >= 0, "a whole number")
NUMBER = Part(is_number, "a number")
STATUS = Part(lambda found: found in STATUSES, f"one of {', '.join(STATUSES)}")


def _is_commit(found: Any) -> bool:
    return (
        isinstance(found, Mapping) and {"commit", "dirty"} <= found.keys() and isinstance(found["commit"], str | None)
    )


def _is_code(found: Any) -> bool:
    ones = found.values() if isinstance(found, Mapping) else [None]
    return all(
        isinstance(one, Mapping) and "known_by" in one and (one.get("git") is None or _is_commit(one["git"]))
        for one in ones
    )


def _is_documents(found: Any) -> bool:
    return (
        isinstance(found, Mapping)
        and all(isinstance(found.get(name), str) for name in ("kind", "sha256"))
        and all(WHOLE.fits(found.get(name)) for name in ("rows", "each"))
    )


DOCUMENTS = Part(_is_documents, "a mapping with kind, rows, each and sha256")
COMMIT = Part(_is_commit, "a mapping with commit and dirty")
CODE = Part(_is_code, "a mapping with what each class is known by, and its commit")


def _is_checkpoint(found: Any) -> bool:
    return isinstance(found, Mapping) and WHOLE.fits(found.get("bytes")) and isinstance(found.get("sha256"), str)


CHECKPOINT = Part(_is_checkpoint, "a mapping with bytes and sha256")

PARTS: dict[str, Part] = {
    "id": TEXT,
    "status": STATUS,
    "error": TEXT,
    "steps": WHOLE,
    **dict.fromkeys(("metrics", "cost", "provenance", "provenance/packages", "data"), MAPPING),
    "provenance/git": COMMIT,
    "provenance/source": TEXT,
    "provenance/code": CODE,
    "provenance/checkpoint": CHECKPOINT,
    "provenance/checksum": TEXT,
    **dict.fromkeys(("data/fingerprint", "data/tokenizer"), TEXT),
    "data/unigram_nll": NUMBER,
    **dict.fromkeys(("evaluated", "pairing", "reliability", "initial", "final", "curve"), MAPPING),
    **dict.fromkeys(("documents", "test_documents"), DOCUMENTS),
    **dict.fromkeys(("evaluations", "evaluations/lengths"), MAPPING),
    "evaluated/tokens": WHOLE,
    "flags": TEXTS,
}
"""What lies where in a record, as far as reports rest on it; null stands for nothing."""

ALWAYS = (
    "id",
    "status",
    "metrics",
    "cost",
    "provenance/git",
    "provenance/packages",
    "data/fingerprint",
    "data/tokenizer",
)
IF_OK = ("metrics/nll", "evaluated/tokens", "pairing")
"""What no report can do without."""


def of_record(record: Any, needed: bool = True) -> str:
    """What is wrong with a record, in words; empty for a sound one.

    Args:
        record: as it was read.
        needed: whether it counts as damage to have lost a part that reports need.
    """
    if not isinstance(record, Mapping):
        return f"expected a mapping, found {shown(record)}"
    for path, part in PARTS.items():
        if (found := at(record, path)) is not None and not part.fits(found):
            return f"{path}: expected {part.words}, found {shown(found)}"
    parts = ALWAYS + (IF_OK if record.get("status") == "ok" else ()) if needed else ("status",)
    if lost := [path for path in parts if at(record, path) is None]:
        return f"has no {', '.join(lost)}"
    wrong: Iterator[str] = itertools.chain(
        *(_named_numbers(record.get(part) or {}, part) for part in ("metrics", "cost")),
        *(_only_numbers(record.get(part) or {}, part) for part in ("initial", "final", "reliability")),
        _moments(record),
        _lengths(record),
        _bins(record),
        _endless(record),
    )
    return next(wrong, "")


def of_place(record: Mapping[str, Any], cell: str) -> str:
    """Return in words that a record lies in the folder of another cell; empty where its id is the folder's name."""
    written = record.get("id")
    if written == cell:
        return ""
    return f"id: is of another cell, {shown(written)}, expected {cell}, the name of its folder"


def at(record: Mapping[str, Any], path: str) -> Any:
    """What lies at a path of keys; None where nothing does."""
    found: Any = record
    for key in path.split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _named_numbers(found: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, number in found.items():
        if number is not None and not is_number(number):
            yield f"{path}/{name}: expected a number, found {shown(number)}"


def _only_numbers(found: Any, path: str) -> Iterator[str]:
    """Leaves of a tree that are no numbers, and lists whose members are not alike."""
    if isinstance(found, Mapping):
        for name, inner in found.items():
            yield from _only_numbers(inner, f"{path}/{name}")
    elif isinstance(found, list):
        lengths = {len(inner) if isinstance(inner, list) else None for inner in found}
        if len(lengths) > 1:
            yield f"{path}: expected numbers, or lists of one length"
        for index, inner in enumerate(found):
            yield from _only_numbers(inner, f"{path}/{index}")
    elif found is not None and not is_number(found):
        yield f"{path}: expected a number, found {shown(found)}"


def _moments(record: Mapping[str, Any]) -> Iterator[str]:
    """What was seen of the model at the end, if not of as many layers as at the beginning."""
    first, last = _lists(record.get("initial") or {}), _lists(record.get("final") or {})
    for path in first.keys() & last.keys():
        if len(first[path]) != len(last[path]):
            yield f"final{path}: expected {len(first[path])} entries as in initial{path}, found {len(last[path])}"


def _lists(found: Mapping[str, Any], path: str = "") -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for name, inner in found.items():
        if isinstance(inner, list):
            lists[f"{path}/{name}"] = inner
        elif isinstance(inner, Mapping):
            lists |= _lists(inner, f"{path}/{name}")
    return lists


def _lengths(record: Mapping[str, Any]) -> Iterator[str]:
    """Lengths of context without what was measured at them."""
    for length, found in (at(record, "evaluations/lengths") or {}).items():
        path = f"evaluations/lengths/{length}"
        if not length.isdecimal() or not isinstance(found, Mapping):
            yield f"{path}: expected what was measured at a number of tokens, found {shown(found)}"
        elif "error" not in found:
            for name in ("nll", "sliding_nll", "by_position"):
                yield from _only_numbers(found[name], f"{path}/{name}") if name in found else [f"{path}: has no {name}"]


def _bins(record: Mapping[str, Any]) -> Iterator[str]:
    """A reliability diagram whose bins are not those of the evaluated tokens."""
    diagram = record.get("reliability")
    if not diagram:
        return
    bins = {name: diagram.get(name) or [] for name in ("count", "confidence", "accuracy")}
    for name, found in bins.items():
        if not isinstance(found, list) or (name == "count" and not all(map(is_number, found))):
            yield f"reliability/{name}: expected a list of numbers, found {shown(found)}"
            return
    sizes = {name: len(found) for name, found in bins.items()}
    if len(set(sizes.values())) > 1:
        yield f"reliability: expected as many bins of each kind, found {sizes}"
    counted, tokens = sum(bins["count"]), at(record, "evaluated/tokens")
    if tokens is not None and counted != tokens:
        yield f"reliability/count: adds up to {counted:,}, expected the {tokens:,} tokens that were evaluated"


def _endless(found: Any, path: str = "") -> Iterator[str]:
    """Places anywhere that hold NaN or an infinity, which Python reads and no writer writes."""
    for name, inner in found.items() if isinstance(found, Mapping) else enumerate(found):
        here = f"{path}/{name}" if path else str(name)
        if isinstance(inner, float) and not math.isfinite(inner):
            yield f"{here}: expected a number, found {shown(inner)}"
        elif isinstance(inner, (Mapping, list)):
            yield from _endless(inner, here)


# learning curves -----------------------------------------------------------------------------------------------------


def sealed(content: str) -> Seal:
    """What a record keeps of its curve, by which one that was damaged later is known: its rows and its hash."""
    return {"rows": content.count("\n") - 1, "sha256": hashlib.sha256(content.encode()).hexdigest()}


def of_curve(path: Path, record: Mapping[str, Any]) -> str:
    """What is wrong with the learning curve of a run that went well, in words; empty for a sound one."""
    try:
        if path.name == THIN_NAME:
            return validate_thin_curve(path, record)
        return of_rows(path.read_text(encoding="utf-8"), record)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (UnicodeDecodeError, csv.Error) as error:
        return f"is no CSV: {error}"


def of_rows(content: str, record: Mapping[str, Any]) -> str:
    """The same of the curve's content.

    A record from before curves were sealed is asked for its last step alone, and whether rows are missing between is
    told by those that are left: training and validation are each measured at equal distances.
    """
    seal, rows = record.get("curve"), max(0, content.count("\n") - 1)
    if seal:
        if sealed(content) == seal:
            return _other_end(content, record.get("steps"))
        if rows != seal.get("rows"):
            return f"has {rows} rows, expected {seal.get('rows')}"
        return "is not what training wrote: its hash differs from the record's"
    if not content.endswith("\n"):
        return f"ends in the middle of row {rows + 1}"
    head, *body = csv.reader(io.StringIO(content))
    if not head or head[0] != "step" or not body:
        return "expected a column of steps and rows of numbers"
    return next(_wrong_rows(head, body), "") or next(_wrong_steps(head, body, record.get("steps")), "")


def _other_end(content: str, last: int | None) -> str:
    """Return in words that a curve which is as it was written ends at another step than its record says."""
    step = content.rstrip("\n").rpartition("\n")[2].partition(",")[0]
    if last is None or step == str(last):
        return ""
    return f"ends at step {step}, and its record says {last:,}: one of them was changed"


def _wrong_rows(head: list[str], body: list[list[str]]) -> Iterator[str]:
    """Rows that are too short or too long, and texts that are no numbers."""
    for index, row in enumerate(body, start=1):
        if len(row) != len(head):
            yield f"row {index} has {len(row)} of {len(head)} columns"
        for name, text in zip(head, row, strict=False):
            try:
                int(text) if name == "step" else float(text or "nan")
            except ValueError:
                yield f"row {index}, {name}: expected a number, found {shown(text)}"


def _wrong_steps(head: list[str], body: list[list[str]], last: int | None) -> Iterator[str]:
    """Steps that are not in order, or that break off before the run did, or of which some are gone."""
    steps = [int(row[0]) for row in body]
    if any(after <= before for before, after in itertools.pairwise(steps)):
        yield "its steps are not in order"
    if last is not None and steps[-1] != last:
        yield f"ends at step {steps[-1]:,}, expected {last:,}"
    for name in ("train_loss", "validation_nll"):
        place = head.index(name) if name in head else None
        measured = [step for step, row in zip(steps, body, strict=True) if place is not None and row[place]]
        every = [step for step in measured if step > 1 or name != "train_loss"]  # the first step is measured too
        if every and _has_gap(every):
            yield f"{name}: rows are missing between steps"


def _has_gap(steps: list[int]) -> bool:
    """Whether steps that begin after so many and come every so many, but for a last one, lack one of them.

    Distances may differ by one: where gradients are accumulated, what is counted in batches falls between two steps.
    """
    *distances, final = (after - before for before, after in itertools.pairwise([0, *steps]))
    return bool(distances) and max(*distances, final) > min(distances) + 1
