"""What a cheap setting is worth: how often its answers have been those of the dearest setting of the same question."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from lm.analysis.answers import DECIDED, Answer
from lm.analysis.budgets import over_budget
from lm.analysis.compare import compare
from lm.analysis.ladder import load_ladder
from lm.analysis.results import Records, is_on_a_text, load
from lm.report.claims import answer_over, answers
from lm.report.pack import rungs_of
from lm.report.render import Section
from lm.stats.tests import rate_interval
from lm.store.archive import STUDY

OPEN = "open"
"""The answer of a setting that tells nothing."""
VERDICTS = ("better", "worse", "higher", "lower", "equivalent")
SHARES = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Ends of the groups of settings by their compute, in that of the dearest setting."""
ALIKE = 0.99
"""Compute of a setting, in that of another, from which on the two are one."""
DRAWS = 2000
FEWEST = 6
"""Experiments from which on a share has an interval."""


SIZE, TEXT, SHARE = "size or length", "one text of several", "share of the training"
"""What makes a setting cheaper than another of the same question."""


@dataclass(frozen=True)
class SettingAnswer:
    """The answer to a question in one setting, and the FLOPs that training took for it."""

    title: str
    question: str
    kind: str  # arm or claim
    answer: str
    difference: float
    seeds: int
    flops: float
    cheaper_by: str = SIZE
    has_sign: bool = True  # False where the difference is a number that is positive by its nature


def transfer_sections(folders: Iterable[Path]) -> list[Section]:
    """Build two tables from experiments and ladders: answers by question, and how often cheaper ones are the same."""
    folders = list(folders)
    rungs = {rung.resolve() for folder in folders for rung in rungs_of(folder)}
    whole = [folder for folder in folders if folder.resolve() not in rungs and not (folder / STUDY).is_file()]
    settings, on_texts = list[SettingAnswer](), dict[str, list[tuple[Answer, float]]]()
    for folder in whole:
        settings += _answers(folder, on_texts)
    for title, costly in on_texts.items():
        settings += _over_texts(title, costly)
    questions = group_by_question(settings)
    return [_questions_section(questions), summary_section(questions)]


def _answers(folder: Path, on_texts: dict[str, list[tuple[Answer, float]]]) -> Iterator[SettingAnswer]:
    """Yield the answers of an experiment about its arms and claims, of a ladder for each rung.

    Answers to claims on one of several texts, with their FLOPs, are added to `on_texts` by title.
    """
    if rungs_of(folder):
        ladder = load_ladder(folder)
        for rung, table in zip(ladder.rungs, ladder.tables, strict=True):
            yield from _arms(rung, table, ladder.manifest["title"])
        return
    results = load(folder)
    title, baseline = results.manifest["title"], results.manifest["baseline"]
    yield from _arms(results, compare(results), title)
    for arm, of_arm in over_budget(results).items():
        question, flops = f"{arm} - {baseline}", _flops(results, [arm, baseline])
        for at in of_arm:
            if not len(at.comparison.differences):  # not trained yet
                continue
            differences, spent = at.comparison.differences, flops * at.percent / 100
            mean, answer_there = float(np.mean(differences)), at.direction or OPEN
            yield SettingAnswer(title, question, "arm", answer_there, mean, len(differences), spent, SHARE)
    for answer in answers(results):
        flops = _flops(results, answer.claim.arms)
        if is_on_a_text(results.manifest):
            on_texts.setdefault(title.rpartition(" (")[0], []).append((answer, flops))
        elif not answer.claim.exact:
            yield _of_claim(title, answer, flops, SIZE)


def _over_texts(title: str, costly: Iterable[tuple[Answer, float]]) -> Iterator[SettingAnswer]:
    """Yield the answers to each claim on one text, and that over all texts."""
    key = attrgetter("claim.claim")
    for claim, group in groupby(sorted(costly, key=lambda pair: key(pair[0])), lambda pair: key(pair[0])):
        pairs = list(group)
        over = answer_over([answer for answer, _ in pairs])
        if over is None:  # also of fewer texts than a mean takes
            continue
        for answer, flops in pairs:
            yield _of_claim(title, answer, flops, TEXT)
        verdict, seeds = over.verdict if over.verdict in DECIDED else OPEN, min(answer.seeds for answer, _ in pairs)
        flops, has_sign = sum(flops for _, flops in pairs), pairs[0][0].claim.has_sign
        yield SettingAnswer(title, claim, "claim", verdict, over.summary.mean, seeds, flops, TEXT, has_sign)


def _of_claim(title: str, answer: Answer, flops: float, cheaper_by: str) -> SettingAnswer:
    claim, verdict = answer.claim, answer.verdict if answer.verdict in DECIDED else OPEN
    numbers = answer.estimate, answer.seeds, flops
    return SettingAnswer(title, claim.claim, "claim", verdict, *numbers, cheaper_by, claim.has_sign)


def _arms(results: Records, table: pd.DataFrame, title: str) -> Iterator[SettingAnswer]:
    baseline = results.manifest["baseline"]
    for row in table[(table.metric == results.headline) & table.difference.notna()].itertuples():
        arm, verdict = str(row.arm), str(row.verdict).partition(" ")[0].strip(",")
        answer, flops = verdict if verdict in VERDICTS else OPEN, _flops(results, [arm, baseline])
        question, difference = f"{arm} - {baseline}", float(row.difference)
        yield SettingAnswer(title, question, "arm", answer, difference, int(row.pairs), flops)


def _flops(results: Records, arms: Iterable[str]) -> float:
    """Sum the FLOPs of training over the runs of some arms; NaN where a record has none."""
    costs = [record["cost"] for (arm, _), record in results.records.items() if arm in set(arms) and record is not None]
    numbers = [(cost.get("flops_per_token"), cost.get("tokens")) for cost in costs]
    return sum(math.nan if a is None or b is None else float(a) * float(b) for a, b in numbers)


def group_by_question(all_answers: Iterable[SettingAnswer]) -> list[list[SettingAnswer]]:
    """Group the answers to each question, by compute; those without a cost are left out.

    An arm of one setting alone is no question; of a claim it tells what its answer costs.
    """
    key = attrgetter("title", "kind", "question", "cheaper_by")
    groups = []
    for _, group in groupby(sorted((answer for answer in all_answers if answer.flops > 0), key=key), key):
        *cheaper, dearest = sorted(group, key=attrgetter("flops"))
        groups.append([*(answer for answer in cheaper if answer.flops < ALIKE * dearest.flops), dearest])
    return [group for group in groups if len(group) > 1 or (group[0].kind == "claim" and group[0].answer != OPEN)]


def _questions_section(questions: list[list[SettingAnswer]]) -> Section:
    """Build the table of answers, each question with the cheapest setting from which on all answers are the same."""
    rows, title = list[list[str]](), ""
    for group in questions:
        enough = next(i for i in range(len(group)) if len({answer.answer for answer in group[i:]}) == 1)
        cells = [f"{answer.answer} {answer.difference:+z.3f} ({answer.seeds})" for answer in group]
        needed, dearest = group[enough].flops, group[-1].flops
        share = "-" if group[-1].answer == OPEN else f"{needed:z.1e} ({needed / dearest:z.0%})"
        name, title = "" if group[0].title == title else group[0].title, group[0].title
        saving = group[0].cheaper_by if len(group) > 1 else "-"
        rows.append([name, group[0].question, saving, " → ".join(cells), f"{dearest:z.1e}", share])
    answered, dearest_flops = "answers (seeds), cheapest setting first", "FLOPs of the dearest"
    columns = ["experiment", "question", "cheaper by", answered, dearest_flops, "needed"]
    notes = [
        "needed: FLOPs of the cheapest setting from which on all answers are that of the dearest one, and their share. "
        "A claim that was asked in one setting has what that took.",
        "one text of several: the dearest answer is that over all texts, with its mean. A claim without a verdict over "
        "them is left out.",
    ]
    return Section("Answers by setting", columns, rows, notes if rows else ["No question was asked at two settings."])


def summary_section(questions: list[list[SettingAnswer]]) -> Section:
    """Build the table of how often cheaper settings have answered as the dearest one does, by their compute."""
    pairs = [(cheaper, group[-1]) for group in questions for cheaper in group[:-1]]
    rows = []
    for saving, (low, high) in product((SIZE, TEXT, SHARE), pairwise(SHARES)):
        within = [(a, b) for a, b in pairs if a.cheaper_by == saving and low < a.flops / b.flops <= high]
        if not within:
            continue
        decided = [(a, b) for a, b in within if b.answer != OPEN]
        rows.append(
            [
                saving,
                f"{low:z.0%} to {high:z.0%}",
                str(len(within)),
                str(len({a.title for a, _ in within})),
                _share([(a.title, a.answer == b.answer) for a, b in decided]),
                _share([(a.title, a.answer == OPEN) for a, b in decided]),
                _share([(a.title, a.answer not in (OPEN, b.answer)) for a, b in decided]),
                _share([(a.title, a.answer != OPEN) for a, b in within if b.answer == OPEN]),
                _share([(a.title, a.difference * b.difference > 0) for a, b in decided if b.has_sign]),
            ]
        )
    columns = ["cheaper by", "compute", "answers", "experiments", "the same", OPEN, "another", "decided", "same sign"]
    notes = [
        "compute: of a cheaper setting, in that of the dearest one of its question.",
        "the same, open, another: answers of cheaper settings where the dearest one answers.",
        "same sign: as the dearest one, among answers about numbers that can have either.",
        "decided: cheaper settings that answer where the dearest one is open, often for want of seeds.",
        f"An arm and a claim about it are two answers. 95 % intervals from {FEWEST} experiments on: by drawing these "
        f"again, {DRAWS:,} times; where all answers are alike, Clopper and Pearson's, which counts an experiment once.",
    ]
    return Section("How often a cheaper setting answers as the dearest one", columns, rows, notes if rows else [])


def _share(events: list[tuple[str, bool]]) -> str:
    """Format the share of events that happened, with an interval over their experiments if there are enough."""
    if not events:
        return "-"
    by_title: dict[str, list[bool]] = {}
    for title, happened in events:
        by_title.setdefault(title, []).append(happened)
    counts = np.array([(sum(hits), len(hits)) for hits in by_title.values()])
    total, of = counts.sum(axis=0)
    if len(counts) < FEWEST:
        return f"{total}/{of}"
    if total in (0, of):  # draws would all be the same
        low, high = rate_interval(len(counts) if total else 0, len(counts))
    else:
        drawn = counts[np.random.default_rng(0).integers(len(counts), size=(DRAWS, len(counts)))].sum(axis=1)
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return f"{total}/{of} [{low:z.0%}, {high:z.0%}]"
