"""The figures of reports as Matplotlib figures."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lm.api.results import Ladder, Results
from lm.config.tree import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lm.report.figures.chart import Chart

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
    from lm.report.figures.picture import draw

    if isinstance(results, Ladder):
        from lm.report.figures.static_pages import NAME, ladder_chart

        more = f"; a rung has others, as in lm.figure(results.rungs[{next(iter(results.rungs))!r}], 'learning_curve')"
        return {NAME: lambda: draw(ladder_chart(results.records))}, more
    from lm.report.figures.catalogue import FigureInputs, figures
    from lm.report.rates import rates_of
    from lm.report.tuning import tuning_of

    folder = results.folder if results.folder.is_dir() else results.records.store.out / results.name  # of a pack
    tuning = tuning_of(results.records, folder)
    inputs = FigureInputs(results.records, studies=tuning[2] if tuning else {}, rates=rates_of(results.records, folder))

    def draw_if_data(make: "Callable[[FigureInputs], Chart | None]") -> "Figure | None":
        chart = make(inputs)
        return None if chart is None else draw(chart)

    return {name: partial(draw_if_data, figure.make) for name, figure in figures().items()}, ""
