"""Under what circumstances records were made, and whether those explain a difference as well as the arms do."""

from collections.abc import Iterable, Sequence

from lm.results import Record

ABBREVIATED = 12
"""Digits of a commit that are shown."""

HARMLESS = ("threads",)
"""Circumstances that change how long a run takes and not what it learns."""

ACROSS_TOKENIZERS = frozenset(
    (
        "bits_per_byte",
        "gradient_norm",
        "clipped_share",
        "update_ratio",
        "dead_share",
        "step_time_median",
        "step_time_p95",
        "mfu",
        "data_wait",
        "energy",
        "train_seconds",
        "peak_memory",
        "parameters",
    )
)
"""Quantities that mean the same whatever the text is cut into; all others count tokens or are means over them."""


def circumstances_of(record: Record) -> dict[str, str]:
    """What should be alike in all cells of an experiment: commit, device, precision, threads, package versions."""
    origin = record["provenance"]
    found = {"commit": str(origin["git"]["commit"]) + (" with changes" if origin["git"]["dirty"] else "")}
    found |= {name: str(origin[name]) for name in ("device", "precision", "threads") if name in origin}
    return found | {f"{package} version": str(version) for package, version in origin["packages"].items()}


def differing(records: Iterable[Record]) -> dict[str, list[str]]:
    """The circumstances in which records differ, each with all that was found."""
    seen: dict[str, set[str]] = {}
    for record in records:
        for name, found in circumstances_of(record).items():
            seen.setdefault(name, set()).add(found)
    return {name: sorted(values) for name, values in seen.items() if len(values) > 1}


def confounded(pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    """The circumstances that no (arm, baseline) record of either side shares with one of the other.

    There the difference between the arms may as well be one between the circumstances, on every seed.
    """
    sides: list[dict[str, set[str]]] = [{}, {}]
    for pair in pairs:
        for side, record in zip(sides, pair, strict=True):
            for name, found in circumstances_of(record).items():
                side.setdefault(name, set()).add(found)
    mine, base = sides
    return [n for n in mine if n in base and n not in HARMLESS and not mine[n] & base[n]]


def unlike(record: Record, base: Record) -> list[str]:
    """The circumstances besides the commit in which two records of one seed differ."""
    mine, other = circumstances_of(record), circumstances_of(base)
    return [n for n in mine if n in other and n not in ("commit", *HARMLESS) and mine[n] != other[n]]


def in_words(record: Record) -> str:
    """The circumstances of a record in one line, the commit cut short."""
    found = circumstances_of(record)
    commit, _, changed = found.pop("commit").partition(" ")
    parts = [f"commit {commit[:ABBREVIATED]}" + (f" {changed}" if changed else "")]
    for name, text in found.items():
        if name == "threads":
            parts.append(f"{text} thread{'s' * (text != '1')}")
        else:
            parts.append(f"{name.removesuffix(' version')} {text}")
    return ", ".join(parts)
