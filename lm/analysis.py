"""From records to paired comparisons. Reads results only and imports no torch."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from lm.circumstances import ACROSS_TOKENIZERS, confounded, differing, mixed
from lm.config import InputError
from lm.curve import curve_table
from lm.damage import is_number, of_curve
from lm.formats import MANIFEST
from lm.health import faults, unhealthy
from lm.judgement import Comparison, confirm, confirm_in_stages, explore, measure, plain
from lm.manifest import check_shape
from lm.record import Manifest, Record
from lm.results import QUANTITIES, DamagedError, Store, describe, read_json
from lm.statistics import rate_interval

HEADLINE = "nll"
"""The quantity by which arms are judged where an experiment names no other."""

LOST = ("diverged", "failed", "damaged")
"""What may have become of a cell that was trained and enters no mean."""

NOT_COMPARABLE = "not comparable"
"""How a verdict begins that is withheld."""


@dataclass(frozen=True)
class Results:
    """An experiment's manifest and the records of its cells, None for a cell not trained yet or damaged.

    `damaged` says what is wrong with the records of the latter, `broken` with learning curves, by the cell's id.
    """

    manifest: Manifest
    records: dict[tuple[str, int], Record | None]
    store: Store
    damaged: dict[tuple[str, int], str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def arms(self) -> list[str]:
        """All arms, the baseline first."""
        baseline = self.manifest["baseline"]
        return [baseline, *(arm for arm in self.manifest["arms"] if arm != baseline)]

    @property
    def headline(self) -> str:
        """The quantity by which the arms are judged."""
        return str(self.manifest.get("metric", HEADLINE))

    @property
    def judged(self) -> list[str]:
        """The quantities that may have a verdict: the headline, and those declared beside it."""
        return list(dict.fromkeys([self.headline, *self.manifest.get("secondary", [])]))

    @property
    def confirmatory(self) -> list[str]:
        """The arms whose comparisons are tested together; all, where the manifest does not say."""
        return [arm for arm in self.arms[1:] if arm in self.manifest.get("confirmatory", self.arms)]

    @property
    def exploratory(self) -> list[str]:
        """The other arms."""
        return [arm for arm in self.arms[1:] if arm not in self.confirmatory]

    def family(self, arm: str) -> str:
        """Which comparisons an arm's is corrected with."""
        if arm == self.manifest["baseline"]:
            return "baseline"
        return "confirmatory" if arm in self.confirmatory else "exploratory"

    def pairs(self, arm: str) -> dict[int, tuple[Record, Record]]:
        """(arm, baseline) records of the seeds on which both cells finished well."""
        baseline = self.manifest["baseline"]
        found = {seed: (self.records[arm, seed], self.records[baseline, seed]) for seed in self.manifest["seeds"]}
        return {seed: (x, y) for seed, (x, y) in found.items() if x and y and x["status"] == y["status"] == "ok"}

    @functools.cached_property
    def health(self) -> dict[str, str]:
        """What makes the runs of each arm unfit to be compared, in words; empty for a healthy arm."""
        return {
            arm: unhealthy(
                [faults(record, _curve(self, record)) for record in self.of(arm) if record["status"] == "ok"]
            )
            for arm in self.arms
        }

    def of(self, arm: str) -> list[Record]:
        """The records of an arm, in the order of the seeds."""
        found = [self.records[arm, seed] for seed in self.manifest["seeds"]]
        return [record for record in found if record is not None]


def read_manifest(folder: Path) -> Manifest:
    """What an experiment's folder says was asked for. Raises InputError where this version cannot read it."""
    path = folder / "experiment.json"
    if not path.is_file():
        raise InputError(
            f"{folder}: holds no experiment.json; expected a folder that `lm ablate` made, such as OUT/NAME"
        )
    return _checked_manifest(MANIFEST.read(read_json(path), path), path)


def load(folder: Path) -> Results:
    """The results behind an experiment's folder. Raises InputError where there are none that this version reads."""
    manifest = read_manifest(folder)
    store = Store(folder.resolve().parent)
    results = Results(manifest, {}, store)
    for arm, described in manifest["arms"].items():
        for seed, cell in described["cells"].items():
            results.records[arm, int(seed)] = None
            try:
                if store.finished(cell):
                    results.records[arm, int(seed)] = store.record(cell, needed=True)
            except DamagedError as error:
                results.damaged[arm, int(seed)] = error.wrong
        results.broken.update(_broken(results, arm))
    return results


def _broken(results: Results, arm: str) -> Iterator[tuple[str, str]]:
    """What is wrong with learning curves of an arm; one is missing only where others of the arm were kept."""
    finished = {record["id"]: record for record in results.of(arm) if record["status"] == "ok"}
    kept = [cell for cell in finished if results.store.history(cell).is_file()]
    for cell, record in finished.items() if kept else ():
        wrong = of_curve(results.store.history(cell), record) if cell in kept else "is missing"
        if wrong:
            yield cell, wrong


def _checked_manifest(manifest: Any, path: Path) -> Manifest:
    """A manifest that holds all that a report needs. Raises InputError where it does not."""
    check_shape(manifest, Manifest, path, "run `lm ablate` again")
    if manifest["baseline"] not in manifest["arms"]:
        raise InputError(f"{path}: baseline: no arm {manifest['baseline']!r} in it; run `lm ablate` again")
    for arm, described in manifest["arms"].items():
        if set(described.get("cells", ())) != {str(seed) for seed in manifest["seeds"]}:
            raise InputError(f"{path}: arms.{arm}.cells: expected a cell for each of its seeds; run `lm ablate` again")
    return cast(Manifest, manifest)


def value(record: Record, quantity: str) -> float:
    """A measured quantity of a record, or a path into it, `initial/entropy/0`; NaN where it was not measured.

    Where a path ends in a list, of lists perhaps, it is their mean. Text and mappings are no measurement.
    """
    if record.get("status", "ok") != "ok":
        return math.nan
    found = record.get("metrics", {}).get(quantity, record.get("cost", {}).get(quantity))
    if found is None and "/" in quantity:
        found = _at(record, quantity.split("/"))
    return _mean(found)


def _mean(found: Any) -> float:
    """A number, or the mean of lists of numbers; NaN for anything else."""
    if isinstance(found, list) and found:
        return float(np.mean([_mean(one) for one in found]))
    return float(found) if is_number(found) else math.nan


def _at(node: Any, path: list[str]) -> Any:
    """What lies at a path of keys and places, None where there is no such thing."""
    for step in path:
        try:
            node = node[int(step)] if isinstance(node, list) else node[step]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return node


def paired(results: Results, arm: str, quantity: str) -> list[tuple[float, float]]:
    """(arm, baseline) values of the seeds on which both cells finished well."""
    pairs = [(value(mine, quantity), value(base, quantity)) for mine, base in results.pairs(arm).values()]
    return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def _differences(results: Results, arm: str, quantity: str, in_stages: bool) -> list[float]:
    """Paired differences in the order of the seeds; where they come in stages, those before the first missing cell."""
    if not in_stages:
        return [x - y for x, y in paired(results, arm, quantity)]
    found = []
    for seed in results.manifest["seeds"]:
        mine, base = results.records[arm, seed], results.records[results.manifest["baseline"], seed]
        if mine is None or base is None:
            break
        found.append(value(mine, quantity) - value(base, quantity))
    return [difference for difference in found if math.isfinite(difference)]


def quantities(results: Results) -> list[str]:
    """Every quantity that a run measured, in the order of the tables; the judged always.

    Those that no table knows come after those it knows, those at a length last.
    """
    measured, own = set(results.judged), set[str]()
    for record in results.records.values():
        if record is not None and record["status"] == "ok":
            parts = (record.get("metrics"), record.get("cost"))
            measured |= {name for part in parts for name, found in (part or {}).items() if found is not None}
            own |= measured & (record.get("metrics") or {}).keys() - QUANTITIES.keys()
    known = [name for name in QUANTITIES if name in measured]
    lengths = sorted((name for name in measured if "@" in name), key=_by_length)
    others = sorted(name for name in own if "@" not in name)
    first = [name for name in results.judged if name not in (*known, *others, *lengths)]
    return [*first, *known, *others, *lengths]


def _by_length(name: str) -> tuple[str, int]:
    quantity, _, length = name.partition("@")
    return quantity, int(length) if length.isdigit() else 0


def compare(results: Results) -> pd.DataFrame:
    """One row for each arm and quantity: n, mean, sd, the paired difference to the baseline, and what it shows.

    Diverged and failed cells are counted, and enter no mean. The headline and the secondary quantities are judged: the
    comparisons of all confirmatory arms in all of them together, and so are the exploratory ones. Other quantities have
    no verdict. One is withheld where the arms differ in more than what they compare; one over an unhealthy arm says so,
    and is never bold.
    """
    rows: list[dict[str, Any]] = []
    judged, ill = _judged(results), results.health
    for quantity in quantities(results):
        for arm in results.arms:
            found = judged.get((arm, quantity)) or _described(results, arm, quantity)
            row = _row(results, arm, quantity) | _columns(found)
            reason = withheld(results, arm, quantity)
            if reason:
                row |= {"p_adjusted": math.nan, "q": math.nan, "p_equivalent": math.nan, "significant": False}
            said = found.verdict + (_survivors(results, row) if (arm, quantity) in judged else "")
            beside = _illness(results, arm) + _mixture(results, arm) if (arm, quantity) in judged else ""
            row["verdict"] = (reason or said) + beside
            well = not ill[arm] and not ill[results.arms[0]]
            row |= {"health": ill[arm] or "healthy", "bold": row["significant"] and well}
            rows.append(row)
    return pd.DataFrame(rows)


def _curve(results: Results, record: Record) -> pd.DataFrame | None:
    """The losses of a run by step; None where its curve was not kept."""
    path = results.store.history(record["id"])
    return curve_table(path) if path.is_file() and record["id"] not in results.broken else None


def _illness(results: Results, arm: str) -> str:
    """What stands beside the verdict on an arm where it or the baseline was not fit to be compared."""
    baseline, ill = results.arms[0], results.health
    if arm == baseline:
        return ""
    sides = [f"{name} unhealthy: {ill[side]}" for side, name in ((arm, arm), (baseline, "baseline")) if ill[side]]
    return f" ({'; '.join(sides)})" if sides else ""


def _mixture(results: Results, arm: str) -> str:
    """What stands beside the verdict on an arm whose cells, or whose baseline's, were not all made alike."""
    sides = list(zip(*results.pairs(arm).values(), strict=True)) if arm != results.arms[0] else []
    names = dict.fromkeys(name for side in sides for name in mixed(side))
    return f" (cells differ among themselves in {', '.join(names)})" if names else ""


def _judged(results: Results) -> dict[tuple[str, str], Comparison]:
    """The comparison of each arm but the baseline in each judged quantity, tested within its family."""
    adaptive = results.manifest.get("adaptive")
    confirmatory, exploratory = (
        {(arm, quantity): _measured(results, arm, quantity, adaptive) for quantity in results.judged for arm in arms}
        for arms, adaptive in ((results.confirmatory, bool(adaptive)), (results.exploratory, False))
    )
    if adaptive:
        confirm_in_stages(list(confirmatory.values()), adaptive)
    else:
        confirm(list(confirmatory.values()))
    explore(list(exploratory.values()))
    return confirmatory | exploratory


def _measured(results: Results, arm: str, quantity: str, in_stages: bool) -> Comparison:
    return measure(
        _differences(results, arm, quantity, in_stages), describe(quantity).better, _margin(results, quantity)
    )


def _described(results: Results, arm: str, quantity: str) -> Comparison:
    """The comparison of an arm in a quantity that is not judged; the baseline's is empty."""
    if arm == results.manifest["baseline"]:
        return Comparison([], verdict="baseline")
    return plain(_differences(results, arm, quantity, in_stages=False))


def _margin(results: Results, quantity: str) -> float:
    return float(results.manifest.get("margin", {}).get(quantity, math.nan))


INNER = ("differences", "better", "margin")
"""What a comparison knows of itself that is no column of its own."""


def _columns(found: Comparison) -> dict[str, Any]:
    """A comparison as columns of the table."""
    columns = {field.name: getattr(found, field.name) for field in fields(found) if field.name not in INNER}
    return {"pairs": len(found.differences), "difference": found.mean, **columns}


def _row(results: Results, arm: str, quantity: str) -> dict[str, Any]:
    """What the cells of an arm measured."""
    records = results.of(arm)
    values = [v for v in (value(record, quantity) for record in records) if math.isfinite(v)]
    lost = {kind: sum(record["status"] == kind for record in records) for kind in ("diverged", "failed")}
    low, high = rate_interval(sum(lost.values()), len(records))
    return {
        "arm": arm,
        "metric": quantity,
        "family": results.family(arm),
        "n": len(values),
        **lost,
        "damaged": (damaged := sum(of == arm for of, _ in results.damaged)),
        "missing": len(results.manifest["seeds"]) - len(records) - damaged,
        "lost_rate": sum(lost.values()) / len(records) if records else math.nan,
        "lost_low": low,
        "lost_high": high,
        "mean": float(np.mean(values)) if values else math.nan,
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
        "margin": _margin(results, quantity),
    }


def withheld(results: Results, arm: str, quantity: str) -> str:
    """Why no verdict may be given on an arm, empty where one may: something else differs as the arms do."""
    if arm == results.manifest["baseline"]:
        return ""
    pairs = list(results.pairs(arm).values())
    texts = [{record["data"]["tokenizer"] for record in side} for side in zip(*pairs, strict=True)]
    if pairs and texts[0] != texts[1] and quantity not in ACROSS_TOKENIZERS:
        return f"{NOT_COMPARABLE}: tokenizers differ"
    changed = results.manifest["arms"][arm]["changes"]
    other = [name for name in confounded(pairs) if f"trainer.{name}" not in changed]
    return f"{NOT_COMPARABLE}: {', '.join(other)} differ{'s' * (len(other) == 1)} on every seed" if other else ""


def _survivors(results: Results, row: Mapping[str, Any]) -> str:
    """What became of the seeds on which an arm is not compared, to stand beside its verdict."""
    arm, baseline, seeds = row["arm"], results.manifest["baseline"], len(results.manifest["seeds"])
    if arm == baseline or row["pairs"] == seeds:
        return ""
    lost = []
    for side, name in ((arm, ""), (baseline, "baseline: ")):
        statuses: list[str] = [record["status"] for record in results.of(side)]
        statuses += ["damaged" for of, _ in results.damaged if of == side]
        counted = [f"{statuses.count(kind)} {kind}" for kind in LOST if kind in statuses]
        lost += [name + ", ".join(counted)] if counted else []
    parts = [f"on {row['pairs']} of {seeds} seeds", *lost] if row["pairs"] else lost
    return f" ({'; '.join(parts)})" if parts else ""


def unpaired(results: Results) -> list[str]:
    """The arms that on some seed did not see the baseline's tokens in the baseline's order, in words."""
    found: dict[str, list[int]] = {}
    for arm in results.arms[1:]:
        for seed, (record, base) in results.pairs(arm).items():
            texts = [(r["pairing"], r["data"]["fingerprint"], r["data"]["tokenizer"]) for r in (record, base)]
            if texts[0] != texts[1]:
                found.setdefault(arm, []).append(seed)
    return [
        f"{arm} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} saw other batches than the baseline"
        for arm, seeds in found.items()
    ]


def one_tokenizer(results: Results) -> bool:
    """Whether all records cut the text into the same tokens; otherwise what is measured per token is not comparable."""
    return len({record["data"]["tokenizer"] for record in results.records.values() if record is not None}) <= 1


def circumstances(results: Results) -> dict[str, list[str]]:
    """The circumstances in which cells differ that should be alike: code, device, precision, threads, packages."""
    return differing(record for record in results.records.values() if record is not None)


def curves(results: Results, arm: str, column: str) -> pd.DataFrame:
    """A column of the learning curves of an arm's cells that went well: one row a step, one column a seed.

    A cell whose curve was not kept, as in a copy of the records alone, has no column. There is none for any seed where
    a curve of the arm is broken: what is left out may be what made the arm better or worse.
    """
    found: dict[int, pd.Series] = {}
    if any(record["id"] in results.broken for record in results.of(arm)):
        return pd.DataFrame(found)
    for seed in results.manifest["seeds"]:
        record = results.records[arm, seed]
        path = None if record is None else results.store.history(record["id"])
        if record is None or record["status"] != "ok" or path is None or not path.is_file():
            continue
        table = curve_table(path, parts="/" in column)
        if column in table:
            found[seed] = table[column].dropna()
    return pd.DataFrame(found)
