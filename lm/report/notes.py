"""Notes below the tables: on the method, the runs, and what makes arms hard to compare."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.answers import Answer
from lm.analysis.budgets import over_budget, verdict_over_budget
from lm.analysis.comparability import changes_in_words
from lm.analysis.curve import last_validations
from lm.analysis.results import (
    FirstLook,
    Records,
    data_order_mismatches,
    is_outdated,
    one_tokenizer,
    provenance_differences,
)
from lm.analysis.texts import LOSS_OF, Texts, generalises, texts_by_quantity
from lm.analysis.verdict_text import format_seeds as count_seeds
from lm.analysis.verdict_text import list_seeds, seed_ranges
from lm.config.tree import path_name
from lm.report.claims import STYLES
from lm.report.run import describe_autotune, whereabouts
from lm.report.sections import NOISY, undeclared_costs, unlike_pairs
from lm.report.tables import format_range, number, span
from lm.stats.sequential import anytime_pairs_needed, left_after
from lm.stats.tests import ALPHA, seeds_needed, smallest_p
from lm.store.archive import CURVE
from lm.store.metrics import describe, is_of_task, parse_average
from lm.store.record import ExperimentRegistration, evaluated_tokens

MEASURED = re.compile(r"(?<![\w.])\d+\.\d+(?:e[+-]?\d+)?(?![\w.]*\d)")
"""Pattern of a measurement in a flag, as opposed to a count."""

FLAG = re.compile(r"(?:step (\d+): )?(.*)", re.DOTALL)  # the step and the text of a flag

CELLS = Path("cells")  # folder of the cells as named on pages, which may be read on another machine or come from a pack
SEE = " See docs/verdicts.md."  # end of the note on verdicts, but in a table for a paper


def grouped(results: Records, table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the notes by topic: `method`, `runs`, `comparability`, `evaluation`."""
    return {
        "method": list(_method(results, table)),
        "runs": [*_damaged(results), *_runs(results, table)],
        "comparability": list(_comparability(results)),
        "evaluation": list(_evaluation(results)),
    }


def notes(results: Records, table: pd.DataFrame, of_runs: bool = True) -> list[str]:
    """Return all notes in a list; without those on single runs, and pointers to pages, for a table in a paper."""
    topics = grouped(results, table)
    if of_runs:
        return [line for lines in topics.values() for line in lines]
    return [line.removesuffix(SEE) for topic, lines in topics.items() if topic != "runs" for line in lines]


# the terminal --------------------------------------------------------------------------------------------------------

SEARCHED = {"lr_curve.json": CURVE, "tune/tuned.json": ".tuned"}
"""Files of an experiment whose arms had learning rates searched, and the endings of what was trained for them."""
NO_LOOK = FirstLook()
MOST_NOTES, LONGEST = 4, 80  # lines below the table in the terminal, and characters of one of them, at most


def brief_notes(results: Records, table: pd.DataFrame, answers: Sequence[Answer] = ()) -> list[str]:
    """Return at most `MOST_NOTES` lines: test, warnings, counts of claims, verdicts over the budget, problems."""
    seeds, lines = results.manifest["seeds"], list[str]()
    sample = f"n = {count_seeds(len(seeds))} ({seed_ranges(seeds)})"
    if len(results.arms) > 1:
        sample += f", paired by seed; {_brief_test(results)}"
    lines.append(f"{sample}.")
    if warnings := _brief_warnings(results):
        while len(line := f"Warnings (table.md): {'; '.join(warnings)}.") > LONGEST and len(warnings) > 1:
            warnings.pop()  # the mildest
        lines.append(line)
    if answers:
        counts = Counter[str](answer.verdict for answer in answers)
        lines.append(f"Claims: {', '.join(f'{counts[verdict]} {verdict}' for verdict in STYLES if counts[verdict])}.")
    lines += _brief_budget(results)
    arms_by_problem: dict[str, list[str]] = {}
    for arm in filter(results.health.get, results.arms):
        arms_by_problem.setdefault(results.health[arm], []).append(arm)
    room = MOST_NOTES - len(lines)
    shown = list(arms_by_problem.items())[: room - (len(arms_by_problem) > room)]
    for problem, arms in shown:
        first, *more = problem.split("; ")
        lines.append(f"! {', '.join(arms)}: {first}{f'; {len(more)} more' if more else ''}")
    if others := [arm for arms in list(arms_by_problem.values())[len(shown) :] for arm in arms]:
        lines.append(f"! {', '.join(others)}: see table.md")
    sizes = [line for line in _detectable(results, table) if not line.endswith("none.")]
    return [*lines, *sizes][:MOST_NOTES]


def _brief_budget(results: Records) -> list[str]:
    """Return a line with the verdicts of arms over shares of the training, as many as fit; none without shares."""
    verdicts, end = [f"{arm} {verdict_over_budget(of_arm)}" for arm, of_arm in over_budget(results).items()], "."
    while len(line := f"Over the budget: {'; '.join(verdicts)}{end}") > LONGEST and len(verdicts) > 1:
        verdicts, end = verdicts[:-1], "; others in table.md."
    return [line] if verdicts else []


def _brief_test(results: Records) -> str:
    """Name the test behind the verdicts, or what keeps it from one."""
    if not results.confirmatory:
        return "exploratory, to be confirmed"
    number = len(results.confirmatory) * len(results.judged)
    look = results.first_look()
    alpha = left_after(*look)
    level = f"{100 * alpha:z.3g} %" + (f" over {number} comparisons" if number > 1 else "")
    if results.manifest.get("adaptive") and not look.pairs:
        return f"sequential test at {level}"
    if smallest_p(len(results.manifest["seeds"])) > alpha / number:
        needed = anytime_pairs_needed(alpha / number) if look.pairs else seeds_needed(number)
        return f"too few for significance ({needed} could)"
    if look.pairs:
        return f"anytime-valid test at the {level} left by a look at {look.pairs}"
    return f"sign-flip test at {level}"


def _brief_warnings(results: Records) -> list[str]:
    warnings = {
        "damaged files": results.harmed,
        "tokenizers differ, compare bits per byte": not one_tokenizer(results),
        "arms saw other batches": data_order_mismatches(results),
        "devices or packages differ": unlike_pairs(results),
        "undeclared costs differ": any({*names} - {*NOISY} for names in undeclared_costs(results).values()),
        "one learning rate": has_one_rate(results),
        "some runs raised flags": any(record and record["flags"] for record in results.records.values()),
    }
    return [text for text, holds in warnings.items() if holds]


# how verdicts are reached --------------------------------------------------------------------------------------------


def _method(results: Records, table: pd.DataFrame) -> Iterator[str]:
    """Yield the block of notes on sample, verdict, text, detectable effect and noise."""
    seeds = results.manifest["seeds"]
    paired = f", paired with {results.manifest['baseline']} by seed" if len(results.arms) > 1 else ""
    yield f"n = {count_seeds(len(seeds))} ({seed_ranges(seeds)}){paired}. Mean ± sd over seeds."
    if (registration := results.manifest.get("registration")) is not None:
        yield registration_note(registration)
    if len(results.arms) < 2:
        return
    texts_of = texts_by_quantity(results)
    over_text = results.headline in texts_of and generalises(results) and bool(texts_of[results.headline].noise)
    if results.confirmatory:
        yield _confirmatory(results, f"seeds and {_sample(results)}" if over_text else "seeds")
    if results.exploratory:
        yield _exploratory(results, table)
    if look := results.first_look().pairs:
        yield f"Seeds were added when results of {look} could be known; their tests used a part of 5 %.{SEE}"
    if len(results.judged) > 1:
        yield f"Judged: {', '.join(describe(name).label for name in results.judged)}. No other quantity has a verdict."
    if results.manifest.get("margin"):
        share = "at what the last look may spend" if results.manifest.get("adaptive") else "Holm"
        how = [share] * bool(results.confirmatory) + ["Benjamini and Hochberg"] * bool(results.exploratory)
        tests = f"two one-sided sign tests ({'; exploratory: '.join(how)})"
        yield f"Equivalent: median difference over seeds within the margin, by {tests}."
    yield from _choice_of_rates(results)
    yield from _not_over_text(results, texts_of)
    yield from average_notes(results)
    yield from _over_items(table)
    yield from _sizes(results, table)


def _choice_of_rates(results: Records) -> Iterator[str]:
    """Say what the choice of learning rates on few seeds leaves open, if anything."""
    rates, headline = results.manifest.get("rates", {}), describe(results.headline).label
    judged = ", ".join(describe(quantity).label for quantity in results.judged)
    of_arms = {arm: of for arm, of in results.rivals.items() if of}
    if rivals := [f"{arm} {', '.join(f'{rate:z.3g}' for rate in of)}" for arm, of in sorted(of_arms.items())]:
        yield (
            f"Learning rates: the seeds that chose them do not tell these from the best: {'; '.join(rivals)}. "
            f"These were trained on the seeds of the table too: verdicts, claims and CIs of {judged} hold at each."
        )
    open_arms = [(arm, rate.get("regret", 0.0)) for arm, rate in rates.items() if arm not in results.rivals]
    missed = [f"{arm} by up to {regret:z.2g}" for arm, regret in open_arms if regret]
    if missed:
        yield (
            f"Learning rates: chosen on few seeds, which may miss the best of those tried: {', '.join(missed)}. "
            f"CIs of {headline} hold this too; run `lm ablate` again to train what may be as good."
        )


def registration_note(registration: ExperimentRegistration) -> str:
    """State when an experiment was registered, whether any run had finished, and what differs from it since."""
    finished = registration["finished"]
    order = f"after {finished} runs on its seeds" if finished else "before any run on its seeds finished"
    changes = ", ".join(registration["changes"])
    since = f"changed since: {changes}" if changes else "nothing has changed since"
    day, code = registration["registered"].replace("T", " ")[:16], registration["sha256"][:12]
    return f"Registered on {day} UTC (sha256 {code}), {order}; {since}."


def _sample(results: Records) -> str:
    """Name what the headline was measured on."""
    return "items" if is_of_task(results.headline) else "text"


def _confirmatory(results: Records, scope: str) -> str:
    number = len(results.confirmatory) * len(results.judged)
    look = results.first_look()
    if look.pairs == 0 and (adaptive := results.manifest.get("adaptive")):
        looks = ", ".join(map(str, adaptive["looks"]))
        return (
            f"Verdict: sequential sign-flip test at {share_of_alpha(number)}, with looks at {looks} of at most "
            f"{adaptive['maximum']} seeds. The repeated CI is Student's, widened to hold at every look."
        )
    some = f" of {', '.join(results.confirmatory)}" if results.exploratory else ""
    return describe_test(len(results.manifest["seeds"]), number, some, scope, look)


def describe_test(seeds: int, number: int, some: str = "", scope: str = "seeds", look: FirstLook = NO_LOOK) -> str:
    """Describe the test of `number` comparisons of `seeds` pairs after a first `look`, or why it reaches no verdict."""
    least, alpha = smallest_p(seeds), left_after(*look)
    needed = anytime_pairs_needed(alpha / number) if look.pairs else seeds_needed(number)
    level, confidence = share_of_alpha(number, alpha), f"{100 * (1 - alpha):z.4g} %"
    if least > alpha / number:
        return (
            f"{count_seeds(seeds)} cannot reach significance ({needed} could): an exact sign-flip "
            f"test gives no p below {least:z.3g}, and {level} is needed."
        )
    together = f", and the CIs together at {confidence}" if number > 1 else ""
    test = "anytime-valid test by bets on signs" if look.pairs else "exact sign-flip test"
    return f"Verdict{some}: {test} at {level}, and {confidence} CI over {scope} excludes 0{together}.{SEE}"


def share_of_alpha(number: int, alpha: float = ALPHA) -> str:
    """Format the level of each of several tests that share 5 %, or what looks left of it."""
    level, each = (f"{100 * share:z.3g} %" for share in (alpha, alpha / number))
    return level if number == 1 else f"{each} each ({level} over {number} comparisons, Bonferroni)"


def _exploratory(results: Records, table: pd.DataFrame) -> str:
    """State what q and the intervals of exploratory arms generalise over: seeds, and text where known."""
    judged = table[(table.family == "exploratory") & table.metric.isin(results.judged)]
    over_text = judged.p_both.notna()
    scope = "on other seeds and other text" if over_text.any() else "on other seeds"
    only = " (over seeds alone without losses by document)" if over_text.any() and not over_text.all() else ""
    named = ", ".join(results.exploratory) if results.confirmatory else "all arms"
    return (
        f"Exploratory, to be confirmed with other seeds: {named}. q bounds the share of false discoveries {scope} "
        f"(Benjamini and Hochberg){only}; each 95 % CI holds by itself.{SEE}"
    )


def _not_over_text(results: Records, texts_of: Mapping[str, Texts]) -> Iterator[str]:
    """State which intervals cover other seeds but not other text, and why."""
    if results.manifest.get("adaptive"):
        yield "CIs cover other seeds, not other text: stages are tested over seeds alone."
        return
    if not generalises(results):
        yield "CIs cover other seeds, not other text, as the experiment requests (generalise: seeds)."
        return
    for name in results.judged:
        label = f" of {describe(name).label}" if len(results.judged) > 1 else ""
        if name not in LOSS_OF and not is_of_task(name):
            yield f"CIs{label} cover other seeds, not other text, whose noise is known for losses alone."
            continue
        texts = texts_of.get(name, Texts({}, "document", {}))
        if not texts.noise and len(set(texts.lacking.values())) <= 1:
            reason = next(iter(texts.lacking.values()), "it was not measured")
            yield f"CIs{label} cover other seeds, not other text: {reason}."
        elif texts.lacking:
            lacking = "; ".join(f"{arm}: {reason}" for arm, reason in texts.lacking.items())
            yield f"CIs{label} of these arms cover other seeds, not other text: {lacking}."


def _over_items(table: pd.DataFrame) -> Iterator[str]:
    """Yield the tests of each task's quantity over its items, on the seeds that were trained."""
    for name in [name for name in dict.fromkeys(table.metric) if is_of_task(name)]:
        rows = table[(table.metric == name) & table.p_items.notna()].itertuples() if "p_items" in table else ()
        if p_by_arm := "; ".join(f"{row.arm} {row.p_items:z.3g}" for row in rows):
            test = "by exact flips of signs (of one seed: McNemar's test)"
            yield f"p of {describe(name).label} over items on these seeds, {test}: {p_by_arm}."


def average_notes(results: Records) -> Iterator[str]:
    """Yield a note for each judged mean over validations on how averaging changed the noise."""
    for name in results.judged:
        if (mean := parse_average(name)) is None:
            continue
        quantity, count = mean
        digits, parts = describe(name).digits + 1, []
        for arm in results.arms[1:]:
            pairs = [
                [last_validations(results.store.history(record["id"]), quantity, count) for record in pair]
                for pair in results.pairs(arm).values()
            ]
            sides = np.array([pair for pair in pairs if all(pair)])  # seed, arm and baseline, validation
            if len(sides) > 1:
                differences = sides[:, 0] - sides[:, 1]
                last, averages = (float(side.std(ddof=1)) for side in (differences[:, -1], differences.mean(axis=1)))
                parts.append(f"{arm} {number(averages, digits)} instead of {number(last, digits)}")
        if parts:
            yield (
                f"sd over seeds of the differences in {describe(name).label}, instead of in the last validation "
                f"alone: {'; '.join(parts)}."
            )


def _sizes(results: Records, table: pd.DataFrame) -> Iterator[str]:
    """Yield the detectable effects and the standard errors of the headline, over all arms."""
    rows = table[(table.metric == results.headline) & (table.verdict != "baseline")]
    digits, parts = describe(results.headline).digits, _detectable(results, table)
    if "se_seeds" in rows and len(errors := rows[["se_seeds", "se_text"]].dropna()):
        seeds, text = (format_range(list(errors[column]), digits) for column in errors)
        parts.append(f"Noise: seeds {seeds}, {_sample(results)} {text} (SE).")
    if parts:
        yield " ".join(parts)


def _detectable(results: Records, table: pd.DataFrame) -> list[str]:
    """State the detectable effects of the headline over all arms; none where no test has one."""
    values = table[(table.metric == results.headline) & (table.verdict != "baseline")].detectable.dropna()
    text = format_range(list(values), describe(results.headline).digits) if len(values) else ""
    return [f"Detectable effect (80 % power): {text}."] if text else []


# the runs ------------------------------------------------------------------------------------------------------------


def _runs(results: Records, table: pd.DataFrame) -> Iterator[str]:
    """Describe lost and missing cells, and the flags that cells raised."""
    missing: dict[str, list[int]] = {}
    flagged: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for (arm, seed), record in sorted(results.records.items()):
        if (arm, seed) in results.corrupt_records:
            continue
        if record is None:
            missing.setdefault(arm, []).append(seed)
        elif record["status"] != "ok":
            why = f"{record['error']}{whereabouts(results.store, record, CELLS / record['id'])}"
            yield f"{arm} seed {seed} {record['status']}: {why}. Not in any mean."
        for flag in record["flags"] if record else []:
            step, text = FLAG.findall(flag)[0]
            flagged.setdefault((arm, MEASURED.sub("#", text)), []).append((seed, int(step or 0), text))
    yield from (missing_seeds(arm, seeds, "not trained yet") for arm, seeds in missing.items())
    for (arm, _), alike in flagged.items():
        seeds, steps, texts = zip(*alike, strict=True)
        yield f"{arm} {list_seeds(list(dict.fromkeys(seeds)))}: {_merge_flags(texts, list(filter(None, steps)))}."
    total = len(results.manifest["seeds"])
    for row in table[table.metric == results.headline].itertuples():
        yield from lost_rate(row, len(results.of(str(row.arm))))
        if row.verdict != "baseline" and row.pairs < total:
            yield f"{row.arm} is compared on the {row.pairs} of {total} seeds on which it and the baseline finished."


def missing_seeds(arm: str, seeds: Sequence[int | str], what: str) -> str:
    """State what the runs of some seeds are."""
    return f"{arm} {list_seeds(seeds)} {'is' if len(seeds) == 1 else 'are'} {what}."


def lost_rate(row: Any, runs: int) -> Iterator[str]:
    """Yield the rate of an arm's runs that diverged or failed, where any did."""
    if num_lost := row.diverged + row.failed:
        rate = f"{row.lost_rate:z.2f} [{row.lost_low:z.2f}, {row.lost_high:z.2f}]"
        yield f"{row.arm}: {num_lost} of {runs} runs diverged or failed: {rate} (Clopper-Pearson 95 % CI)."


def _damaged(results: Records) -> Iterator[str]:
    for arm, seed in sorted(results.records):
        cell = results.manifest["arms"][arm]["cells"][str(seed)]
        run, folder = f"{arm} seed {seed}", CELLS / cell
        if wrong := results.corrupt_records.get((arm, seed)):
            yield f"Warning: {run} is damaged and not in any mean: {folder / 'record.json'}: {wrong}."
        if wrong := results.corrupt_curves.get(cell):
            yield (
                f"Warning: the learning curve of {run} is damaged, so {arm} has no curve and no steps to the "
                f"baseline's loss: {folder / results.store.history(cell).name}: {wrong}."
            )
        for (owner, quantity), wrong in results.corrupt_documents.items():
            if owner == cell:
                yield (
                    f"Warning: the losses by document of {run} are damaged, so its comparisons in "
                    f"{describe(quantity).label} do not cover other text: {folder / wrong}."
                )


def _comparability(results: Records) -> Iterator[str]:
    if not one_tokenizer(results):
        yield (
            "Arms differ in tokenizer: NLL, perplexity, accuracy, ECE and training loss are per token and not "
            "comparable; bits per byte are."
        )
    yield from (f"Not paired: {line}." for line in data_order_mismatches(results))
    yield from unlike_pairs(results)
    for name, values in provenance_differences(results).items():
        yield f"Runs differ in {name}: {', '.join(values)}."
    if autotuned := results.manifest.get("ways"):
        yield describe_autotune(autotuned)
    if has_one_rate(results):
        yield "Learning rate: one for all arms, searched for none; an arm may be better at another (`tune: rates`)."


def has_one_rate(results: Records) -> bool:
    """Return True where all arms share a learning rate, and none was searched for any of them."""
    folder = results.store.out / path_name(results.manifest["name"], "experiment")
    searched = "rates" in results.manifest or any(
        (folder / name).is_file() and not is_outdated(results, folder.with_name(f"{folder.name}{end}"))
        for name, end in SEARCHED.items()
    )
    arms = results.manifest["arms"].values()
    return len(arms) > 1 and not searched and not any("optim.lr" in arm["changes"] for arm in arms)


def _evaluation(results: Records) -> Iterator[str]:
    records = [r for r in results.records.values() if r is not None and r["status"] == "ok"]
    evaluated = sorted({evaluated_tokens(record) for record in records})
    if evaluated:
        yield f"Evaluated on {', '.join(f'{n:,}' for n in evaluated)} tokens."
    if len(evaluated) > 1 and one_tokenizer(results):
        yield "Runs were evaluated on different numbers of tokens, so their losses are of different text."


def _merge_flags(texts: Sequence[str], steps: Sequence[int]) -> str:
    """Merge flags that differ in step and measurement alone into one with their ranges."""
    measured = zip(*map(MEASURED.findall, texts), strict=True)
    ranges = iter([span(min(values, key=float), max(values, key=float)) for values in measured])
    merged = MEASURED.sub(lambda _: next(ranges), texts[0])
    several = "s" * (len(set(steps)) > 1)
    return f"{merged} (step{several} {span(str(min(steps)), str(max(steps)))})" if steps else merged


def changes(results: Records) -> list[str]:
    """List the resolved differences of each arm from the baseline, a line each."""
    lines = []
    for arm in results.arms[1:]:
        parts = changes_in_words(results.manifest["arms"][arm]["changes"])
        lines.append(f"{arm}: {'; '.join(parts) or 'nothing'}")
    return lines


MOST_WORDS = 80  # largest number of words of the author's notes in table.md; the page of HTML has all of them


def author_notes(manifest: Mapping[str, Any]) -> str:
    """Return the notes of the experiment's file, cut after a sentence where they are long."""
    words = manifest["notes"].split()
    if len(words) <= MOST_WORDS:
        return " ".join(words)
    pointer = f"(Continued in report.html and in the notes of {manifest['name']}.yaml.)"
    text = " ".join(words[: MOST_WORDS - len(pointer.split())])
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s+[A-Z]|$)", text)]
    return f"{text[: ends[-1]] if ends else f'{text} ...'} {pointer}"


def axes(results: Records) -> list[str]:
    """Describe in one line the kind of each path on which arms differ; a part stands for its own settings.

    Empty where none is declared.
    """
    of_all = results.manifest.get("axes") or {}
    kind_by_path = {
        path: kind
        for path, kind in of_all.items()
        if not any(path.startswith(f"{part}.") and of_all[part] == kind for part in of_all)
    }
    if not kind_by_path:
        return []
    kinds = [kind for kind in ("scientific", "nuisance", "fixed") if kind in kind_by_path.values()]
    parts = [f"{kind}: {', '.join(path for path, of in kind_by_path.items() if of == kind)}" for kind in kinds]
    return [f"Axes, {'; '.join(parts)}; everything else fixed."]
