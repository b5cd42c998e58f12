"""Whether a record agrees with itself, with its checksum and with the files beside it: it is checked, not believed.

What is wrong in form is told by lm/store/damage.py, before any of this. A checksum is no signature: it tells what was
changed by accident or by hand, and what an older version wrote has none, and is checked by the rest alone.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.store.damage import at, is_number
from lm.store.documents import KEPT, read_documents
from lm.store.files import to_json
from lm.store.quantities import describe
from lm.store.record import Weights

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


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of what a record holds beside its checksum, as it is read from JSON."""
    text = json.dumps(without_checksum(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(content: Mapping[str, Any]) -> str:
    """Return the JSON of a record with the checksum of what it holds, in place of another that it may have."""
    plain = to_json(without_checksum(content))
    record = json.loads(plain)
    if not isinstance(record.get("provenance"), dict):
        return plain
    record["provenance"][CHECKSUM] = checksum(record)
    return to_json(record)


def of_checksum(content: Mapping[str, Any]) -> str:
    """Return in words that a record was edited, of which the form is right; empty where its checksum matches.

    A record of a version that wrote no checksum passes.
    """
    written = at(content, f"provenance/{CHECKSUM}")
    if written is None or written == checksum(content):
        return ""
    return "was edited by hand: its content does not match its checksum"


# its own numbers -----------------------------------------------------------------------------------------------------


def of_numbers(record: Mapping[str, Any]) -> str:
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
    for length in at(record, "evaluations/lengths") or {}:
        again |= {f"metrics/{name}@{length}": f"evaluations/lengths/{length}/{name}" for name in ("nll", "sliding_nll")}
    for path, other in again.items():
        first, second = at(record, path), at(record, other)
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


def of_files(record: Mapping[str, Any], folder: Path) -> tuple[str, dict[str, str]]:
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
        tokens, value = int(losses.tokens_d.sum()), at(record, f"metrics/{quantity}")
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


def weights_of(checkpoint: Path) -> Weights | None:
    """Return by what a checkpoint is known, its size in bytes and its hash; None where there is no such file.

    Raises:
        OSError: where it cannot be read.
    """
    if not checkpoint.is_file():  # a sharding strategy may leave a folder
        return None
    with open(checkpoint, "rb") as file:
        return {"bytes": checkpoint.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def of_checkpoint(record: Mapping[str, Any], checkpoint: Path) -> str:
    """Return in words that a checkpoint is not the one that a record was written with; empty where it is.

    A record of a version that kept no hash of it passes.

    Raises:
        OSError: where it cannot be read.
    """
    written = at(record, "provenance/checkpoint")
    if written is None or weights_of(checkpoint) == written:
        return ""
    return "is not the checkpoint that training wrote: its hash differs from the record's"
