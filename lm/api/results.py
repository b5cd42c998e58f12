"""Results of experiments and of ladders as tables and figures."""

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lm.analysis import tidy
from lm.analysis.compare import compare
from lm.analysis.results import Records, paired
from lm.analysis.results import load as load_records
from lm.analysis.verdict_text import display_verdict
from lm.config.tree import nearest
from lm.report.pack import open_results
from lm.report.paper_table import paper_table
from lm.report.render import Section, html_section, latex, markdown_table
from lm.report.tables import main_table, ranked
from lm.report.web.elements import joined, tag
from lm.stats.power import pairs_needed
from lm.stats.tests import ALPHA
from lm.store.archive import LADDER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lm.analysis.ladder import LadderResults
    from lm.report.base import Report

MOST_ROWS = 20  # that `repr` shows


class _Shown:
    """Results that show themselves as a short table, in a notebook too."""

    records: Any

    def _section(self) -> Section:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of the experiment or ladder."""
        return str(self.records.manifest["name"])

    def __repr__(self) -> str:
        section = self._section()
        rows = section.rows
        table = pd.DataFrame(rows[:MOST_ROWS], columns=list(section.columns)).to_string(index=False)
        more = f"\n... and {len(rows) - MOST_ROWS} more rows" if len(rows) > MOST_ROWS else ""
        return f"{section.title}\n{table}{more}"

    def _repr_html_(self) -> str:
        return joined(tag("p", tag("strong", self._section().title)), html_section(self._section()))


@dataclass(frozen=True, repr=False, eq=False)
class Results(_Shown):
    """Results of an experiment; `repr` shows a short table.

    Args:
        folder: folder of the experiment, or the pack that it was read from.
        records: data behind the tables: manifest, records, paths of curves.
        owner: ladder of a rung, whose unpacked pack lasts as long as it does.
    """

    folder: Path
    records: Records
    owner: "Ladder | None" = None

    @property
    def arms(self) -> list[str]:
        """The arms, the baseline first."""
        return self.records.arms

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """A row for each arm, seed and quantity.

        Columns: `experiment`, `arm`, `seed`, `cell` (the id), `status`, `metric`, `label`, `unit`, `better` and
        `value`, which is NaN where the cell measured nothing.
        """
        return tidy.cells(self.records)

    @functools.cached_property
    def comparisons(self) -> pd.DataFrame:
        """A row for each quantity and arm, as in table.csv.

        Columns: `n`, `mean`, `sd`, the paired `difference` to the baseline with `low` and `high`, `p`, `verdict`,
        `health`, and `bold`: a test found a difference of healthy arms.
        """
        return compare(self.records)

    @functools.cached_property
    def curves(self) -> pd.DataFrame:
        """A row for each arm, seed and step.

        Columns: `experiment`, `arm`, `seed`, `step`, `train_loss`, `validation_nll` and whatever else was logged,
        losses in nats per token; NaN where a step measured less.
        """
        return tidy.curves(self.records)

    @property
    def table(self) -> pd.DataFrame:
        """The comparison in the headline quantity, a row an arm, the best first.

        Columns: `arm`, `n`, `mean`, `sd`, `difference` with `low` and `high`, `verdict` as a reader sees it, `health`.
        """
        order = [row.Index for row in ranked(self.comparisons, self.records.headline)]
        columns = ["arm", "n", "mean", "sd", "difference", "low", "high", "verdict", "health"]
        table = self.comparisons.loc[order, columns].reset_index(drop=True)
        return table.assign(verdict=[display_verdict(text, self.records.headline) for text in table.verdict])

    def seeds_for(self, difference: float) -> "pd.Series[float]":
        """Return by arm how many seeds find a difference of this size in the headline with a power of 80 %.

        From the spread of the paired differences at hand, by the sign-flip test at its share of 5 %; infinite above
        128. The noise of the text, which more seeds do not lower, is left out.
        """
        records = self.records
        judged = records.manifest["confirmatory"] or records.arms[1:]
        alpha, needed = ALPHA / (len(judged) * len(records.judged)), dict[str, float]()
        for arm in records.arms[1:]:
            differences = [x - y for x, y in paired(records, arm, records.headline)]
            spread = float(np.std(differences, ddof=1)) if len(differences) > 1 else math.nan
            needed[arm] = pairs_needed(difference, spread, len(differences), alpha)
        return pd.Series(needed, dtype=float, name="seeds")

    def to_markdown(self) -> str:
        """Format the five columns of the first table in Markdown."""
        return "\n".join(markdown_table(self._section().columns, self._section().rows))

    def to_latex(self, columns: Sequence[str] | None = None) -> str:
        """Format the table of a paper, as `lm report --format latex` writes it; `columns` names its quantities."""
        return latex([paper_table(self.records, self.comparisons, columns)])

    def plot(self, name: str = "differences") -> "Figure":
        """Draw one figure of the report, as `lm.figure` does."""
        return figure(self, name)

    def _section(self) -> Section:
        return main_table(self.records, self.comparisons)


@dataclass(frozen=True, repr=False, eq=False)
class Ladder(_Shown):
    """Results of a ladder, an experiment at several sizes; `repr` shows a short table.

    Args:
        folder: folder of the ladder, or the pack that it was read from.
        records: data behind the tables: manifest, results of the rungs, scaling laws.
    """

    folder: Path
    records: "LadderResults"

    @property
    def arms(self) -> list[str]:
        """The arms, the baseline first."""
        return self.records.names

    @functools.cached_property
    def rungs(self) -> dict[str, Results]:
        """The results of each rung by name, from the least compute to the most."""
        pairs = zip(self.records.manifest["rungs"], self.records.rungs, strict=True)
        folder = self.folder if self.folder.is_file() else None
        return {
            rung["name"]: Results(folder or self.folder.parent / rung["experiment"], records, self)
            for rung, records in pairs
        }

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """The cells of all rungs; the first column, `rung`, names the rung."""
        return self._of_rungs("cells")

    @functools.cached_property
    def comparisons(self) -> pd.DataFrame:
        """The comparisons of all rungs; the first column, `rung`, names the rung."""
        return self._of_rungs("comparisons")

    @functools.cached_property
    def curves(self) -> pd.DataFrame:
        """The curves of all rungs; the first column, `rung`, names the rung."""
        return self._of_rungs("curves")

    @functools.cached_property
    def worth(self) -> pd.DataFrame:
        """A row for each rung and arm, as in the ladder's table.csv.

        Columns: `compute` in training FLOPs of a run, `n`, `mean` and `sd` of the headline, and of all but the
        baseline `difference` and compute-equivalent `gain`, a factor, with their intervals, and `verdict`. If sizes are
        trained at several lengths, also `tokens_per_parameter`, `gain_compute`, `gain_data` and `gain_parameters`.
        """
        from lm.report.ladder import worth_table

        return worth_table(self.records)

    @functools.cached_property
    def trends(self) -> pd.DataFrame:
        """A row for each arm and for difference and gain, as in trends.csv.

        Columns: the `slope` per decade of compute with its interval, of gains that of the natural logarithm, and what
        it `says`.
        """
        from lm.report.ladder import trend_table

        return trend_table(self.records)

    def plot(self, name: str = "ladder") -> "Figure":
        """Draw the figure of the ladder, as `lm.figure` does."""
        return figure(self, name)

    def _section(self) -> Section:
        from lm.report.ladder import worth_section

        return replace(worth_section(self.records), title=self.records.manifest["title"], notes=())

    def _of_rungs(self, table: str) -> pd.DataFrame:
        frames = [getattr(rung, table).assign(rung=name) for name, rung in self.rungs.items()]
        joined = pd.concat([frame for frame in frames if not frame.empty] or frames[:1], ignore_index=True)
        return joined[["rung", *joined.columns.drop("rung")]]


def load(folder: str | Path, *, out: str | Path = "results") -> Results | Ladder:
    """Load the results of an experiment or of a ladder.

    Args:
        folder: folder that `lm ablate` made, the pack that `lm pack` made of it, or its name.
        out: folder of results, where `folder` is a name.

    Raises:
        InputError: if there is no experiment that this version can read.

    >>> import lm
    >>> results = lm.load("results/reference/quickstart")
    >>> results.arms
    ['gelu', 'swiglu']
    >>> results.table[["arm", "mean", "difference", "low", "high", "verdict"]].round(4).to_dict("records")[0]
    {'arm': 'swiglu', 'mean': 1.6934, 'difference': -0.039, 'low': -0.0568, 'high': -0.0173, 'verdict': 'better'}
    >>> results.cells.query("metric == 'nll'").groupby("arm").value.mean().round(4).to_dict()
    {'gelu': 1.7323, 'swiglu': 1.6934}
    """
    path = Path(folder)
    if len(path.parts) == 1 and not os.path.lexists(path):
        path = Path(out) / path
    with contextlib.ExitStack() as stack:
        location = stack.enter_context(open_results(path))
        results: Results | Ladder
        if os.path.isfile(location.folder / LADDER):
            from lm.analysis.ladder import load_ladder

            results = Ladder(location.pack or location.folder, load_ladder(location.folder))
        else:
            results = Results(location.pack or location.folder, load_records(location.folder))
        if location.pack is not None:  # its curves are read lazily
            weakref.finalize(results, stack.pop_all().close)
    return results


def figure(results: Results | Ladder | str | Path, name: str) -> "Figure":
    """Draw one figure of a report.

    Args:
        results: results of an experiment or of a ladder, or what `lm.load` takes for them.
        name: name of the figure, such as `learning_curve` or `reliability`; a ladder has one, `ladder`.

    Raises:
        InputError: if there is no experiment that this version can read.
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
    import matplotlib

    from lm.report.figures.picture import GRID_STYLE, draw

    results = load(results) if isinstance(results, str | Path) else results
    figures, more = _report(results).figures(), ""
    if name not in figures:
        if isinstance(results, Ladder):
            rung = next(iter(results.rungs))
            more = f"; a rung has others, as in lm.figure(results.rungs[{rung!r}], 'learning_curve')"
        raise ValueError(f"no figure {name!r}.{nearest(name, list(figures))} Choose from {', '.join(figures)}{more}")
    with matplotlib.rc_context(GRID_STYLE):
        chart = figures[name]()
        if chart is None:
            raise ValueError(f"{name}: no run of {results.name} left anything to draw it from")
        return draw(chart)


def _report(results: Results | Ladder) -> "Report":
    """Return the report of results, without its claims."""
    if isinstance(results, Ladder):
        from lm.report.ladder import LadderReport

        return LadderReport(results.records)
    from lm.report.experiment import ExperimentReport
    from lm.report.tuning import rates_of, tuning_of

    records = results.records
    folder = results.folder if results.folder.is_dir() else records.store.out / results.name  # of a pack
    tuning, rates = tuning_of(records, folder), rates_of(records, folder)
    return ExperimentReport(records, results.comparisons, [], tuning, rates)
