"""Arms compared with the baseline: paired differences, verdicts, and why one is withheld."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.comparability import mixed_provenance
from lm.analysis.rates import both_sides_at_rivals, regret_bounds, sides_at_rivals, without_best_rate
from lm.analysis.results import Records, paired, quantities, value
from lm.analysis.texts import generalises, items_p, texts_by_quantity
from lm.analysis.tidy import status_of
from lm.analysis.verdict_text import format_verdict
from lm.stats.sequential import left_after
from lm.stats.tests import ALPHA, rate_interval
from lm.stats.two_way import TwoWay, cover_texts, detectable_floor, detectable_on_texts, set_p_over_texts
from lm.stats.verdicts import (
    Comparison,
    Verdict,
    confirm,
    confirm_in_stages,
    cover_choice,
    explore,
    hold_too,
    measure,
    plain,
)
from lm.store.metrics import describe, is_of_task
from lm.store.record import Record

LOST = ("diverged", "failed", "damaged")  # statuses of cells that enter no mean

# texts of the health column for an arm without faults: with finished runs, with lost ones only, with none
HEALTHY, NONE_ENDED, NO_RUN = "healthy", "no run ended well", "no run yet"

WITHHELD = ("p", "p_both", "p_adjusted", "q", "level", "p_equivalent")  # columns that are blank with the verdict
NOT_COMPARABLE = "not comparable"  # beginning of the text in place of a withheld verdict


def _differences(results: Records, arm: str, quantity: str, looks: Sequence[int]) -> list[float]:
    """Return paired differences in the order of the seeds; in stages, those before a missing cell, up to a look."""
    if not looks:
        return [x - y for x, y in paired(results, arm, quantity)]
    pairs = [(results.records[arm, seed], results.records[results.arms[0], seed]) for seed in results.manifest["seeds"]]
    trained = [(x, y) for x, y in itertools.takewhile(all, pairs) if x and y]
    differences = [value(x, quantity) - value(y, quantity) for x, y in trained]
    finite = [difference for difference in differences if math.isfinite(difference)]
    return finite[: max((look for look in looks if look <= len(finite)), default=len(finite))]


def compare(results: Records) -> pd.DataFrame:
    """Build the table of comparisons: a row for each arm and quantity.

    Lost cells are counted and enter no mean. The judged quantities of all confirmatory arms are tested together, and
    those of the exploratory ones; others have no verdict. It is withheld where `reason_not_comparable` has a reason.
    """
    rows: list[dict[str, Any]] = []
    base, seeds, margins = results.arms[0], len(results.manifest["seeds"]), results.manifest.get("margin", {})
    noises = _noises(results)
    judged = _judged_at_rivals(results, _judged(results, noises))
    health = {arm: health_text(results, arm) for arm in results.arms}
    for quantity in quantities(results):
        for arm in results.arms:
            comparison = Comparison([], verdict=Verdict("baseline"))
            if arm != base:
                comparison = judged.get((arm, quantity)) or plain([x - y for x, y in paired(results, arm, quantity)])
            row = {
                "arm": arm,
                "metric": quantity,
                "family": results.family(arm),
                **counted([value(record, quantity) for record in results.of(arm)], _statuses(results, arm), seeds),
                "margin": float(margins.get(quantity, math.nan)),
                **columns_of(comparison),
            }
            reason = reason_not_comparable(results, arm, quantity)
            if reason:
                row |= {**dict.fromkeys(WITHHELD, math.nan), "significant": False}
            row["verdict"] = reason or format_verdict(comparison.verdict)
            if (arm, quantity) in judged:
                if not reason and row["pairs"] != seeds:
                    on = f"on {row['pairs']} of {seeds} seeds" if row["pairs"] else ""
                    row["verdict"] += lost_runs_suffix(results, arm, on)
                row["verdict"] += _caveats(results, arm)
            whole = len(_statuses(results, arm)) == len(_statuses(results, base)) == seeds  # else more are to come
            row |= {"health": health[arm], "bold": row["significant"] and health[arm] == health[base] == HEALTHY}
            row["bold"] = row["bold"] and whole
            if (noise := noises.get((arm, quantity))) is not None:
                row |= {"se_seeds": noise.seeds, "se_text": noise.text, "se_both": noise.both}
                row["detectable_floor"] = comparison.detectable_floor
            if arm != base and is_of_task(quantity):
                row["p_items"] = math.nan if reason else items_p(results, arm, quantity)
            rows.append(row)
    return pd.DataFrame(rows)


def noise_of_arms(results: Records) -> dict[str, TwoWay]:
    """Return the noise over text of each arm in the headline, where its intervals are to cover text and it is known."""
    of_headline = texts_by_quantity(results).get(results.headline) if generalises(results) else None
    return {} if of_headline is None else dict(of_headline.noise)


def health_text(results: Records, arm: str) -> str:
    """Return the health column of an arm; an arm without a finished run has no health."""
    if any(record["status"] == "ok" for record in results.of(arm)):
        return results.health[arm] or HEALTHY
    return NONE_ENDED if _statuses(results, arm) else NO_RUN


def _statuses(results: Records, arm: str) -> list[str]:
    statuses = (status_of(results, arm, seed) for seed in results.manifest["seeds"])
    return [status for status in statuses if status != "missing"]


def _caveats(results: Records, arm: str) -> str:
    """Format the training problems of an arm and the baseline, and provenance that is mixed, to follow a verdict."""
    sides = ((arm, arm), (results.arms[0], "baseline"))
    ill = [f"{name} unhealthy: {results.health[side]}" for side, name in sides if results.health[side]]
    mixed = dict.fromkeys(
        name for records in zip(*results.pairs(arm).values(), strict=True) for name in mixed_provenance(records)
    )
    text = f" ({'; '.join(ill)})" if ill else ""
    return f"{text} (cells differ among themselves in {', '.join(mixed)})" if mixed else text


def _noises(results: Records) -> dict[tuple[str, str], TwoWay]:
    """Return the noise over text of each arm and quantity where it is known."""
    texts = texts_by_quantity(results).items()
    return {(arm, quantity): noise for quantity, of_arms in texts for arm, noise in of_arms.noise.items()}


def _judged_at_rivals(results: Records, judged: dict[tuple[str, str], Comparison]) -> dict[tuple[str, str], Comparison]:
    """Hold what is `judged` at all learning rates that may be as good as those of arms and baseline.

    Rates are chosen by the headline: an arm's can only lower its loss, the baseline's that of the baseline. Of other
    quantities neither is known, so that both sides are tried together too.
    """
    weights = {arm: {arm: 1.0, results.arms[0]: -1.0} for arm, quantity in judged if quantity == results.headline}
    at_rivals, lower_is_better = sides_at_rivals(results), describe(results.headline).better != "higher"
    for others, lower in zip(at_rivals, (lower_is_better, not lower_is_better), strict=True):
        for other in others:
            comparisons = _judged(other, _noises(other))
            for arm in weights:
                hold_too(judged[arm, results.headline], comparisons[arm, results.headline], lower)
    beside = {key: comparison for key, comparison in judged.items() if key[1] != results.headline}
    for other in both_sides_at_rivals(results) if beside else ():
        comparisons = _judged(other, _noises(other))
        for key, comparison in beside.items():
            for lower in (True, False):
                hold_too(comparison, comparisons[key], lower)
    for arm, of_arm in weights.items():
        cover_choice(judged[arm, results.headline], *regret_bounds(results, of_arm, results.rivals))
    return judged


def _judged(results: Records, noises: Mapping[tuple[str, str], TwoWay]) -> dict[tuple[str, str], Comparison]:
    """Compare each arm with the baseline in each judged quantity, tested within its family."""
    adaptive, margins = results.manifest.get("adaptive"), results.manifest.get("margin", {})
    confirmatory, exploratory = (
        {
            (arm, quantity): measure(
                _differences(results, arm, quantity, looks),
                describe(quantity).better,
                float(margins.get(quantity, math.nan)),
            )
            for quantity in results.judged
            for arm in arms
        }
        for arms, looks in ((results.confirmatory, adaptive["looks"] if adaptive else ()), (results.exploratory, ()))
    )
    judged, look = confirmatory | exploratory, results.first_look()
    noise_of = {key: noises[key] for key in judged if key in noises and generalises(results)}
    for key, noise in noise_of.items():
        set_p_over_texts(judged[key], noise)
    if adaptive and not look.pairs:
        confirm_in_stages(list(confirmatory.values()), adaptive)
    else:
        confirm(list(confirmatory.values()), look.pairs, look.comparisons)
    explore(list(exploratory.values()), look.pairs)
    for key, noise in noise_of.items():
        alpha = left_after(*look) / len(confirmatory) if key in confirmatory else ALPHA
        cover_texts(judged[key], noise, alpha)
        if not math.isnan(judged[key].detectable):
            judged[key].detectable = detectable_on_texts(len(judged[key].differences), noise, alpha)
            judged[key].detectable_floor = detectable_floor(noise, alpha)
    return judged


# fields of a comparison that are not written as columns of table.csv
HIDDEN_FIELDS = (
    *("differences", "better", "margin", "arm_values", "base_values"),
    *("detectable_floor", "p_equivalent_both"),
)


def columns_of(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as columns of the table."""
    names = [field.name for field in fields(comparison) if field.name not in HIDDEN_FIELDS]
    columns = {name: getattr(comparison, name) for name in names}
    return {"pairs": len(comparison.differences), "difference": comparison.mean, **columns}


def counted(values: Sequence[float], statuses: Sequence[str], seeds: int) -> dict[str, Any]:
    """Summarise the runs of an arm as columns: counts by status, those missing of `seeds`, mean and spread."""
    finite = [v for v in values if math.isfinite(v)]
    lost_counts = {kind: statuses.count(kind) for kind in LOST}
    ended = len(statuses) - lost_counts["damaged"]
    bad = lost_counts["diverged"] + lost_counts["failed"]
    low, high = rate_interval(bad, ended)
    return {
        "n": len(finite),
        **lost_counts,
        "missing": seeds - len(statuses),
        "lost_rate": bad / ended if ended else math.nan,
        "lost_low": low,
        "lost_high": high,
        "mean": float(np.mean(finite)) if finite else math.nan,
        "sd": float(np.std(finite, ddof=1)) if len(finite) > 1 else math.nan,
    }


def reason_not_comparable(results: Records, arm: str, quantity: str) -> str:
    """Explain why no verdict may be given on an arm; empty where one may."""
    if arm == results.manifest["baseline"]:
        return ""
    if unknown := without_best_rate(results, (arm, results.manifest["baseline"])):
        return f"{NOT_COMPARABLE}: {unknown}"
    sides = list(zip(*results.pairs(arm).values(), strict=True))
    tokenizers = [{record["data"]["tokenizer"] for record in side} for side in sides]
    if tokenizers and tokenizers[0] != tokenizers[1] and describe(quantity).per_token:
        return f"{NOT_COMPARABLE}: tokenizers differ"
    if is_of_task(quantity):
        task = quantity.partition("@")[2]
        hashes = [{_task_hash(record, task) for record in side} for side in sides]
        if len(set().union(*hashes)) > 1:
            return f"{NOT_COMPARABLE}: items of {task} differ"
    changed = results.manifest["arms"][arm]["changes"]
    other = [name for name in results.confounded[arm] if f"trainer.{name}" not in changed]
    return f"{NOT_COMPARABLE}: {', '.join(other)} differ{'s' * (len(other) == 1)} on every seed" if other else ""


def _task_hash(record: Record, task: str) -> object:
    """Return the hash of what was computed of a task; None where it was not measured."""
    return record["evaluations"].get("tasks", {}).get(task, {}).get("sha256")


def lost_runs_suffix(results: Records, arm: str, on: str = "") -> str:
    """Format the lost cells of an arm and of the baseline, to follow a verdict; empty without any."""
    return format_lost_runs(on, *(_statuses(results, side) for side in (arm, results.manifest["baseline"])))


def format_lost_runs(on: str, arm_statuses: Sequence[str], base_statuses: Sequence[str]) -> str:
    """Format the seeds a verdict rests on and the lost runs of both sides, to follow the verdict."""
    parts = [on] if on else []
    for statuses, name in ((arm_statuses, ""), (base_statuses, "baseline: ")):
        counts = [f"{statuses.count(kind)} {kind}" for kind in LOST if kind in statuses]
        parts += [name + ", ".join(counts)] if counts else []
    return f" ({'; '.join(parts)})" if parts else ""
