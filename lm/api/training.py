"""Train configurations and experiments from a program, and open the models that runs trained."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lm.api.results import Ladder, Results, load
from lm.config.imported import current_folder_modules
from lm.config.imported import trusted_only as trusted
from lm.config.plain import shown
from lm.config.reading import load_config
from lm.config.tree import InputError, override, path_name
from lm.execution.factory import usable
from lm.execution.machine import require_run_settings
from lm.store.record import Record
from lm.training.loggers import parse_loggers
from lm.training.process import Execution, leave_slurm_job

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import nn

NAMELESS, MAPPING = "fit", "ablation"
"""Run name for loggers where the configuration is a mapping, and name of an experiment that is one."""


class Run(NamedTuple):
    """A run that ended: its record, and the folder with its record, configuration, curve and weights."""

    record: Record
    folder: Path

    def __repr__(self) -> str:
        from lm.report.run import summary_lines

        return "\n".join(summary_lines(self.record, self.folder))


class Trained(NamedTuple):
    """A trained model, in eval mode on the CPU, and the tokenizer of its training text."""

    model: "nn.Module"
    tokenizer: "Tokenizer"

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, as the model takes them."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, such as a model generates."""
        return str(self.tokenizer.decode(list(tokens)))


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
    out_folder = _prepare(out, checkpoint_seconds)
    with _user_modules(trusted_only):
        tree = override(load_config(to_plain(config)), to_plain(changes))
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

    with _user_modules(trusted_only):
        finished = FinishedRun.at(run.folder if isinstance(run, Run) else find(os.fspath(run), Path(out)))
        kind: Any = Model  # the class of all, which has no instances of its own
        return Trained(finished.model(kind, "a {} is no model"), load_tokenizer(finished))


def generate(
    run: Run | str | Path,
    prompt: str,
    *,
    tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    seed: int = 0,
    out: str | Path = "results",
    trusted_only: bool = False,
) -> str:
    """Continue a text with a finished run, as `lm generate` does, and return the prompt with its continuation.

    Args:
        run: the run, as in `load_model`.
        prompt: text to continue.
        tokens: most tokens to generate; by default 200, or the model's longest context.
        temperature: divisor of the logits (1).
        top_k: number of the likeliest tokens to sample from.
        top_p: probability of the likeliest tokens to sample from.
        greedy: True to take the likeliest token always.
        seed: random seed; the same seed gives the same text.
        out: folder of cells and reports, where `run` is a name or a prefix of an id.
        trusted_only: True to refuse every class that is not part of lm.

    Raises:
        InputError: if there is no such run, or it cannot continue this text.
    """
    from lm.inference.finished import find
    from lm.inference.generate import chooser, stream_text

    with _user_modules(trusted_only):
        try:
            choose = chooser(greedy, temperature, top_k, top_p, seed)
            folder = run.folder if isinstance(run, Run) else find(os.fspath(run), Path(out))
            return prompt + "".join(stream_text(folder, prompt, tokens, choose))
        except InputError as error:  # names top_k, not the option --top-k
            options = re.compile(r"--([a-z][a-z-]*)")
            raise InputError(options.sub(lambda option: option[1].replace("-", "_"), str(error))) from None


# experiments ----------------------------------------------------------------------------------------------------------


def ablate(
    spec: str | Path | Mapping[str, Any],
    *,
    name: str = "",
    out: str | Path = "results",
    seeds: int | str | Sequence[int] | None = None,
    add_seeds: int = 0,
    tier: str = "",
    workers: int | None = None,
    executor: str = "local",
    retry_failed: bool = False,
    underpowered: bool = False,
    checkpoint_seconds: float = Execution.checkpoint_seconds,
    hang_minutes: float = Execution.hang_seconds / 60,
    loggers: str | Sequence[str] = (),
    trusted_only: bool = False,
    **changes: Any,
) -> Results | Ladder:
    """Train every arm with every seed that is not trained yet, as `lm ablate` does, write the report and load it.

    Cells run in processes of their own: call this from a script below `if __name__ == "__main__":`. Raises InputError
    if the experiment cannot be run, and LostError if its folder is removed during training.

    Args:
        spec: a YAML file, the name of a shipped one such as `quickstart`, or a mapping with what a file holds.
        name: name of the report's folder where `spec` is a mapping.
        out: folder of cells and reports.
        seeds: seeds that replace the file's: a number, a list, or a range such as `0-5`.
        add_seeds: seeds to add to those of the results in `out`; what looking at these could use of 5 % is used.
        tier: size tier of the experiment, where it has several.
        workers: number of cells trained at a time; by default one a device, or one a core.
        executor: where cells are trained: `local`, `ray`, `ray://HOST:PORT` or `slurm:partition=P,time=H:M:S`.
        retry_failed: True to train failed cells again.
        underpowered: True to go on with too few seeds for any significant difference.
        checkpoint_seconds: seconds between checkpoints.
        hang_minutes: minutes without a heartbeat after which a cell's process is ended; 0 for never.
        loggers: loggers of each run, such as `csv` or `["tensorboard", "mlflow"]`.
        trusted_only: True to refuse every class that is not part of lm.
        changes: changes to all configurations by dotted paths: `**{"trainer.max_steps": 100}`.
    """
    leave_slurm_job()
    folder = _prepare(out, checkpoint_seconds, workers, hang_minutes)
    if clashes := {"seed", "seeds"} & changes.keys():
        raise InputError(f"{min(clashes)}: an experiment has several; use seeds=[0, 1, 2]")
    tree = to_plain(spec) if isinstance(spec, Mapping) else None
    if not isinstance(spec, str | os.PathLike | Mapping):
        raise InputError(f"spec: expected a YAML file, the name of a shipped one or a mapping, found {shown(spec)}")
    if name and tree is None:
        raise InputError(f"name: {shown(name)} is for a mapping; the file {spec} names its report itself")
    path = Path(spec) if not isinstance(spec, Mapping) else Path(path_name(name or MAPPING, "name"))
    on = usable(executor, named := parse_loggers(loggers, "loggers"), "executor", "loggers")
    with _user_modules(trusted_only):
        from lm.ablation import ablate as training
        from lm.ablation.experiment import load_experiment
        from lm.ablation.ladder.run_ladder import run_ladder

        settings, chosen = to_plain(changes), to_plain(seeds)
        experiment = load_experiment(path, settings, chosen, tier, str, tree)
        if add_seeds:
            chosen = training.with_added_seeds(experiment, add_seeds, folder, underpowered, seeds)
            experiment = load_experiment(path, settings, chosen, tier, str, tree)
        if texts := list(experiment.corpora):
            remedy = f"`lm ablate` trains on all, and lm.load reads each, such as {experiment.name}.{texts[0]}"
            raise InputError(f"{path}: corpora: has several texts ({', '.join(texts)}); {remedy}")
        command = () if tree is not None else _command(path, folder, chosen, tier, underpowered, settings)
        execution = Execution(None, False, checkpoint_seconds, 60 * hang_minutes, named)
        options = training.RunOptions(folder, workers, retry_failed, underpowered, command, execution, on)
        code = (training.ablate if experiment.ladder is None else run_ladder)(experiment, options)
    if code and experiment.bracket and not (folder / experiment.name / "experiment.json").is_file():
        raise InputError(f"{experiment.name}: interrupted during the search for learning rates; the same call goes on")
    return load(folder / experiment.name)


def _command(
    spec: Path, out: Path, seeds: Any, tier: str, underpowered: bool, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the arguments of `lm` that request the same cells, for the manifest."""
    words = ["ablate", str(spec), "--out", str(out), *["--tier", tier] * bool(tier), *["--underpowered"] * underpowered]
    if seeds is not None:
        words += ["--seeds", seeds if isinstance(seeds, str) else json.dumps(seeds)]
    for key, value in settings.items():
        words += ["--set", f"{key}={json.dumps(value, default=str)}"]
    return tuple(words)


# settings -------------------------------------------------------------------------------------------------------------


def _prepare(out: str | Path, checkpoint_seconds: float, workers: int | None = None, hang_minutes: float = 0.0) -> Path:
    """Check the output folder and settings, and set up the compile cache; return the folder. Raises InputError."""
    from lm.data.cache import keep_compiled_code
    from lm.store.user_cache import running_version

    require_run_settings(Path(out), checkpoint_seconds, workers, hang_minutes)
    running_version()  # before torch is imported, so that choices of `auto` are kept for other results folders
    keep_compiled_code()
    return Path(out)


@contextlib.contextmanager
def _user_modules(trusted_only: bool) -> Iterator[None]:
    """Let modules in the current folder be imported meanwhile; with `trusted_only` none but those of `lm`."""
    with trusted(trusted_only, "trusted_only=True"), current_folder_modules():
        yield


def to_plain(value: Any) -> Any:
    """Convert NumPy numbers, tuples, ranges and paths in a setting to what a YAML file would hold."""
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [to_plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
