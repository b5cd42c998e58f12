"""Train single configurations, and open the models that runs trained."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lm.api._setup import prepare, to_plain, user_modules
from lm.config.reading import config_of
from lm.config.tree import override
from lm.store.record import Record
from lm.training.loggers import parse_loggers
from lm.training.process import Execution

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import nn

NAMELESS = "fit"
"""Run name for loggers where the configuration is a mapping."""


class Run(NamedTuple):
    """A run that ended: its record, and the folder with its record, configuration, curve and weights."""

    record: Record
    folder: Path


class Trained(NamedTuple):
    """A trained model, in eval mode on the CPU, and the tokenizer of its training text."""

    model: "nn.Module"
    tokenizer: "Tokenizer"


def fit(
    config: str | Path | Mapping[str, Any],
    *,
    out: str | Path = "results",
    checkpoint_seconds: float = Execution.checkpoint_seconds,
    progress: bool = True,
    loggers: str | Sequence[str] = (),
    trusted_only: bool = False,
    **changes: Any,
) -> Run:
    """Train one configuration in this process, as `lm fit` does, or return the run that is trained already.

    A run that failed or diverged is returned too: see `record["status"]` and `record["error"]`.

    Args:
        config: a YAML file, the name of a shipped one such as `char_tiny`, or a mapping with what a file holds.
        out: folder of cells and reports.
        checkpoint_seconds: seconds between checkpoints.
        progress: True to print the settings chosen by `auto` and training progress to standard error.
        loggers: loggers that also receive the rows of history.csv, such as `csv` or `["tensorboard", "mlflow"]`.
        trusted_only: True to refuse every class that is not part of lm.
        changes: changes to the configuration, by dotted paths: `**{"optim.lr": 3e-4}`, or `seed=1`.

    Raises:
        InputError: if the configuration cannot be trained.

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
    out_folder = prepare(out, checkpoint_seconds)
    with user_modules(trusted_only):
        tree = override(config_of(to_plain(config)), to_plain(changes))
        from lm.execution.single_run import train_single
        from lm.store.store import Store

        named = NAMELESS if isinstance(config, Mapping) else Path(config).stem
        execution = Execution(checkpoint_seconds=checkpoint_seconds, loggers=parse_loggers(loggers, "loggers"))
        folder = train_single(tree, out_folder, execution, progress, named)
        return Run(Store(out_folder).record(folder.name), folder)


def load_model(run: Run | str | Path, *, out: str | Path = "results", trusted_only: bool = False) -> Trained:
    """Load the model that a run trained, and its tokenizer.

    Args:
        run: the result of `fit`, or a run as commands name it: `experiment/arm/seed`, a folder, a prefix of its id.
        out: folder of cells and reports, where `run` is a name or a prefix of an id.
        trusted_only: True to refuse every class that is not part of lm.

    Returns:
        The model, which takes tokens (b, t) and returns logits (b, t, vocabulary), and a tokenizer whose
        `encode(text).ids` are tokens; of an encoder-decoder the model takes pairs of texts.

    Raises:
        InputError: if there is no such run, it did not end well, or its weights were not kept.
    """
    from lm.inference.finished import FinishedRun, find
    from lm.inference.generate import load_tokenizer
    from lm.model.transformer import Model

    with user_modules(trusted_only):
        finished = FinishedRun.at(run.folder if isinstance(run, Run) else find(os.fspath(run), Path(out)))
        kind: Any = Model  # the class of all, which has no instances of its own
        return Trained(finished.model(kind, "a {} is no model"), load_tokenizer(finished))
