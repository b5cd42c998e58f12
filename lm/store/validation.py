"""Validation of records, learning curves and manifests: a file that is not what training wrote is named, not averaged.

First its form is checked, against the types of lm/store/record.py. Then a record must agree with itself, with its
checksum and with the files beside it. A checksum is no signature: it reveals a change by accident or by hand. Records
of older versions have none, and are checked by the rest alone.
"""

import contextlib
import csv
import functools
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.store.documents import file_of, kept_quantities, read_documents
from lm.store.files import to_json
from lm.store.metrics import describe
from lm.store.record import Checksum, ClaimOf, Record, Weights
from lm.store.thin_curves import THIN_NAME, validate_thin_curve

CHECKSUM = "checksum"  # key of a record's checksum in its provenance
ROUNDING = 1e-6  # relative rounding error: sums by document are float32, each a tenth of it, and less for their sum
SLACK = 1e-6  # rounding error by which a metric may exceed its range

MAX_STEPS = re.compile(r"^trainer:\n(?:[ ].*\n)*?  max_steps: (\d+)$", re.MULTILINE)
"""The number of steps in `config.yaml` as training writes it; parsing the file takes a hundred times as long."""


P = ParamSpec("P")


def first_of(problems: Callable[P, Iterator[str]]) -> Callable[P, str]:
    """Make a function return the first problem that it yields; an empty text without one."""

    @functools.wraps(problems)
    def first(*args: P.args, **named: P.kwargs) -> str:
        return next(problems(*args, **named), "")

    return first


def is_number(value: Any) -> bool:
    """Return True for a finite number, which can be averaged."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number past float64
        return False


def value_at(record: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of keys, such as `metrics/nll`; None if there is none."""
    value: Any = record
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _walk(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of a tree of mappings and lists, inner ones after those around them."""
    yield path, tree
    if isinstance(tree, Mapping | list):
        for name, inner in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _walk(inner, f"{path}/{name}" if path else str(name))


EXPECTED = {
    **dict.fromkeys(("dict_type", "mapping_type"), "a mapping"),
    **dict.fromkeys(("int_type", "greater_than_equal"), "a whole number"),
    **dict.fromkeys(("float_type", "finite_number"), "a number"),
    **{"list_type": "a list", "string_type": "text", "bool_type": "true or false"},
    "literal_error": "one of ok, diverged, failed",
}
"""Descriptions of what was expected, by the type of pydantic's error."""


@functools.cache
def _validator(declared: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config  # 0.2 s, which `lm --help` need not pay

    with_config(ConfigDict(strict=True, allow_inf_nan=False))(declared)
    with_config(ConfigDict(strict=True, allow_inf_nan=False, extra="forbid"))(ClaimOf)  # a constructor takes its items
    return TypeAdapter(declared)


def errors_in(value: Any, declared: Any, as_json: bool = False) -> list[tuple[str, list[str | int], Any]]:
    """List where a value, in which lists may stand for tuples if `as_json`, is not of a type: error, keys, content."""
    from pydantic import ValidationError

    validator = _validator(declared)
    try:
        if as_json:
            validator.validate_json(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        else:
            validator.validate_python(value)
    except ValidationError as failure:
        errors = []
        for error in failure.errors(include_url=False):
            place, inner = [], value
            for key in error["loc"]:
                try:
                    inner = inner[key]
                except (LookupError, TypeError):  # a missing key, or the name of a member of a union
                    if error["type"] != "missing" or key != error["loc"][-1]:
                        continue
                place.append(key)
            errors.append((error["type"], place, error["input"]))
        return errors
    return []


def check_shape(value: Any, declared: Any, path: Path, remedy: str) -> None:
    """Raise InputError with a place and the remedy if a manifest, as read from JSON, is not of its declared type."""
    try:
        errors = errors_in(value, declared, as_json=True)
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply; {remedy}") from None
    if not errors:
        return
    kind, place, wrong = max(errors, key=lambda error: len(error[1]))
    content = "nothing" if kind == "missing" else shown(wrong)
    if kind == "extra_forbidden":
        *place, name = place
        content = f"the name {shown(name)}"
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")
    raise InputError(f"{path}: {where or 'the whole'}: is damaged, found {content}; {remedy}")


PROVENANCE = ("provenance/git", "provenance/packages", "data/fingerprint", "data/tokenizer")
ALWAYS = ("id", "status", "metrics", "cost", *PROVENANCE)
IF_OK = ("metrics/nll", "evaluated/tokens", "pairing")
"""Parts of a record that reports need."""
INSIDE = ("initial", "final", "reliability")  # parts of a record that hold numbers alone, some of them null
AT_A_LENGTH = ("nll", "sliding_nll", "by_position")


@first_of
def validate_record(record: Mapping[str, Any], needed: bool = True) -> Iterator[str]:
    """Return what is wrong with the form of a record; if `needed`, also a missing part that reports need."""
    for kind, place, value in errors_in(record, Record):
        section = len(place) == 1 or (len(place) == 2 and place[0] in ("provenance", "data", "evaluated"))
        partial = kind == "missing" and section
        if partial or (value is None and len(place) <= 2) or (place[0] in INSIDE and len(place) > 1):
            continue  # older versions wrote fewer parts; those of numbers alone are checked below
        path = "/".join(map(str, place))
        if kind == "missing":
            yield f"{path.rpartition('/')[0]}: expected {place[-1]}, found {shown(value)}"
        yield f"{path}: expected {EXPECTED.get(kind, 'another value')}, found {shown(value)}"
    parts = ALWAYS + (IF_OK if record.get("status") == "ok" else ()) if needed else ("status",)
    if missing := [path for path in parts if value_at(record, path) is None]:
        yield f"has no {', '.join(missing)}"
    for part in INSIDE:
        yield from _not_numbers(record.get(part) or {}, part)
    for part in ("initial", "final"):
        for name, layers in (record.get(part) or {}).items():
            expected = value_at(record, f"initial/{name}")
            if isinstance(layers, list) and isinstance(expected, list) and len(layers) != len(expected):
                yield f"final/{name}: expected {len(expected)} entries as in initial/{name}, found {len(layers)}"
    lengths = value_at(record, "evaluations/lengths") or {}
    for length, measured in lengths.items() if isinstance(lengths, Mapping) else [("", lengths)]:
        path = f"evaluations/lengths/{length}".rstrip("/")
        if not length.isdecimal() or not isinstance(measured, Mapping):
            yield f"{path}: expected what was measured at a number of tokens, found {shown(measured)}"
        elif "error" not in measured:
            yield from (f"{path}: has no {name}" for name in AT_A_LENGTH if name not in measured)
            yield from _not_numbers({name: measured[name] for name in AT_A_LENGTH}, path)
    diagram = record.get("reliability") or {}
    for name, bins in diagram.items():
        if not isinstance(bins, list) or (name == "count" and not all(map(is_number, bins))):
            yield f"reliability/{name}: expected a list of numbers, found {shown(bins)}"
    if len(set(map(len, diagram.values()))) > 1:
        sizes = {name: len(bins) for name, bins in diagram.items()}
        yield f"reliability: expected as many bins of each kind, found {sizes}"
    for path, value in _walk(record, ""):  # NaN and infinities, which Python reads from JSON and training never writes
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{path}: expected a number, found {shown(value)}"


def _not_numbers(tree: Any, path: str) -> Iterator[str]:
    """Yield leaves of a tree that are no numbers, and lists of lists of several lengths."""
    for place, value in _walk(tree, path):
        if isinstance(value, list):
            if len({len(inner) if isinstance(inner, list) else None for inner in value}) > 1:
                yield f"{place}: expected numbers, or lists of one length"
        elif value is not None and not isinstance(value, Mapping) and not is_number(value):
            yield f"{place}: expected a number, found {shown(value)}"


def without_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a record without its checksum."""
    copied, provenance = dict(content), content.get("provenance")
    if isinstance(provenance, Mapping):
        copied["provenance"] = {name: part for name, part in provenance.items() if name != CHECKSUM}
    return copied


def record_checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of all that a record holds beside its checksum, as it is read from JSON."""
    text = json.dumps(without_checksum(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(content: Mapping[str, Any]) -> str:
    """Return the JSON of a record with its checksum, which replaces the one that it may have."""
    record = json.loads(to_json(without_checksum(content)))
    if isinstance(record.get("provenance"), dict):
        record["provenance"][CHECKSUM] = record_checksum(record)
    return to_json(record)


def validate_checksum(content: Mapping[str, Any]) -> str:
    """Return that a record of sound form was edited; an empty text if its checksum matches, or it has none."""
    matches = value_at(content, f"provenance/{CHECKSUM}") in (None, record_checksum(content))
    return "" if matches else "was edited by hand: its content does not match its checksum"


@first_of
def validate_numbers(record: Mapping[str, Any]) -> Iterator[str]:
    """Return the first part of a record that contradicts the rest of it; an empty text if none does."""
    for part in ("diverged", "error") if record.get("status") == "ok" else ():
        if record.get(part) is not None:
            yield f"{part}: expected nothing beside status ok, found {shown(record[part])}"
    metrics: Mapping[str, Any] = record.get("metrics") or {}
    for part, values in (("metrics", metrics), ("cost", record.get("cost") or {})):
        for name, value in values.items():
            low, high = describe(name).range
            if value is not None and not low - SLACK <= value <= high + SLACK:
                expected = f"{low:zg} to {high:zg}" if math.isfinite(low) else f"{high:zg} or less"
                expected = f"{low:zg} or more" if math.isinf(high) else expected
                yield f"{part}/{name}: expected {expected}, found {shown(value)}"
    for name, value in metrics.items():
        loss = metrics.get(name.replace("perplexity", "nll"))
        if value is None or loss is None or name.partition("@")[0] not in ("perplexity", "test_perplexity"):
            continue
        if abs(loss - math.log(value)) > ROUNDING:
            yield f"metrics/{name}: expected the exponential of an NLL of {loss:z.9g}, found {shown(value)}"


def validate_files(record: Mapping[str, Any], folder: Path) -> tuple[str, dict[str, str]]:
    """Return what is wrong with a record of sound form beside its files, and with its losses by document.

    The latter are by quantity, each text beginning with the name of the file.
    """
    problem, damaged, steps = "", dict[str, str](), record.get("steps")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        match = MAX_STEPS.search((folder / "config.yaml").read_text(encoding="utf-8"))
        if match is not None and steps is not None and steps > int(match[1]):
            most = f"{int(match[1]):,} at most, trainer.max_steps of its configuration"
            problem = f"steps: expected {most}, found {steps:,}"
    for quantity in kept_quantities(record) if record.get("status") == "ok" else ():
        file = file_of(quantity)
        try:
            losses = read_documents(folder / file, record, quantity)
        except InputError as error:
            damaged[quantity] = str(error).removeprefix(f"{folder}/")
            continue
        tokens, value = int(losses.tokens_d.sum()), value_at(record, f"metrics/{quantity}")
        mean = float(losses.nll_d.sum()) / tokens if tokens else math.nan
        if value is not None and not math.isclose(value, mean, rel_tol=ROUNDING):
            problem = problem or f"metrics/{quantity}: expected {mean:z.9g}, the mean of {file}, found {shown(value)}"
    return problem, damaged


def checkpoint_checksum(checkpoint: Path) -> Weights | None:
    """Return the size and hash of a checkpoint; None if there is none; raise OSError if it cannot be read."""
    if not checkpoint.is_file():
        return None
    with open(checkpoint, "rb") as file:
        return {"bytes": checkpoint.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def validate_checkpoint(record: Mapping[str, Any], checkpoint: Path) -> str:
    """Return that a checkpoint's hash is not that of its record, else an empty text; raise OSError if unreadable."""
    written = value_at(record, "provenance/checkpoint")
    matches = written is None or checkpoint_checksum(checkpoint) == written
    return "" if matches else "is not the checkpoint that training wrote: its hash differs from the record's"


def curve_checksum(content: str) -> Checksum:
    """Return the number of rows and the hash of a learning curve, which its record keeps."""
    return {"rows": content.count("\n") - 1, "sha256": hashlib.sha256(content.encode()).hexdigest()}


def validate_curve(path: Path, record: Mapping[str, Any]) -> str:
    """Return what is wrong with the learning curve of a finished run; an empty text if nothing is."""
    try:
        if path.name == THIN_NAME:
            return validate_thin_curve(path, record)
        return validate_curve_text(path.read_text(encoding="utf-8"), record)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (UnicodeDecodeError, csv.Error) as error:
        return f"is no CSV: {error}"


@first_of
def validate_curve_text(content: str, record: Mapping[str, Any]) -> Iterator[str]:
    """Return what is wrong with the content of a learning curve: against its checksum, which older records lack."""
    written, last, rows = record.get("curve"), record.get("steps"), max(0, content.count("\n") - 1)
    if written and rows != written.get("rows"):
        yield f"has {rows} row{'s' * (rows != 1)}, expected {written.get('rows')}"
    if written and curve_checksum(content) != written:
        yield "is not what training wrote: its hash differs from the record's"
    if not content.endswith("\n"):
        yield f"ends in the middle of row {rows + 1}"
    head, *body = csv.reader(io.StringIO(content))
    if not head or head[0] != "step" or not body:
        yield "expected a column of steps and rows of numbers"
    for index, row in enumerate(() if written else body, start=1):
        if len(row) != len(head):
            yield f"row {index} has {len(row)} of {len(head)} columns"
        for name, text in zip(head, row, strict=True):
            try:
                int(text) if name == "step" else float(text or "nan")
            except ValueError:
                yield f"row {index}, {name}: expected a number, found {shown(text)}"
    if last is not None and body[-1][0] != str(last):
        yield f"ends at step {body[-1][0]}, and its record says {last:,}"
