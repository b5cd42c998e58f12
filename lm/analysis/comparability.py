"""Under what circumstances records were made, and whether those explain a difference as well as the arms do."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm.config.plain import shown
from lm.config.tree import Tree, differences
from lm.store.record import GitState, Record
from lm.store.sources import canonical, source_of
from lm.store.validation import is_number

ABBREVIATED = 12  # digits of a commit or a hash that are shown
OWN_CODE = "code of "  # prefix of the provenance field of a user's own class; arms may differ in it

# the circumstances that this package's code is: the commit of its checkout, and a hash of the code that computes
COMMIT, SOURCE = "commit", "source of lm"

THREADS = "threads"
MACHINE = ("device", THREADS)  # change in which order a processor adds, which moves a loss as another seed does

NOT_RECORDED = "not recorded"


def provenance_of(record: Record) -> dict[str, str]:
    """Return the provenance that all cells should share; what a record does not say is `not recorded`."""
    origin = record["provenance"]
    code, packages = origin.get("code") or {}, origin["packages"]
    fields = {
        COMMIT: str(origin["git"]["commit"]) + (" with changes" if origin["git"]["dirty"] else ""),
        SOURCE: source_of(origin),
        **{name: origin.get(name) for name in ("device", "precision", THREADS)},
        **{OWN_CODE + name: component["known_by"] for name, component in code.items()},
        **{f"{package} version": version for package, version in packages.items()},
    }
    provenance = {name: NOT_RECORDED if value is None else str(value) for name, value in fields.items()}
    return {**provenance, SOURCE: canonical(provenance[SOURCE])}


def commit_of(git: GitState, digits: int) -> str:
    """Format the commit of a cell, cut short, and whether its checkout had changes; `none` without one."""
    return f"{(git['commit'] or 'none')[:digits]}{' with changes' if git['dirty'] else ''}"


def _of_all(records: Iterable[Record]) -> list[dict[str, str]]:
    """Return the provenance of records, their code named by its source where all have one, else by its commit."""
    provenances = [provenance_of(record) for record in records]
    other = SOURCE if any(each[SOURCE] == NOT_RECORDED for each in provenances) else COMMIT
    return [{name: text for name, text in each.items() if name != other} for each in provenances]


def differing_provenance(records: Iterable[Record]) -> dict[str, list[str]]:
    """Return the provenance fields in which records differ, each with all values."""
    provenances = _of_all(records)
    names = dict.fromkeys(name for provenance in provenances for name in provenance if not name.startswith(OWN_CODE))
    values_of = {name: {provenance.get(name, NOT_RECORDED) for provenance in provenances} for name in names}
    return {name: sorted(values) for name, values in values_of.items() if len(values) > 1}


def mixed_provenance(records: Sequence[Record]) -> list[str]:
    """List the provenance fields in which one arm's cells differ that affect results: code, packages, precision."""
    return [name for name in differing_provenance(records) if name not in MACHINE]


def confounded_provenance(pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    """List the provenance fields, recorded on both sides, whose values never overlap between arm and baseline.

    There the difference between the arms may as well be one between the circumstances, on every seed.
    """
    sides: list[dict[str, set[str]]] = [{}, {}]
    for number, provenance in enumerate(_of_all(record for pair in pairs for record in pair)):
        for name, text in provenance.items():
            sides[number % 2].setdefault(name, set()).add(text)
    arm, base = sides
    recorded = [n for n in arm if n in base and {NOT_RECORDED} not in (arm[n], base[n])]
    return [n for n in recorded if n != THREADS and not arm[n] & base[n]]


def provenance_diff(record: Record, base: Record) -> list[str]:
    """List the provenance fields but lm's code in which two records of one seed differ."""
    arm, other = provenance_of(record), provenance_of(base)
    on_processors = ", " in arm["device"] and ", " in other["device"]  # a GPU adds in one order for any of them
    left_out = (COMMIT, SOURCE, *[THREADS] * (not on_processors))
    names = [n for n in {**arm, **other} if n not in left_out and not n.startswith(OWN_CODE)]
    sides = {n: (arm.get(n, NOT_RECORDED), other.get(n, NOT_RECORDED)) for n in names}
    unsaid = " (not recorded on one side)"
    return [n + (unsaid if NOT_RECORDED in sides[n] else "") for n in names if sides[n][0] != sides[n][1]]


def format_provenance(record: Record) -> str:
    """Format the provenance of a record in one line, the commit cut short."""
    parts = [f"commit {commit_of(record['provenance']['git'], ABBREVIATED)}"]
    for name, text in provenance_of(record).items():
        if name in (COMMIT, SOURCE):
            continue
        if name == THREADS:
            parts.append(f"{text} thread{'s' * (text != '1')}")
        else:
            parts.append(f"{name.removesuffix(' version')} {text[:ABBREVIATED] if name.startswith(OWN_CODE) else text}")
    return ", ".join(parts)


Pairs = dict[str, tuple[Any, Any]]  # values of both sides by name, None for nothing

TEXT = ("fingerprint", "tokenizer", "vocabulary", "documents", "tokens", "bytes")  # fields compared


def changes_in_words(changes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Format changes by dotted path, before and after, a line each; settings of a part stand behind its new class.

    `model.mlp: GELU -> Experts (active 2, experts 8, without approximate)`.
    """
    classes = [path for path, values in changes.items() if all(isinstance(value, str) for value in values)]
    lines, settings = dict[str, str](), dict[str, list[str]]()
    for path, (before, after) in changes.items():
        parent = next((part for part in classes if path.startswith(f"{part}.")), None)
        if parent is None:
            lines[path] = f"{path}: {before} -> {after}"
        else:
            name = path.removeprefix(f"{parent}.")
            change = f"without {name}" if after is None else f"{name} {after}" if before is None else ""
            settings.setdefault(parent, []).append(change or f"{name} {before} -> {after}")
    for path, of_class in settings.items():
        lines[path] += f" ({', '.join(sorted(of_class, key=lambda words: words.startswith('without ')))})"
    return list(lines.values())


@dataclass(frozen=True)
class RunDiff:
    """Differences between two sides by dotted path or name; `metrics` holds all numbers, each the mean of `seeds`."""

    configuration: Pairs
    text: Pairs = field(default_factory=dict)
    circumstances: Pairs = field(default_factory=dict)
    metrics: Pairs = field(default_factory=dict)
    seeds: tuple[int, int] = (1, 1)


def _pairs(left: Mapping[str, Any], right: Mapping[str, Any]) -> Pairs:
    names = list(dict.fromkeys([*left, *right]))
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def diff_configurations(left: Tree, right: Tree) -> RunDiff:
    """Compare two resolved configurations."""
    return RunDiff(differences(left, right))


def diff_runs(configs: tuple[Tree, Tree], records: tuple[list[Record], list[Record]]) -> RunDiff:
    """Compare two runs, or two arms with the runs of each that went well, whose metrics are then means."""
    left, right = records
    text: Pairs = {}
    circumstances: Pairs = {}
    if left and right:
        text = _pairs(*({name: side[0]["data"].get(name) for name in TEXT} for side in records))
        joined: list[dict[str, str]] = []
        for provenances in ([provenance_of(record) for record in side] for side in records):
            names = dict.fromkeys(name for provenance in provenances for name in provenance)
            joined.append({n: " and ".join(dict.fromkeys(of[n] for of in provenances if n in of)) for n in names})
        circumstances = _pairs(*joined)
    means: list[dict[str, float]] = [{}, {}]
    for side, mean in zip(records, means, strict=True):
        for name in dict.fromkeys(name for record in side for name in (*record["metrics"], *record["cost"])):
            values = [record["metrics"].get(name, record["cost"].get(name)) for record in side]
            numbers = [float(value) for value in values if is_number(value) and value is not None]
            mean |= {name: math.fsum(numbers) / len(numbers)} if len(numbers) == len(side) else {}
    metric_names = [name for name in means[0] if name in means[1]] + [name for side in means for name in side]
    metrics = {name: (means[0].get(name), means[1].get(name)) for name in dict.fromkeys(metric_names)}
    return RunDiff(differences(*configs), text, circumstances, metrics, (len(left), len(right)))


def format_value(value: Any) -> str:
    """Format a value of a configuration in a line."""
    return "-" if value is None else value if isinstance(value, str) else shown(value)
