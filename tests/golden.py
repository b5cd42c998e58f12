"""Compare what the code makes now with what is committed, to the last digit: `make golden`.

Compared are table.csv and trends.csv of every committed pack, the answers to all claims, and the ids of all cells of
all shipped experiments whose text is there. `python tests/golden.py --write` writes the answers and ids anew; tables
are written by `lm report`.
"""

import argparse
import csv
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.ablation.derived import expand_budgets, expand_corpora, expand_orders, expand_rates, grid_rates
from lm.ablation.experiment import load_experiment
from lm.ablation.ladder.plan import expand_rungs
from lm.ablation.plan import make_plan
from lm.analysis.answers import Answer
from lm.analysis.compare import compare
from lm.analysis.ladder import load_ladder
from lm.analysis.results import load
from lm.config.tree import InputError
from lm.report.claims import answers
from lm.report.ladder import trend_table, worth_table
from lm.report.pack import open_results
from lm.report.tables import as_csv
from lm.store.sources import EQUIVALENT
from lm.training.provenance import source_hash

ROOT = Path(__file__).resolve().parents[1]
REFERENCE, EXPERIMENTS = ROOT / "results" / "reference", ROOT / "experiments"
GOLDEN = Path(__file__).with_name("golden.json")


def tables_of(folder: Path) -> dict[str, str]:
    """Return the tables that a folder of results comes to, as CSV; none of a search."""
    if (folder / "ladder.json").is_file():
        ladder = load_ladder(folder)
        return {"table.csv": as_csv(worth_table(ladder)), "trends.csv": as_csv(trend_table(ladder))}
    if not (folder / "experiment.json").is_file():
        return {}
    return {"table.csv": as_csv(compare(load(folder)))}


def differences(committed: str, made: str) -> Iterator[str]:
    """Name the cells in which two CSV files differ: the row by its first columns, the column, both values."""
    before, after = (list(csv.reader(io.StringIO(text))) for text in (committed, made))
    if before[0] != after[0]:
        yield f"columns: {', '.join(before[0])} became {', '.join(after[0])}"
        return
    if len(before) != len(after):
        yield f"{len(before) - 1} rows became {len(after) - 1}"
        return
    for old, new in zip(before[1:], after[1:], strict=True):
        for name, left, right in zip(before[0], old, new, strict=True):
            if left != right:
                yield f"{' '.join(old[:2])}, {name}: {left} became {right}"


def described(answer: Answer) -> list[Any]:
    """Return what is compared of the answer to a claim."""
    numbers = (answer.estimate, answer.low, answer.high, answer.p, answer.p_holm, answer.q)
    return [answer.claim.claim, answer.verdict, answer.seeds, answer.post_hoc, *map(repr, numbers)]


def ids_of(path: Path) -> dict[str, list[str]]:
    """Return the ids of all cells that an experiment asks for, by rung, grid or order; in the order of the plan."""
    experiment = load_experiment(path, {})
    parts = expand_rungs(experiment) if experiment.ladder else expand_corpora(experiment)
    parts += [expand_rates(experiment, grid_rates(experiment))] if experiment.grid else []
    parts += [expand_orders(experiment)] if experiment.data_seeds else []
    parts += expand_budgets(experiment)
    return {part.name: [planned.cell.id for planned in make_plan(part).cells] for part in parts}


def made_now() -> tuple[dict[str, Any], list[str], list[str]]:
    """Return answers and ids, the differences of tables to the committed ones, and what was left out, with reasons."""
    content: dict[str, Any] = {"claims": {}, "ids": {}}
    wrong, left_out = [], []
    with tempfile.TemporaryDirectory() as temporary:
        for pack in sorted(REFERENCE.glob("*.lmpack")):
            print(pack.name, file=sys.stderr)
            with open_results(pack, Path(temporary)) as place:
                for name, made in tables_of(place.folder).items():
                    committed = (REFERENCE / pack.stem / name).read_text(encoding="utf-8")
                    wrong += [f"{pack.stem}/{name}: {line}" for line in differences(committed, made)]
                if (place.folder / "experiment.json").is_file() and (given := answers(load(place.folder))):
                    content["claims"][pack.stem] = [described(answer) for answer in given]
    for path in sorted(EXPERIMENTS.rglob("*.yaml")):
        if path.parent.name in ("bases", "families"):
            continue
        if path.stem == "tokenizers":
            left_out.append("tokenizers: Unigram and WordPiece train to another vocabulary each time")
            continue
        try:
            content["ids"].update(ids_of(path))
        except InputError as error:
            left_out.append(f"{path.stem}: {error}")
    return content, wrong, left_out


def main() -> int:
    """Compare or write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write answers and ids anew")
    options = parser.parse_args()
    content, wrong, left_out = made_now()
    for line in left_out:
        print(f"left out: {line}")
    if options.write:
        GOLDEN.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
        print(f"written: {GOLDEN.name}")
    else:
        committed = json.loads(GOLDEN.read_text(encoding="utf-8"))
        for part, of_part in committed.items():
            for name, values in of_part.items():
                if name in content[part] and content[part][name] != values:
                    wrong.append(f"{part} of {name}: differ")
                elif name not in content[part] and not left_out:
                    wrong.append(f"{part} of {name}: are gone")
    if not any(source_hash() in hashes for hashes in EQUIVALENT):
        print(
            f"the source of lm is new: {source_hash()}; lm/store/sources.py may take it up if all numbers are the same"
        )
    print("\n".join(wrong) or "the same: tables, claims and ids")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
