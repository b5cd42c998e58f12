"""Notes on noise over seeds and over text, which of them an interval covers, and the effect of averaging."""

from collections.abc import Iterator

import numpy as np

from lm.analysis.averages import last_validations
from lm.analysis.results import HEADLINE, Results
from lm.analysis.texts import LOSS_OF, Texts, generalises, plural, texts_by_quantity
from lm.report.tables import number
from lm.stats.two_way import TwoWay
from lm.store.metrics import describe, parse_average
from lm.store.record import Record


def text_notes(results: Results) -> Iterator[str]:
    """Yield a note on what the intervals cover, and one on the noise of each judged quantity."""
    if len(results.arms) < 2:
        return
    texts_of = texts_by_quantity(results)
    yield from _covers(results, texts_of)
    for name, texts in texts_of.items():
        if texts.noise and name in (HEADLINE, *results.judged):
            parts = [f"{arm} {_errors(noise, texts.kind, name)}" for arm, noise in texts.noise.items()]
            yield f"Standard errors of the differences in {describe(name).label}: {'; '.join(parts)}."


def average_notes(results: Results) -> Iterator[str]:
    """Yield a note for each judged mean over validations on how averaging changed the noise."""
    for name in results.judged:
        if (mean := parse_average(name)) is None:
            continue
        quantity, count = mean
        digits, parts = describe(name).digits + 1, []
        for arm in results.arms[1:]:
            pairs = [[_last(results, side, quantity, count) for side in pair] for pair in results.pairs(arm).values()]
            sides = np.array([pair for pair in pairs if all(pair)])  # seed, arm and baseline, validation
            if len(sides) > 1:
                differences = sides[:, 0] - sides[:, 1]
                last, averages = (float(side.std(ddof=1)) for side in (differences[:, -1], differences.mean(axis=1)))
                parts.append(f"{arm} {number(averages, digits)} instead of {number(last, digits)}")
        if parts:
            yield (
                f"Standard deviation over seeds of the differences in {describe(name).label}, instead of that in the "
                f"last validation alone: {'; '.join(parts)}. Validations in training measure both."
            )


def _last(results: Results, record: Record, quantity: str, count: int) -> list[float]:
    return last_validations(results.store.history(record["id"]), quantity, count)


def _covers(results: Results, texts_by_quantity: dict[str, Texts]) -> Iterator[str]:
    if results.manifest.get("adaptive"):
        yield (
            "Intervals cover other seeds, not other text: stages are tested over seeds alone, which also decide when "
            "to stop."
        )
        return
    if not generalises(results):
        yield "Intervals cover other seeds, not other text, as the experiment asks (generalise: seeds)."
        return
    judged = [name for name in results.judged if name in LOSS_OF]
    if not judged:
        *first, last = (describe(name).label for name in LOSS_OF)
        yield f"Intervals cover other seeds, not other text: that is known of {', '.join(first)} and {last} alone."
    others = [describe(name).label for name in results.judged if name not in LOSS_OF] if judged else []
    for name in judged:
        yield _covered(results, name, texts_by_quantity.get(name, Texts({}, "document", {})))
    if others:
        yield f"The intervals of {', '.join(others)} cover other seeds alone."


def _covered(results: Results, name: str, texts: Texts) -> str:
    """Describe what the interval of a quantity with losses by document covers."""
    of = f" of {describe(name).label}" if len(results.judged) > 1 else ""
    without = [arm for arm in results.arms[1:] if arm in texts.lacking]
    if not texts.noise and len(set(texts.lacking.values())) <= 1:
        reason = next(iter(texts.lacking.values()), "it was not measured")
        return f"Intervals{of} cover other seeds, not other text: {reason}."
    only = "".join(f" Not of {arm}: {texts.lacking[arm]}." for arm in without)
    return (
        f"The seeds-and-text interval of {describe(name).label} covers other seeds and other text of this kind. It "
        f"holds the interval of the test over seeds, and Student's over seeds and {plural(texts.kind)} as crossed "
        f"random effects: a difference is claimed where both leave out zero.{only}"
    )


def _errors(noise: TwoWay, kind: str, name: str) -> str:
    digits = describe(name).digits + 1
    larger = "seeds dominate" if noise.seeds >= noise.text else "text dominates"
    seeds, text, both = (number(error, digits) for error in (noise.seeds, noise.text, noise.both))
    return f"{seeds} over seeds, {text} over {noise.documents:,} {plural(kind)}, {both} over both ({larger})"
