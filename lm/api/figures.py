"""The figures of reports as Matplotlib figures."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lm.api.results import Ladder, Results
from lm.config.tree import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[], "Figure | None"]
"""Function that draws a figure, or returns None where there is nothing to draw."""


def figure(results: Results | Ladder, name: str) -> "Figure":
    """Draw one figure of a report.

    Args:
        results: results of an experiment or of a ladder.
        name: name of the figure, such as `learning_curve` or `reliability`; a ladder has one, `ladder`.

    Raises:
        ValueError: if there is no such figure, or no run has data for it.

    >>> import lm
    >>> results = lm.load("results/reference/quickstart")
    >>> [axes.get_ylabel() for axes in lm.figure(results, "learning_curve").axes]
    ['validation NLL (nats/token)']
    >>> lm.figure(results, "learning_curv")
    Traceback (most recent call last):
    ...
    ValueError: no figure 'learning_curv'. Did you mean learning_curve? Choose from ...
    """
    import seaborn as sns

    figures, more = _figures(results)
    if name not in figures:
        raise ValueError(f"no figure {name!r}.{nearest(name, list(figures))} Choose from {', '.join(figures)}{more}")
    with sns.axes_style("whitegrid"):
        drawn = figures[name]()
    if drawn is None:
        raise ValueError(f"{name}: no run of {results.name} left anything to draw it from")
    return drawn


def _figures(results: Results | Ladder) -> tuple[dict[str, Draw], str]:
    """Return functions that draw each figure, by name, and a hint on where other figures are."""
    if isinstance(results, Ladder):
        from lm.report.ladder_figure import NAME
        from lm.report.ladder_figure import figure as of_ladder

        more = f"; a rung has others, as in lm.figure(results.rungs[{next(iter(results.rungs))!r}], 'learning_curve')"
        return {NAME: partial(of_ladder, results.records)}, more
    from lm.report import rates, tuning
    from lm.report.figures import FIGURES

    folder = results.folder if results.folder.is_dir() else results.records.store.out / results.name  # of a pack
    by_name: dict[str, Draw] = {name: partial(make, results.records) for name, make in FIGURES.items()}
    if (tuned := tuning.tuning_of(results.records, folder)) is not None:
        by_name[tuning.FIGURE] = partial(tuning.tuning_figure, results.records, tuned[2])
    if (curves := rates.rates_of(results.records, folder)) is not None:
        by_name[rates.FIGURE] = partial(rates.rates_figure, results.records, curves)
    return by_name, ""
