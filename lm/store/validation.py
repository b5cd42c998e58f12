"""Whether records and learning curves are still what training wrote: what was damaged since is named, not averaged."""

import csv
import hashlib
import io
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.store.documents import KEPT, read_documents
from lm.store.files import to_json
from lm.store.metrics import describe
from lm.store.record import Checksum, ClaimOf, Weights

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


def validate_record(record: Any, needed: bool = True) -> str:
    """What is wrong with a record, in words; empty for a sound one.

    Args:
        record: as it was read.
        needed: whether it counts as damage to have lost a part that reports need.
    """
    if not isinstance(record, Mapping):
        return f"expected a mapping, found {shown(record)}"
    for path, part in PARTS.items():
        if (found := value_at(record, path)) is not None and not part.fits(found):
            return f"{path}: expected {part.words}, found {shown(found)}"
    parts = ALWAYS + (IF_OK if record.get("status") == "ok" else ()) if needed else ("status",)
    if lost := [path for path in parts if value_at(record, path) is None]:
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


def validate_id(record: Mapping[str, Any], cell: str) -> str:
    """Return in words that a record lies in the folder of another cell; empty where its id is the folder's name."""
    written = record.get("id")
    if written == cell:
        return ""
    return f"id: is of another cell, {shown(written)}, expected {cell}, the name of its folder"


def value_at(record: Mapping[str, Any], path: str) -> Any:
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
    for length, found in (value_at(record, "evaluations/lengths") or {}).items():
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
    counted, tokens = sum(bins["count"]), value_at(record, "evaluated/tokens")
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


def curve_checksum(content: str) -> Checksum:
    """What a record keeps of its curve, by which one that was damaged later is known: its rows and its hash."""
    return {"rows": content.count("\n") - 1, "sha256": hashlib.sha256(content.encode()).hexdigest()}


def validate_curve(path: Path, record: Mapping[str, Any]) -> str:
    """What is wrong with the learning curve of a run that went well, in words; empty for a sound one."""
    try:
        return validate_curve_text(path.read_text(encoding="utf-8"), record)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (UnicodeDecodeError, csv.Error) as error:
        return f"is no CSV: {error}"


def validate_curve_text(content: str, record: Mapping[str, Any]) -> str:
    """The same of the curve's content.

    A record from before curves were sealed is asked for its last step alone, and whether rows are missing between is
    told by those that are left: training and validation are each measured at equal distances.
    """
    seal, rows = record.get("curve"), max(0, content.count("\n") - 1)
    if seal:
        if curve_checksum(content) == seal:
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


# checks ---------------------------------------------------------------------------------------------------------------

CHECKSUM = "checksum"
"""What of a record's provenance holds its checksum."""

ROUNDING = 1e-6
"""Relative: sums by document are float32, which is a tenth of it for each of them and less for their sum."""

SLACK = 1e-6
"""By how much rounding may take a quantity past an end of its range."""

MAX_STEPS = re.compile(r"^trainer:\n(?:[ ].*\n)*?  max_steps: (\d+)$", re.MULTILINE)
"""Where `config.yaml`, as it is written, says how many steps were asked for: it takes a hundredth of parsing it."""


# its checksum --------------------------------------------------------------------------------------------------------


def without_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a record without its checksum."""
    provenance = content.get("provenance")
    if not isinstance(provenance, Mapping):
        return dict(content)
    return {**content, "provenance": {name: part for name, part in provenance.items() if name != CHECKSUM}}


def record_checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of what a record holds beside its checksum, as it is read from JSON."""
    text = json.dumps(without_checksum(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(content: Mapping[str, Any]) -> str:
    """Return the JSON of a record with the checksum of what it holds, in place of another that it may have."""
    plain = to_json(without_checksum(content))
    record = json.loads(plain)
    if not isinstance(record.get("provenance"), dict):
        return plain
    record["provenance"][CHECKSUM] = record_checksum(record)
    return to_json(record)


def validate_checksum(content: Mapping[str, Any]) -> str:
    """Return in words that a record was edited, of which the form is right; empty where its checksum matches.

    A record of a version that wrote no checksum passes.
    """
    written = value_at(content, f"provenance/{CHECKSUM}")
    if written is None or written == record_checksum(content):
        return ""
    return "was edited by hand: its content does not match its checksum"


# its own numbers -----------------------------------------------------------------------------------------------------


def validate_numbers(record: Mapping[str, Any]) -> str:
    """Return what in a record does not agree with the rest of it, in words; empty where all of it does."""
    if record.get("status") == "ok":
        for part in ("diverged", "error"):
            if record.get(part) is not None:
                return f"{part}: expected nothing beside status ok, found {shown(record[part])}"
    return next(itertools.chain(_outside(record), _apart(record), _off_the_diagram(record)), "")


def _outside(record: Mapping[str, Any]) -> Iterator[str]:
    """Quantities that lie outside their declared ranges."""
    for part in ("metrics", "cost"):
        for name, value in (record.get(part) or {}).items():
            if value is None:
                continue
            low, high = describe(name).range
            if not low - SLACK <= value <= high + SLACK:
                yield f"{part}/{name}: expected {_range(low, high)}, found {shown(value)}"


def _range(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low:zg} or more"
    return f"{low:zg} to {high:zg}" if math.isfinite(low) else f"{high:zg} or less"


def _apart(record: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that a record holds twice, in two forms, which differ."""
    metrics: Mapping[str, Any] = record.get("metrics") or {}
    for name, value in metrics.items():
        loss = metrics.get(name.replace("perplexity", "nll"))
        if value is None or loss is None or name.partition("@")[0] not in ("perplexity", "test_perplexity"):
            continue
        if abs(loss - math.log(value)) > ROUNDING:
            yield f"metrics/{name}: expected the exponential of an NLL of {loss:z.9g}, found {shown(value)}"
    again = {"metrics/test_nll": "evaluations/test/nll"}
    for length in value_at(record, "evaluations/lengths") or {}:
        again |= {f"metrics/{name}@{length}": f"evaluations/lengths/{length}/{name}" for name in ("nll", "sliding_nll")}
    for path, other in again.items():
        first, second = value_at(record, path), value_at(record, other)
        if is_number(first) and is_number(second) and not math.isclose(first, second, rel_tol=ROUNDING):
            yield f"{path}: expected {second:z.9g}, as in {other}, found {shown(first)}"


def _off_the_diagram(record: Mapping[str, Any]) -> Iterator[str]:
    """Accuracy and ECE that the reliability diagram of the same tokens does not give."""
    diagram = record.get("reliability")
    if not diagram or not sum(diagram.get("count") or [0]):
        return
    bins = list(zip(*(diagram.get(name) or [] for name in ("count", "confidence", "accuracy")), strict=True))
    if not all(map(is_number, itertools.chain(*bins))):
        return
    tokens = sum(count for count, _, _ in bins)
    gives = {
        "accuracy": sum(count * right for count, _, right in bins) / tokens,
        "ece": sum(count * abs(right - confidence) for count, confidence, right in bins) / tokens,
    }
    for name, expected in gives.items():
        value = (record.get("metrics") or {}).get(name)
        if value is not None and not math.isclose(value, expected, rel_tol=0, abs_tol=SLACK):
            yield f"metrics/{name}: expected {expected:z.9g}, which reliability gives, found {shown(value)}"


# the files beside it -------------------------------------------------------------------------------------------------


def validate_files(record: Mapping[str, Any], folder: Path) -> tuple[str, dict[str, str]]:
    """Return what in a record the files beside it contradict, in words, and which of these files are damaged.

    Args:
        record: of a sound form.
        folder: that it lies in.

    Returns:
        Empty text where nothing is wrong with the record; by quantity of KEPT what is wrong with the losses by
        document behind it, beginning with the name of their file.
    """
    wrong, harmed = _past_the_end(record, folder / "config.yaml"), dict[str, str]()
    if record.get("status") != "ok":
        return wrong, harmed
    for quantity, (part, file) in KEPT.items():
        if not record.get(part):
            continue
        try:
            losses = read_documents(folder / file, record, quantity)
        except InputError as error:
            harmed[quantity] = str(error).removeprefix(f"{folder}/")
            continue
        tokens, value = int(losses.tokens_d.sum()), value_at(record, f"metrics/{quantity}")
        mean = float(losses.nll_d.sum()) / tokens if tokens else math.nan
        if value is not None and not math.isclose(value, mean, rel_tol=ROUNDING):
            wrong = wrong or f"metrics/{quantity}: expected {mean:z.9g}, the mean of {file}, found {shown(value)}"
    return wrong, harmed


def _past_the_end(record: Mapping[str, Any], config: Path) -> str:
    """Return in words that a run made more steps than its configuration asks for; empty where that cannot be told."""
    steps = record.get("steps")
    if steps is None:
        return ""
    try:
        asked = MAX_STEPS.search(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    if asked is None or steps <= int(asked[1]):
        return ""
    return f"steps: expected {int(asked[1]):,} at most, trainer.max_steps of its configuration, found {steps:,}"


# its checkpoint ------------------------------------------------------------------------------------------------------


def checkpoint_checksum(checkpoint: Path) -> Weights | None:
    """Return by what a checkpoint is known, its size in bytes and its hash; None where there is no such file.

    Raises:
        OSError: where it cannot be read.
    """
    if not checkpoint.is_file():  # a sharding strategy may leave a folder
        return None
    with open(checkpoint, "rb") as file:
        return {"bytes": checkpoint.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def validate_checkpoint(record: Mapping[str, Any], checkpoint: Path) -> str:
    """Return in words that a checkpoint is not the one that a record was written with; empty where it is.

    A record of a version that kept no hash of it passes.

    Raises:
        OSError: where it cannot be read.
    """
    written = value_at(record, "provenance/checkpoint")
    if written is None or checkpoint_checksum(checkpoint) == written:
        return ""
    return "is not the checkpoint that training wrote: its hash differs from the record's"


# manifest -------------------------------------------------------------------------------------------------------------

EXACT = (ClaimOf,)
"""Declarations that hold no other names than their own: they are handed to a constructor."""


def check_shape(value: Any, declared: Any, path: Path, remedy: str) -> None:
    """Raises InputError naming the file at `path` and the place in it where `value` is not what `declared` says.

    Args:
        value: as it was read from JSON, in which a tuple is a list.
        declared: a type of lm/store/record.py.
        path: of the file.
        remedy: what helps.
    """
    place = _misshapen(value, declared, "")
    if place is not None:
        where, found = place
        raise InputError(f"{path}: {where or 'the whole'}: is damaged, found {found}; {remedy}")


def _misshapen(value: Any, declared: Any, where: str) -> tuple[str, str] | None:
    """The first place that is not as declared, and what is there; None where there is no such place."""
    if typing.is_typeddict(declared):
        return _misshapen_mapping(value, declared, where)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (Union, types.UnionType):
        found = [_misshapen(value, one, where) for one in arguments]
        return None if None in found else max((one for one in found if one), key=lambda one: len(one[0]))
    inner: list[tuple[Any, Any, str]] = []
    if origin is list:
        fits = isinstance(value, list)
        inner = [(one, arguments[0], f"[{index}]") for index, one in enumerate(value)] if fits else []
    elif origin is tuple:
        fits = isinstance(value, list) and len(value) == len(arguments)
        pairs = zip(value, arguments, strict=True) if fits else ()
        inner = [(one, kind, f"[{index}]") for index, (one, kind) in enumerate(pairs)]
    elif origin is dict:
        fits = isinstance(value, Mapping)
        inner = [(one, arguments[1], f".{name}") for name, one in value.items()] if fits else []
    else:
        fits = value in arguments if origin is Literal else _is(value, declared)
    return _first(inner, where) if fits else (where, shown(value))


def _misshapen_mapping(value: Any, declared: Any, where: str) -> tuple[str, str] | None:
    if not isinstance(value, Mapping):
        return where, shown(value)
    hints = typing.get_type_hints(declared)
    lost = [name for name in hints if name in declared.__required_keys__ and name not in value]
    if lost:
        return f"{where}.{lost[0]}".lstrip("."), "nothing"
    strange = [name for name in value if name not in hints] if declared in EXACT else []
    if strange:
        return where, f"the name {shown(strange[0])}"
    return _first([(value[name], hint, f".{name}") for name, hint in hints.items() if name in value], where)


def _first(inner: list[tuple[Any, Any, str]], where: str) -> tuple[str, str] | None:
    places = (_misshapen(one, declared, f"{where}{name}".lstrip(".")) for one, declared, name in inner)
    return next((place for place in places if place is not None), None)


def _is(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind is type(None):
        return value is None
    if isinstance(value, float) and not math.isfinite(value):
        return False
    number = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
    return number and (kind is bool or not isinstance(value, bool))
