"""What notebooks and programs use, `import lm`: results as tables and figures, runs, trained models, ablations.

All names are at hand as `lm.load` and so on. What cannot be used raises `lm.InputError`, whose message is the one line
that the command of the same name would print. Reading results imports no torch. While a call lasts, a user's own
components are found in the current folder and beside the files that it reads; then `sys.path` is what it was.
"""

import contextlib
import functools
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from lm.analysis.compare import compare
from lm.analysis.results import Results as Records
from lm.analysis.results import load as load_records
from lm.analysis.tidy import cells, curves
from lm.config.imported import own_modules
from lm.config.reading import config_of
from lm.config.tree import InputError as InputError
from lm.config.tree import nearest, override
from lm.execution.machine import require_manner
from lm.store.record import Record
from lm.training.loggers import asked_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer
    from torch import nn

MOST_ROWS = 20
"""Arms that the table of a `repr` shows."""


# results -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class Results:
    """An experiment's results; shown, they are a short table.

    Args:
        folder: of the experiment, or the pack that it was read from.
        records: everything behind the tables: manifest, records, where curves lie.
    """

    folder: Path
    records: Records

    @property
    def name(self) -> str:
        """Of the experiment."""
        return self.records.manifest["name"]

    @property
    def arms(self) -> list[str]:
        """The arms, the baseline first."""
        return self.records.arms

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """A row for each arm, seed and quantity: `experiment`, `arm`, `seed`, `cell` (the id), `status`, `metric`,
        `label`, `unit`, `better` and `value`, which is NaN where the cell measured nothing."""
        return cells(self.records)

    @functools.cached_property
    def comparisons(self) -> pd.DataFrame:
        """A row for each quantity and arm, as in table.csv: `n`, `mean`, `sd`, the paired `difference` to the baseline
        with `low` and `high`, `p`, `verdict`, `health`, and `bold`: a test found a difference of healthy arms."""
        return compare(self.records)

    @functools.cached_property
    def curves(self) -> pd.DataFrame:
        """A row for each arm, seed and step: `experiment`, `arm`, `seed`, `step`, `train_loss`, `validation_nll` and
        whatever else was logged, losses in nats per token; NaN where a step measured less."""
        return curves(self.records)

    def __repr__(self) -> str:
        from lm.report.tables import summary

        columns, rows, _ = summary(self.records, self.comparisons)
        table = pd.DataFrame(rows[:MOST_ROWS], columns=columns)[columns[:6]].to_string(index=False)
        more = f"\n... and {len(rows) - MOST_ROWS} more arms" if len(rows) > MOST_ROWS else ""
        return f"{self.records.manifest['title']}\n{table}{more}"


def load(folder: str | Path) -> Results:
    """The results of an experiment.

    Args:
        folder: that `lm ablate` made, or the pack that `lm pack` made of it.

    Raises:
        InputError: where there is no experiment, or one that this version cannot read.

    >>> import lm
    >>> results = lm.load("results/reference/quickstart")
    >>> results.arms
    ['post_norm', 'pre_norm']
    >>> nll = results.comparisons.query("metric == 'nll' and arm == 'pre_norm'")
    >>> nll[["n", "mean", "difference", "low", "high", "verdict"]].round(4).to_dict("records")
    [{'n': 6, 'mean': 1.733, 'difference': 0.0538, 'low': 0.025, 'high': 0.0848, 'verdict': 'worse'}]
    >>> results.cells.query("metric == 'nll'").groupby("arm").value.mean().round(4).to_dict()
    {'post_norm': 1.6792, 'pre_norm': 1.733}
    """
    from lm.report.pack import opened

    with contextlib.ExitStack() as stack:
        place = stack.enter_context(opened(Path(folder)))
        results = Results(place.pack or place.folder, load_records(place.folder))
        if place.pack is not None:  # its curves are read when they are asked for
            weakref.finalize(results, stack.pop_all().close)
    return results


def figure(results: Results, name: str) -> "Figure":
    """One of the figures of a report.

    Args:
        results: of an experiment.
        name: of the figure, such as `learning_curve` or `reliability`.

    Raises:
        ValueError: for a name that there is not, or where no run left anything to draw it from.

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

    from lm.report.figures import FIGURES

    if name not in FIGURES:
        raise ValueError(f"no figure {name!r}.{nearest(name, list(FIGURES))} Choose from {', '.join(FIGURES)}")
    with sns.axes_style("whitegrid"):
        found = FIGURES[name](results.records)
    if found is None:
        raise ValueError(f"{name}: no run of {results.name} left anything to draw it from")
    return found


# runs ----------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A run that ended: its record, and the folder with that, its configuration, curve and weights."""

    record: Record
    folder: Path


class Trained(NamedTuple):
    """A trained model, in eval mode on the CPU, and the tokenizer of the text that it learnt from."""

    model: "nn.Module"
    tokenizer: "Tokenizer"


@own_modules()
def fit(
    config: str | Path | Mapping[str, Any],
    *,
    out: str | Path = "results",
    checkpoint_seconds: float = 20.0,
    progress: bool = True,
    loggers: str | Sequence[str] = (),
    **changes: Any,
) -> Run:
    """Trains one configuration in this process, as `lm fit` does; one that is trained already is found.

    A run that failed or diverged is returned too: see `record["status"]` and `record["error"]`.

    Args:
        config: a YAML file, the name of a shipped one such as `char_tiny`, or a mapping with what a file holds.
        out: folder of cells and reports.
        checkpoint_seconds: between checkpoints.
        progress: whether standard error is told what `auto` came to, and a line a second how far training is.
        loggers: that are told the rows of history.csv too, such as `csv` or `["tensorboard", "mlflow"]`.
        changes: of the configuration, by dotted paths: `**{"optim.lr": 3e-4}`, or `seed=1`.

    Raises:
        InputError: for anything that would keep it from being trained.

    >>> import lm, tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     short = {"trainer.max_steps": 2, "trainer.val_check_interval": 2, "optim.schedule.warmup": 1}
    ...     run = lm.fit("char_tiny", out=out, progress=False, **short)
    ...     model, tokenizer = lm.load_model(run)
    >>> run.record["status"], run.record["steps"]
    ('ok', 2)
    >>> model.training, type(model).__name__, tokenizer.decode(tokenizer.encode("def").ids)
    (False, 'Decoder', 'def')
    >>> lm.fit("char_tiny", **{"model.position": "Rpoe"})
    Traceback (most recent call last):
    ...
    lm.config.tree.InputError: model.position: no Position called 'Rpoe'. Did you mean Rope? Choose from ...
    """
    place = _begin(out, checkpoint_seconds)
    tree = override(config_of(config), changes)
    from lm.execution.alone import train_alone
    from lm.store.store import Store

    folder = train_alone(tree, place, checkpoint_seconds, progress, asked_for(loggers, "loggers"))
    return Run(Store(place).record(folder.name), folder)


@own_modules()
def load_model(run: Run | str | Path, *, out: str | Path = "results") -> Trained:
    """The model that a run trained, and its tokenizer.

    Args:
        run: what `fit` returned, or what commands call one: `experiment/arm/seed`, a folder, the beginning of its id.
        out: folder of cells and reports, where `run` is a name or the beginning of an id.

    Returns:
        The model, which takes tokens (b, t) and returns logits (b, t, vocabulary), and a tokenizer whose
        `encode(text).ids` are tokens; of an encoder-decoder the model takes pairs of texts.

    Raises:
        InputError: where there is no such run, it did not end well, or its weights were not kept.
    """
    from lm.model.transformer import Model
    from lm.runs.finished import FinishedRun, find
    from lm.runs.generate import load_tokenizer

    found = FinishedRun.at(run.folder if isinstance(run, Run) else find(os.fspath(run), Path(out)))
    kind: Any = Model  # the class of all, which has no instances of its own
    return Trained(found.model(kind, "a {} is no model"), load_tokenizer(found))


@own_modules()
def ablate(
    spec: str | Path,
    *,
    out: str | Path = "results",
    seeds: int | list[int] | None = None,
    tier: str = "",
    workers: int | None = None,
    retry_failed: bool = False,
    underpowered: bool = False,
    checkpoint_seconds: float = 20.0,
    loggers: str | Sequence[str] = (),
    **changes: Any,
) -> Results:
    """Trains every arm with every seed that is not trained yet, as `lm ablate` does, and writes the report.

    Cells have processes of their own: a script calls this below `if __name__ == "__main__":`.

    Args:
        spec: a YAML file, or the name of a shipped one such as `quickstart`.
        out: folder of cells and reports.
        seeds: instead of the file's, a number or a list.
        tier: the experiment at another of its sizes.
        workers: cells trained at a time; one a device, or one a core, where none are given.
        retry_failed: whether to train failed cells again.
        underpowered: whether to go on with seeds too few for any difference to be significant.
        checkpoint_seconds: between checkpoints.
        loggers: that follow each run, such as `csv` or `["tensorboard", "mlflow"]`.
        changes: of every arm's configuration, by dotted paths: `**{"trainer.max_steps": 100}`.

    Raises:
        InputError: for an experiment that cannot be carried out.

    >>> import lm
    >>> lm.ablate("quickstart", seeds=2)
    Traceback (most recent call last):
    ...
    lm.config.tree.InputError: quickstart: 2 seeds cannot reach significance in 1 comparison (6 could); ...
    """
    folder = _begin(out, checkpoint_seconds, workers)
    from lm.ablation.ablate import Manner
    from lm.ablation.ablate import ablate as carry_out
    from lm.ablation.experiment import load_experiment

    if given := {"seed", "seeds"} & changes.keys():
        raise InputError(f"{min(given)}: an experiment has several; use seeds=[0, 1, 2]")
    named = asked_for(loggers, "loggers")
    experiment = load_experiment(Path(spec), changes, seeds, tier)
    carry_out(experiment, Manner(folder, workers, retry_failed, checkpoint_seconds, underpowered, loggers=named))
    return load(folder / experiment.name)


def _begin(out: str | Path, checkpoint_seconds: float, workers: int | None = None) -> Path:
    """Where cells go, before torch is imported. Raises InputError where they cannot."""
    from lm.data.cache import keep_compiled_code

    require_manner(Path(out), checkpoint_seconds, workers)
    keep_compiled_code()
    return Path(out)
