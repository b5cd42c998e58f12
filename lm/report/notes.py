"""Notes below the tables: on the method, the runs, and what makes arms hard to compare."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lm.analysis.results import Results, data_order_mismatches, one_tokenizer, provenance_differences
from lm.report.autotune import describe_autotune
from lm.report.costs import unlike_pairs
from lm.report.failure import whereabouts
from lm.report.tables import format_detectable
from lm.report.texts import average_notes, text_notes
from lm.stats.tests import ALPHA, seeds_needed, smallest_p
from lm.store.documents import KEPT
from lm.store.metrics import describe
from lm.store.record import evaluated_tokens

MEASURED = re.compile(r"(?<![\w.])\d+\.\d+(?:e[+-]?\d+)?(?![\w.]*\d)")
"""Pattern of a measurement in a flag, as opposed to a count."""

CELLS = Path("cells")
"""Folder of the cells as named on pages, which may be read on another machine or come from a pack."""


def notes(results: Results, table: pd.DataFrame) -> list[str]:
    """Return all notes in a list."""
    return [line for lines in grouped(results, table).values() for line in lines]


def grouped(results: Results, table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the notes by topic: `method`, `runs`, `comparability`, `evaluation`."""
    return {
        "method": list(_method(results, table)),
        "runs": list(_runs(results, table)),
        "comparability": list(_comparability(results)),
        "evaluation": list(_evaluation(results)),
    }


def method(results: Results, table: pd.DataFrame) -> list[str]:
    """Return the notes without those on single runs, for a table outside its report."""
    return [*_method(results, table), *_comparability(results), *_evaluation(results)]


def _method(results: Results, table: pd.DataFrame) -> Iterator[str]:
    first = f"Mean ± standard deviation over seeds {', '.join(map(str, results.manifest['seeds']))}."
    if len(results.arms) > 1:
        baseline = results.manifest["baseline"]
        first += f" Differences are to {baseline}, paired by seed."
    yield first
    if results.confirmatory:
        yield from _confirmatory(results)
    if results.exploratory:
        yield _exploratory(results, table)
    if len(results.arms) > 1:
        yield from _judged(results)
        yield from text_notes(results)
        yield from average_notes(results)
    detectable = [
        f"{row.arm} {format_detectable(row)}"
        for row in table[table.metric == results.headline].itertuples()
        if row.detectable == row.detectable and row.verdict != "baseline"
    ]
    if detectable:
        yield f"Smallest difference that the test would find four times in five: {', '.join(detectable)}."


def _exploratory(results: Results, table: pd.DataFrame) -> str:
    """State what q and the intervals of exploratory arms generalise over: seeds, and text where known."""
    judged = table[(table.family == "exploratory") & table.metric.isin(results.judged)]
    over_text = judged.p_both.notna()
    p, scope = "the p over seeds", "on other seeds"
    if over_text.any():
        p, scope = "the larger of the p over seeds and the p over seeds and text", "on other seeds and other text"
    only = (
        "" if over_text.all() or not over_text.any() else " (where losses are not kept by document: over seeds alone)"
    )
    return (
        f"Exploratory, to be confirmed with other seeds: {', '.join(results.exploratory)}. q bounds the share of false "
        f"discoveries among them {scope} (Benjamini and Hochberg, over {p}{only}). Each interval holds at 95 % by "
        "itself."
    )


def _judged(results: Results) -> Iterator[str]:
    """State which quantities have verdicts, and define equivalence."""
    others = [describe(name).label for name in results.judged[1:]]
    named = f"{describe(results.headline).label}" + (f", and beside it {', '.join(others)}" if others else "")
    yield (f"Judged: {named}. Every other quantity has its plain interval (Student's, 95 % by itself) and no verdict.")
    if results.manifest.get("margin"):
        yield (
            "Equivalent: the median difference over seeds (the typical seed's) lies within the margin by two one-sided "
            "sign tests, which ask for no shape of the noise, Holm-adjusted."
        )


def _confirmatory(results: Results) -> Iterator[str]:
    number = len(results.confirmatory) * len(results.judged)
    comparisons = f"{number} comparison{'s' if number > 1 else ''}"
    if adaptive := results.manifest.get("adaptive"):
        yield _stages(adaptive, comparisons, number)
        return
    some = f" of {', '.join(results.confirmatory)}" if results.exploratory else ""
    yield describe_test(len(results.manifest["seeds"]), number, some)


def describe_test(seeds: int, number: int, some: str = "") -> str:
    """Describe the test behind `number` comparisons of `seeds` pairs, or why it can reach no verdict.

    `some` names the arms, where these are not all.
    """
    comparisons = f"{number} comparison{'s' if number > 1 else ''}"
    least = smallest_p(seeds)
    if least > ALPHA / number:
        level = (
            f"{comparisons} share {ALPHA}, {ALPHA / number:z.3g} for each" if number > 1 else f"it is held to {ALPHA}"
        )
        return (
            f"{seeds} seed{'s' * (seeds != 1)} cannot reach significance: an exact sign-flip test gives no p below "
            f"{least:z.3g}, and {level}. "
            f"{seeds_needed(number)} seeds could."
        )
    each, together = shared_level(number)
    return (
        f"Verdicts{some} come from exact sign-flip tests of the mean{each}. The joint intervals are what these tests "
        f"do not reject{together}, and one leaves out zero exactly where there is a verdict."
    )


def shared_level(number: int) -> tuple[str, str]:
    """Return the level of each of `number` tests, and the joint level of their intervals, in words."""
    if number == 1:
        return f" at {ALPHA}", ""
    return f", each at {ALPHA / number:z.3g} (Bonferroni: {number} comparisons)", "; together they hold at 95 %"


def _stages(adaptive: Mapping[str, Any], comparisons: str, number: int) -> str:
    looks = ", ".join(map(str, adaptive["looks"]))
    return (
        f"Seeds were added in stages, with looks at {looks} of at most {adaptive['maximum']}: verdicts come from a "
        f"sequential sign-flip test at {ALPHA / number:z.3g} for each of {comparisons}. The repeated interval is "
        "Student's at that level, widened to hold at every look."
    )


def _runs(results: Results, table: pd.DataFrame) -> Iterator[str]:
    """Describe lost and missing cells, and the flags that cells raised."""
    yield from _damaged(results)
    missing: dict[str, list[int]] = {}
    flagged: dict[tuple[str, str], dict[int, list[tuple[int, str]]]] = {}
    for (arm, seed), record in sorted(results.records.items()):
        if (arm, seed) in results.corrupt_records:
            continue
        if record is None:
            missing.setdefault(arm, []).append(seed)
        elif record["status"] != "ok":
            why = f"{record['error']}{whereabouts(results.store, record, CELLS / record['id'])}"
            yield f"{arm} seed {seed} {record['status']}: {why}. It enters no mean."
        for step, flag in map(_split_step, record["flags"] if record else []):
            flagged.setdefault((arm, MEASURED.sub("#", flag)), {}).setdefault(seed, []).append((step, flag))
    for arm, seeds in missing.items():
        yield f"{arm} {format_seeds(seeds)} {'is' if len(seeds) == 1 else 'are'} not trained yet."
    for (arm, _), alike in flagged.items():
        flags = [flag for of_seed in alike.values() for flag in of_seed]
        yield f"{arm} {format_seeds(list(alike))}: {_merge_flags(flags)}."
    total = len(results.manifest["seeds"])
    for row in table[table.metric == results.headline].itertuples():
        if num_lost := row.diverged + row.failed:
            runs = len(results.of(str(row.arm)))
            yield (
                f"{row.arm}: {num_lost} of {runs} runs diverged or failed, a rate of {row.lost_rate:z.2f} "
                f"[{row.lost_low:z.2f}, {row.lost_high:z.2f}] (Clopper and Pearson's 95 % interval)."
            )
        if row.verdict != "baseline" and row.pairs < total:
            yield (
                f"{row.arm} is compared on the {row.pairs} of {total} seeds on which it and the baseline both finished."
            )


def _damaged(results: Results) -> Iterator[str]:
    """Warn of cells with damaged files, and state what is left out for that."""
    cell_of = {(arm, seed): results.manifest["arms"][arm]["cells"][str(seed)] for arm, seed in results.records}
    for (arm, seed), wrong in sorted(results.corrupt_records.items()):
        path = CELLS / cell_of[arm, seed] / "record.json"
        yield f"Warning: {arm} seed {seed} is damaged and enters no mean: {path}: {wrong}."
    for (arm, seed), cell in sorted(cell_of.items()):
        if cell in results.corrupt_curves:
            file = results.store.history(cell).name
            yield (
                f"Warning: the learning curve of {arm} seed {seed} is damaged, so that no curve of {arm} is drawn and "
                f"none of its steps are counted: {CELLS / cell / file}: {results.corrupt_curves[cell]}."
            )
        for quantity in KEPT:
            if (cell, quantity) in results.corrupt_documents:
                yield (
                    f"Warning: the losses by document of {arm} seed {seed} are damaged, so that the noise of the text "
                    f"in {describe(quantity).label} is not known where {arm} is compared: "
                    f"{CELLS / cell / results.corrupt_documents[cell, quantity]}."
                )


def _comparability(results: Results) -> Iterator[str]:
    if not one_tokenizer(results):
        yield (
            "Arms differ in tokenizer: NLL, perplexity, accuracy, ECE and training loss are per token and cannot be "
            "compared between them; bits per byte can."
        )
    yield from (f"Not paired: {line}." for line in data_order_mismatches(results))
    yield from unlike_pairs(results)
    yield from (
        f"Cells differ in {name}: {', '.join(values)}." for name, values in provenance_differences(results).items()
    )
    if autotuned := results.manifest.get("ways"):
        yield describe_autotune(autotuned)


def _evaluation(results: Results) -> Iterator[str]:
    records = [r for r in results.records.values() if r is not None and r["status"] == "ok"]
    evaluated = sorted({evaluated_tokens(record) for record in records})
    if evaluated:
        yield f"Evaluated on every block of the evaluation data: {', '.join(f'{n:,}' for n in evaluated)} tokens."
    if len(evaluated) > 1 and one_tokenizer(results):
        yield "Cells are not evaluated on the same number of tokens, so their losses are of different text."


def _split_step(flag: str) -> tuple[int, str]:
    """Split a flag into the step at which it was raised, 0 where unknown, and its text."""
    step, _, text = flag.partition(": ")
    number = step.removeprefix("step ")
    return (int(number), text) if number.isdigit() else (0, flag)


def _merge_flags(flags: Sequence[tuple[int, str]]) -> str:
    """Merge flags that differ in step and measurement alone into one with their ranges."""
    steps, messages = zip(*flags, strict=True)
    places = list(zip(*map(MEASURED.findall, messages), strict=True))
    ends = [(min(values, key=float), max(values, key=float)) for values in places]
    texts = iter(low if low == high else f"{low} to {high}" for low, high in ends)
    merged = MEASURED.sub(lambda _: next(texts), messages[0])
    if not any(steps):
        return merged
    first, last = min(filter(None, steps)), max(steps)
    return f"{merged} (step {first})" if first == last else f"{merged} (steps {first} to {last})"


def format_seeds(seeds: Sequence[object]) -> str:
    """Format seeds as `seed 1` or `seeds 1, 2`."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def changes(results: Results) -> list[str]:
    """List the resolved differences of each arm from the baseline, a line each."""
    lines = []
    for arm in results.arms[1:]:
        parts = [
            f"{path}: {before} -> {after}" for path, (before, after) in results.manifest["arms"][arm]["changes"].items()
        ]
        lines.append(f"{arm}: {'; '.join(parts) or 'nothing'}")
    return lines


def axes(results: Results) -> list[str]:
    """Describe in one line the kind of each path on which arms differ; empty where none is declared."""
    kind_by_path = results.manifest.get("axes") or {}
    if not kind_by_path:
        return []
    parts = [
        f"{kind}: {', '.join(path for path, axis_kind in kind_by_path.items() if axis_kind == kind)}"
        for kind in ("scientific", "nuisance", "fixed")
        if kind in kind_by_path.values()
    ]
    return [f"Axes, {'; '.join(parts)}; everything else fixed."]
