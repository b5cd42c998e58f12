"""From records to paired comparisons. Reads results only and imports no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm.config import InputError
from lm.results import FORMAT, QUANTITIES, Record, Store, read_json
from lm.statistics import holm, sign_flip_p, t_interval, verdict

HEADLINE = "nll"
"""The quantity by which arms are judged where an experiment names no other."""


@dataclass(frozen=True)
class Results:
    """An experiment's manifest and the records of its cells, None for a cell not trained yet."""

    manifest: dict[str, Any]
    records: dict[tuple[str, int], Record | None]
    store: Store

    @property
    def arms(self) -> list[str]:
        """All arms, the baseline first."""
        baseline = self.manifest["baseline"]
        return [baseline, *(arm for arm in self.manifest["arms"] if arm != baseline)]

    @property
    def headline(self) -> str:
        """The quantity by which the arms are judged."""
        return str(self.manifest.get("metric", HEADLINE))

    def of(self, arm: str) -> list[Record]:
        """The records of an arm, in the order of the seeds."""
        found = [self.records[arm, seed] for seed in self.manifest["seeds"]]
        return [record for record in found if record is not None]


def load(folder: Path) -> Results:
    """The results behind an experiment's folder. Raises InputError where there are none that this version reads."""
    path = folder / "experiment.json"
    if not path.is_file():
        raise InputError(
            f"{folder}: holds no experiment.json; expected a folder that `lm ablate` made, such as OUT/NAME"
        )
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{path}: format {manifest.get('format')!r}, expected {FORMAT}; it was written by another version"
        )
    store = Store(folder.resolve().parent)
    records = {
        (arm, int(seed)): store.record(cell) if store.finished(cell) else None
        for arm, described in manifest["arms"].items()
        for seed, cell in described["cells"].items()
    }
    return Results(manifest, records, store)


def value(record: Record, quantity: str) -> float:
    """A measured quantity of a record, or a path into it, `initial/entropy/0`; NaN where it was not measured.

    Where a path ends in a list, of lists perhaps, it is their mean.
    """
    if record.get("status", "ok") != "ok":
        return math.nan
    found = record.get("metrics", {}).get(quantity, record.get("cost", {}).get(quantity))
    if found is None and "/" in quantity:
        found = _at(record, quantity.split("/"))
    return math.nan if found is None else float(np.mean(found))


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
    pairs = []
    for seed in results.manifest["seeds"]:
        mine, base = results.records[arm, seed], results.records[results.manifest["baseline"], seed]
        if mine is not None and base is not None:
            pairs.append((value(mine, quantity), value(base, quantity)))
    return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def compare(results: Results) -> pd.DataFrame:
    """One row for each arm and quantity: n, mean, sd, and the paired difference to the baseline with its interval.

    Diverged and failed cells are counted, and enter no mean.
    """
    rows: list[dict[str, Any]] = []
    for quantity, meaning in QUANTITIES.items():
        of_quantity = [_row(results, arm, quantity) for arm in results.arms]
        others = [row for row in of_quantity if row["arm"] != results.manifest["baseline"]]
        for row, adjusted in zip(others, holm([row["p"] for row in others]), strict=True):
            row["p_holm"] = adjusted
            row["verdict"] = verdict(row["difference"], adjusted, row["pairs"], len(others), meaning.better)
        rows.extend(of_quantity)
    return pd.DataFrame(rows)


def _row(results: Results, arm: str, quantity: str) -> dict[str, Any]:
    records = results.of(arm)
    values = [v for v in (value(record, quantity) for record in records) if math.isfinite(v)]
    is_baseline = arm == results.manifest["baseline"]
    differences = [] if is_baseline else [x - y for x, y in paired(results, arm, quantity)]
    low, high = t_interval(differences)
    return {
        "arm": arm,
        "metric": quantity,
        "n": len(values),
        "diverged": sum(record["status"] == "diverged" for record in records),
        "failed": sum(record["status"] == "failed" for record in records),
        "missing": len(results.manifest["seeds"]) - len(records),
        "mean": float(np.mean(values)) if values else math.nan,
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
        "pairs": len(differences),
        "difference": float(np.mean(differences)) if differences else math.nan,
        "low": low,
        "high": high,
        "p": sign_flip_p(differences),
        "p_holm": math.nan,
        "verdict": "baseline" if is_baseline else "",
    }


def unpaired(results: Results) -> list[str]:
    """The arms that on some seed did not see the baseline's tokens in the baseline's order, in words."""
    found: dict[str, list[int]] = {}
    for (arm, seed), record in results.records.items():
        base = results.records[results.manifest["baseline"], seed]
        if record is None or base is None or record["status"] != "ok" or base["status"] != "ok":
            continue
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
    """The circumstances in which cells differ that should be alike: code, packages, device."""
    seen: dict[str, set[str]] = {}
    for record in results.records.values():
        if record is not None:
            origin = record["provenance"]
            commit = str(origin["git"]["commit"]) + (" with changes" if origin["git"]["dirty"] else "")
            seen.setdefault("commit", set()).add(commit)
            seen.setdefault("device", set()).add(origin["device"])
            for package, version in origin["packages"].items():
                seen.setdefault(f"{package} version", set()).add(version)
    return {name: sorted(values) for name, values in seen.items() if len(values) > 1}


def curves(results: Results, arm: str, column: str) -> pd.DataFrame:
    """A column of the learning curves of an arm's cells that went well: one row a step, one column a seed."""
    found: Mapping[int, pd.Series] = {
        seed: pd.read_csv(results.store.history(record["id"]), index_col="step")[column].dropna()
        for seed in results.manifest["seeds"]
        if (record := results.records[arm, seed]) is not None
        and record["status"] == "ok"
        and column in pd.read_csv(results.store.history(record["id"]), nrows=0).columns
    }
    return pd.DataFrame(found)
