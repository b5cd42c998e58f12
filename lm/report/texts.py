"""Notes on the two kinds of noise: which of them a difference has more of, and which its interval covers."""

from collections.abc import Iterator

from lm.analysis.results import HEADLINE, Results
from lm.analysis.texts import Texts, generalises, plural, texts
from lm.report.tables import number
from lm.stats.two_way import TwoWay
from lm.store.quantities import describe


def text_notes(results: Results) -> Iterator[str]:
    """A line on what the headline's interval covers, and one on the noise where it is known."""
    if len(results.arms) < 2:
        return
    found = texts(results)
    yield _covers(results, found)
    if found.noise:
        label = describe(HEADLINE).label
        parts = [f"{arm} {_errors(noise, found.kind)}" for arm, noise in found.noise.items()]
        yield f"Standard errors of the differences in {label}: {'; '.join(parts)}."


def _covers(results: Results, found: Texts) -> str:
    if results.manifest.get("adaptive"):
        return "Intervals cover other seeds, not other text: stages are tested over seeds alone."
    if not generalises(results):
        return "Intervals cover other seeds, not other text, as the experiment asks (generalise: seeds)."
    if HEADLINE not in results.judged:
        return f"Intervals cover other seeds, not other text: that is known of {describe(HEADLINE).label} alone."
    without = [arm for arm in results.arms[1:] if arm in found.lacking]
    if len(without) == len(results.arms) - 1 and len(set(found.lacking.values())) == 1:
        return f"Intervals cover other seeds, not other text: {found.lacking[without[0]]}."
    only = "".join(f" Not of {arm}: {found.lacking[arm]}." for arm in without)
    others = [describe(name).label for name in results.judged if name != HEADLINE]
    beside = f" Those of {', '.join(others)} cover other seeds alone." if others else ""
    return (
        f"The seeds-and-text interval of {describe(HEADLINE).label} covers other seeds and other text of this kind. It "
        f"holds the interval of the test over seeds, and Student's over seeds and {plural(found.kind)} as crossed "
        f"random effects: a difference is claimed where both leave out zero.{only}{beside}"
    )


def _errors(noise: TwoWay, kind: str) -> str:
    digits = describe(HEADLINE).digits + 1
    larger = "seeds dominate" if noise.seeds >= noise.text else "text dominates"
    seeds, text, both = (number(one, digits) for one in (noise.seeds, noise.text, noise.both))
    return f"{seeds} over seeds, {text} over {noise.documents:,} {plural(kind)}, {both} over both ({larger})"
