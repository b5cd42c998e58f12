"""An experiment's results, read once: its manifest, its records, and what was measured of each arm."""

import functools
import glob
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from lm.analysis.comparability import confounded_provenance, differing_provenance
from lm.analysis.curve import curve_table, with_averages
from lm.analysis.health import faults, unhealthy
from lm.analysis.relations import check_recorded
from lm.analysis.verdict_text import list_seeds
from lm.config.plain import shown
from lm.config.reading import MOST_SEEDS
from lm.config.tree import InputError, load_yaml, nearest
from lm.store.archive import RIVALS, TWINS
from lm.store.documents import kept_quantities
from lm.store.files import read_json
from lm.store.formats import MANIFEST
from lm.store.metrics import METRICS
from lm.store.record import Manifest, Record
from lm.store.store import DamagedError, Store
from lm.store.thin_curves import THIN_NAME
from lm.store.validation import check_shape, is_number, validate_curve, validate_files

FEWEST_LOOKED_AT = 3  # seeds from which on a look counts: by two hardly anything can be chosen
HEADLINE = "nll"  # the quantity by which arms are judged where an experiment names no other


class FirstLook(NamedTuple):
    """Numbers of pairs and of comparisons of a first look at results; 0 for none."""

    pairs: int = 0
    comparisons: int = 1


class OnTexts(NamedTuple):
    """Name and title of the file that crosses experiments with several texts, and the text of each."""

    name: str
    title: str
    texts: list[str]


def is_on_a_text(manifest: Manifest) -> bool:
    """Return True for an experiment that is one of those on several texts which one file describes."""
    whole, _, text = manifest["name"].rpartition(".")
    return whole != "" and manifest["title"].endswith(f" ({text})")


def on_texts(manifests: Sequence[Manifest]) -> OnTexts | None:
    """Return what experiments have in common that one file crosses with several texts; None for any others."""
    parts = [
        (*manifest["name"].rpartition(".")[::2], manifest["title"]) for manifest in manifests if is_on_a_text(manifest)
    ]
    wholes = {(name, title.removesuffix(f" ({text})")) for name, text, title in parts}
    if len(manifests) < 2 or len(parts) < len(manifests) or len(wholes) != 1:
        return None
    return OnTexts(*wholes.pop(), [text for _, text, _ in parts])


Cells = dict[tuple[str, int], Record]
"""Records by arm and seed."""


@dataclass(frozen=True)
class Records:
    """An experiment's manifest and the records of its cells, None for a cell not trained yet or damaged.

    What is wrong is in `corrupt_records`, in `corrupt_curves` by the cell's id, and in `corrupt_documents` by the
    cell's id and the quantity behind which losses by document stand. `rivals` of an arm are its cells at each rate that
    may be as good as its own, of arms of which all of those were trained on the same seeds.
    """

    manifest: Manifest
    records: dict[tuple[str, int], Record | None]
    store: Store
    corrupt_records: dict[tuple[str, int], str] = field(default_factory=dict)
    corrupt_curves: dict[str, str] = field(default_factory=dict)
    corrupt_documents: dict[tuple[str, str], str] = field(default_factory=dict)
    rivals: dict[str, dict[float, Cells]] = field(default_factory=dict)

    @property
    def harmed(self) -> bool:
        """True if any record, or any file beside one, is damaged."""
        return bool(self.corrupt_records or self.corrupt_curves or self.corrupt_documents)

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
        """The arms that are not confirmatory."""
        return [arm for arm in self.arms[1:] if arm not in self.confirmatory]

    def family(self, arm: str) -> str:
        """Name the family of comparisons with which an arm's is corrected."""
        if arm == self.manifest["baseline"]:
            return "baseline"
        return "confirmatory" if arm in self.confirmatory else "exploratory"

    def pairs(self, arm: str) -> dict[int, tuple[Record, Record]]:
        """Return the (arm, baseline) records of the seeds on which both cells finished well."""
        baseline = self.manifest["baseline"]
        pairs = {seed: (self.records[arm, seed], self.records[baseline, seed]) for seed in self.manifest["seeds"]}
        return {seed: (x, y) for seed, (x, y) in pairs.items() if x and y and x["status"] == y["status"] == "ok"}

    def first_look(self, seeds: Iterable[int] | None = None) -> FirstLook:
        """Return how these seeds, or all, were judged before others were asked for, by a test of just these.

        Of several such looks, at seeds that no other had seen, the one at most seeds. A look at all of the seeds is
        none, nor is one at too few to choose by.
        """
        now, first, earlier = {*self.manifest["seeds"]}, FirstLook(), list[set[int]]()
        judged = now if seeds is None else {*seeds}
        for entry in self.manifest.get("earlier_looks", ()):
            look = {*entry["seeds"]}
            if look == now:
                break
            is_first = not any(len(look & other & judged) >= FEWEST_LOOKED_AT for other in earlier)
            pairs = len(look & judged if look <= now else look)
            if is_first and len(look & judged) >= FEWEST_LOOKED_AT and pairs > first.pairs:
                first = FirstLook(pairs, entry["comparisons"])
            earlier.append(look)
        return first

    @functools.cached_property
    def health(self) -> dict[str, str]:
        """Training problems of each arm, in words; empty for a healthy arm."""
        health = {}
        for arm in self.arms:
            faults_of_runs, configuration = [], functools.partial(self.configuration, arm)
            for record in self.of(arm):
                if record["status"] == "ok":
                    path = self.store.history(record["id"])
                    whole = path.is_file() and record["id"] not in self.corrupt_curves
                    faults_of_runs.append(faults(record, curve_table(path) if whole else None, configuration))
            health[arm] = unhealthy(faults_of_runs)
        return health

    @functools.cached_property
    def confounded(self) -> dict[str, list[str]]:
        """Provenance fields of each arm whose values never overlap with those of the baseline."""
        return {arm: confounded_provenance(list(self.pairs(arm).values())) for arm in self.arms}

    def of(self, arm: str) -> list[Record]:
        """Return the records of an arm, in the order of the seeds."""
        records = [self.records[arm, seed] for seed in self.manifest["seeds"]]
        return [record for record in records if record is not None]

    def configuration(self, arm: str) -> dict[str, Any]:
        """Read the configuration of the first cell of an arm that has one; empty without any."""
        for record in self.of(arm):
            path = self.store.directory(record["id"]) / "config.yaml"
            if path.is_file():
                return load_yaml(path)
        return {}


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an experiment's folder. Raises InputError where this version cannot read it."""
    path = folder / "experiment.json"
    if (folder / "ladder.json").is_file():
        raise InputError(f"{folder}: is a ladder; name a rung of it, a folder beside it such as {folder.name}.RUNG")
    if not path.is_file():
        beside = sorted(of.parent.name for of in folder.parent.glob(f"{glob.escape(folder.name)}.*/experiment.json"))
        if texts := [name for name in beside if not name.endswith(TWINS)]:
            raise InputError(f"{folder}: has no runs of its own; expected one of its texts: {', '.join(texts)}")
        expected = "a folder that `lm ablate` made, such as OUT/NAME"
        raise InputError(f"{folder}: holds no experiment.json; expected {expected}")
    manifest: Any = MANIFEST.read(read_json(path), path)
    again = "run `lm ablate` again"
    check_shape(manifest, Manifest, path, again)
    if manifest["baseline"] not in manifest["arms"]:
        raise InputError(f"{path}: baseline: no arm {manifest['baseline']!r} in it; {again}")
    for quantity, margin in manifest.get("margin", {}).items():
        if not margin > 0:
            raise InputError(f"{path}: margin.{quantity}: expected a number above zero, found {margin}; {again}")
    for arm, described in manifest["arms"].items():
        if set(described.get("cells", ())) != {str(seed) for seed in manifest["seeds"]}:
            raise InputError(f"{path}: arms.{arm}.cells: expected a cell for each of its seeds; {again}")
        if described.get("levels", {}).keys() != manifest["arms"][manifest["baseline"]].get("levels", {}).keys():
            raise InputError(f"{path}: arms.{arm}.levels: expected the baseline's factors; {again}")
    for index, claim in enumerate(manifest.get("claims", ())):
        arms = {**(claim.get("contrast") or {}), **(claim.get("over") or {})}
        if strange := next((arm for arm in arms if arm not in manifest["arms"]), None):
            near = nearest(strange, list(manifest["arms"]))
            raise InputError(f"{path}: claims[{index}]: no arm {strange!r} in it.{near} Run `lm ablate` again")
        check_recorded(claim, f"{path}: claims[{index}]")
    if len({*manifest["seeds"]}) < len(manifest["seeds"]):
        raise InputError(f"{path}: seeds: is damaged, found {shown(manifest['seeds'])}; {again}")
    stages = manifest["adaptive"] or {"looks": [1], "maximum": 1}
    numbers = [*stages["looks"], stages["maximum"]]
    if not stages["looks"] or sorted(numbers) != numbers or not 1 <= numbers[0] <= numbers[-1] <= MOST_SEEDS:
        raise InputError(f"{path}: adaptive: is damaged, found {shown(manifest['adaptive'])}; {again}")
    return cast(Manifest, manifest)


def load(folder: Path) -> Records:
    """Load the results of an experiment's folder. Raises InputError where there are none that this version reads."""
    manifest = read_manifest(folder)
    store = Store(folder.resolve().parent)
    results = Records(manifest, {}, store)
    for arm, described in manifest["arms"].items():
        for seed, cell in described["cells"].items():
            results.records[arm, int(seed)] = None
            try:
                if store.finished(cell):
                    finished_record, path = store.record(cell, needed=True), store.directory(cell)
                    wrong, harmed = validate_files(finished_record, path)
                    results.corrupt_documents.update({(cell, quantity): words for quantity, words in harmed.items()})
                    if wrong:
                        raise DamagedError(wrong, path / "record.json")
                    results.records[arm, int(seed)] = finished_record
            except DamagedError as error:
                results.corrupt_records[arm, int(seed)] = error.problem
        finished = {record["id"]: record for record in results.of(arm) if record["status"] == "ok"}
        with_curve = [cell for cell in finished if store.history(cell).is_file()]
        for cell in finished if with_curve else ():  # one is missing only if the arm has others
            wrong = validate_curve(store.history(cell), finished[cell]) if cell in with_curve else "is missing"
            if wrong:
                results.corrupt_curves[cell] = wrong
    present = [record for record in results.records.values() if record]
    files = [store.documents(record["id"], quantity) for record in present for quantity in kept_quantities(record)]
    files += [store.directory(record["id"]) / name for record in present for name in ("history.csv", THIN_NAME)]
    if not any(file.is_file() for file in files):
        results.corrupt_documents.clear()  # a copy of the records alone
    for key, record in results.records.items():
        if record is not None and record["status"] == "ok" and record["id"] not in results.corrupt_curves:
            results.records[key] = with_averages(record, store.history(record["id"]), results.judged)
    whole = folder.resolve()
    results.rivals.update(_rivals(results, whole.with_name(f"{whole.name}{RIVALS}")))
    return results


def is_part(results: Records, folder: Path) -> bool:
    """Return True if a folder has results of what was made of an experiment, such as a smaller budget of it.

    Raises InputError where their manifest is damaged.
    """
    return (folder / "experiment.json").is_file() and not is_outdated(results, folder)


def is_outdated(results: Records, folder: Path) -> bool:
    """Return True if a folder has what was made of an experiment before its settings were changed."""
    if not (folder / "experiment.json").is_file():
        return False
    own, other = results.manifest.get("origin"), read_manifest(folder).get("origin")
    return own is not None and other is not None and own != other  # older versions wrote none


def arm_at_rate(arm: str, rate: float) -> str:
    """Return the name that an arm at a learning rate has in an experiment over rates."""
    return f"{arm}.lr{rate!r}"


def _rivals(results: Records, folder: Path) -> dict[str, dict[float, Cells]]:
    """Return the `rivals` of results from a folder, of the arms of which all were trained; none where it is damaged.

    A rate at which a run diverged is no rival.
    """
    rates = {arm: rate.get("rivals", []) for arm, rate in results.manifest.get("rates", {}).items()}
    try:
        grid = load(folder).records if any(rates.values()) and is_part(results, folder) else {}
    except InputError:
        return {}
    trained = {}
    for arm, rivals in rates.items():
        seeds = [seed for (of, seed), record in results.records.items() if of == arm and record is not None]
        at_rates = {rate: {(arm, seed): grid.get((arm_at_rate(arm, rate), seed)) for seed in seeds} for rate in rivals}
        statuses = {record["status"] if record else "missing" for of in at_rates.values() for record in of.values()}
        if rivals and statuses <= {"ok", "diverged"}:
            cells = {rate: {at: record for at, record in of.items() if record} for rate, of in at_rates.items()}
            trained[arm] = {
                rate: of for rate, of in cells.items() if all(record["status"] == "ok" for record in of.values())
            }
    return trained


def value(record: Record, quantity: str) -> float:
    """Return a quantity of a record, or the mean at a path into it, `initial/entropy/0`; NaN if not measured."""
    if record.get("status", "ok") != "ok":
        return math.nan
    measured: Any = record.get("metrics", {}).get(quantity, record.get("cost", {}).get(quantity))
    if measured is None and "/" in quantity:
        measured = record
        for step in quantity.split("/"):
            try:
                measured = measured[int(step) if isinstance(measured, list) else step]
            except (KeyError, IndexError, ValueError, TypeError):
                return math.nan
    return _mean(measured)


def _mean(node: Any) -> float:
    if isinstance(node, list) and node:
        return float(np.mean([_mean(item) for item in node]))
    return float(node) if is_number(node) else math.nan


def paired(results: Records, arm: str, quantity: str) -> list[tuple[float, float]]:
    """Return the (arm, baseline) values of the seeds on which both cells finished well."""
    records = results.pairs(arm).values()
    pairs = [(value(of_arm, quantity), value(of_base, quantity)) for of_arm, of_base in records]
    return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def quantities(results: Records) -> list[str]:
    """List the measured quantities, the judged always: those of the tables, others, those at a length."""
    measured, own = set(results.judged), set[str]()
    for record in results.records.values():
        if record is not None and record["status"] == "ok":
            parts = (record.get("metrics"), record.get("cost"))
            measured |= {name for part in parts for name, number in (part or {}).items() if number is not None}
            own |= measured & (record.get("metrics") or {}).keys() - METRICS.keys()
    declared = [name for name in METRICS if name in measured]
    with_length = [(*name.partition("@")[::2], name) for name in measured if "@" in name]
    lengths = [name for *_, name in sorted(with_length, key=lambda x: (x[0], int(x[1]) if x[1].isdigit() else 0))]
    others = sorted(name for name in own if "@" not in name)
    first = [name for name in results.judged if name not in (*declared, *others, *lengths)]
    return [*first, *declared, *others, *lengths]


def data_order_mismatches(results: Records) -> list[str]:
    """Name the arms and seeds whose batches differ from the baseline's."""
    mismatches: dict[str, list[int]] = {}
    for arm in results.arms[1:]:
        for seed, (record, base) in results.pairs(arm).items():
            texts = [(r["pairing"], r["data"]["fingerprint"], r["data"]["tokenizer"]) for r in (record, base)]
            if texts[0] != texts[1]:
                mismatches.setdefault(arm, []).append(seed)
    return [f"{arm} {list_seeds(seeds)} saw other batches than the baseline" for arm, seeds in mismatches.items()]


def one_tokenizer(results: Records) -> bool:
    """Return whether all records have the same tokenizer, so that values per token are comparable."""
    return len({record["data"]["tokenizer"] for record in results.records.values() if record is not None}) <= 1


def provenance_differences(results: Records) -> dict[str, list[str]]:
    """Return the provenance fields in which cells differ: code, device, precision, threads, packages."""
    return differing_provenance(record for record in results.records.values() if record is not None)


def curves(results: Records, arm: str, column: str) -> pd.DataFrame:
    """Read a column of the learning curves of an arm's finished cells: a row a step, a column a seed that has one.

    There is none where a curve of the arm is broken: what is left out may be what made the arm better or worse.
    """
    tables = ((seed, curve_table(path, parts="/" in column)) for seed, path in curve_files(results, arm))
    return pd.DataFrame({seed: table[column].dropna() for seed, table in tables if column in table})


def curve_files(results: Records, arm: str) -> Iterator[tuple[int, Path]]:
    """Yield seed and learning curve of an arm's finished cells; none where a curve of the arm is damaged."""
    if any(record["id"] in results.corrupt_curves for record in results.of(arm)):
        return
    for seed in results.manifest["seeds"]:
        record = results.records[arm, seed]
        if record is not None and record["status"] == "ok":
            path = results.store.history(record["id"])
            if path.is_file():
                yield seed, path
