"""Run experiments from a program."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.api._setup import prepare, to_plain, user_modules
from lm.api.results import Ladder, Results, load
from lm.config.plain import shown
from lm.config.tree import InputError
from lm.execution.factory import usable
from lm.training.loggers import asked_for


def ablate(
    spec: str | Path,
    *,
    out: str | Path = "results",
    seeds: int | str | Sequence[int] | None = None,
    tier: str = "",
    workers: int | None = None,
    executor: str = "local",
    retry_failed: bool = False,
    underpowered: bool = False,
    checkpoint_seconds: float = 20.0,
    hang_minutes: float = 30.0,
    loggers: str | Sequence[str] = (),
    trusted_only: bool = False,
    **changes: Any,
) -> Results | Ladder:
    """Train every arm with every seed that is not trained yet, as `lm ablate` does, and write the report.

    Cells run in processes of their own: call this from a script below `if __name__ == "__main__":`.

    Args:
        spec: a YAML file, or the name of a shipped one such as `quickstart`.
        out: folder of cells and reports.
        seeds: seeds that replace the file's: a number, a list, or a range such as `0-5`.
        tier: size tier of the experiment, where it has several.
        workers: number of cells trained at a time; by default one a device, or one a core.
        executor: where cells are trained: `local`, `ray`, `ray://HOST:PORT` or `slurm:partition=P,time=H:M:S`.
        retry_failed: True to train failed cells again.
        underpowered: True to go on with too few seeds for any significant difference.
        checkpoint_seconds: seconds between checkpoints.
        hang_minutes: minutes without a heartbeat after which a cell's process is ended; 0 for never.
        loggers: loggers of each run, such as `csv` or `["tensorboard", "mlflow"]`.
        trusted_only: True to refuse every class that is not part of lm.
        changes: changes to every arm's configuration, by dotted paths: `**{"trainer.max_steps": 100}`.

    Returns:
        The results of the experiment or of the ladder, as `load` returns them.

    Raises:
        InputError: if the experiment cannot be run.
        LostError: if its folder is removed during training.

    >>> import lm
    >>> lm.ablate("quickstart", seeds=2)
    Traceback (most recent call last):
    ...
    lm.config.tree.InputError: quickstart: 2 seeds cannot reach significance in 1 comparison (6 could); ...
    """
    folder = prepare(out, checkpoint_seconds, workers, hang_minutes)
    if not isinstance(spec, str | os.PathLike):
        raise InputError(f"spec: expected a YAML file or the name of a shipped one, found {shown(spec)}")
    if clashes := {"seed", "seeds"} & changes.keys():
        raise InputError(f"{min(clashes)}: an experiment has several; use seeds=[0, 1, 2]")
    named = asked_for(loggers, "loggers")
    trains = usable(executor, named, "executor", "loggers")
    with user_modules(trusted_only):
        from lm.ablation.ablate import Manner
        from lm.ablation.ablate import ablate as carry_out
        from lm.ablation.climb import climb
        from lm.ablation.experiment import load_experiment

        settings, chosen = to_plain(changes), to_plain(seeds)
        experiment = load_experiment(Path(spec), settings, chosen, tier, str)
        manner = Manner(
            folder,
            workers,
            retry_failed,
            checkpoint_seconds,
            underpowered,
            _command(Path(spec), folder, chosen, tier, underpowered, settings),
            hang_seconds=60 * hang_minutes,
            loggers=named,
            executor=trains,
        )
        (carry_out if experiment.ladder is None else climb)(experiment, manner)
    return load(folder / experiment.name)


def _command(
    spec: Path, out: Path, seeds: Any, tier: str, underpowered: bool, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the arguments of `lm` that request the same cells, for the manifest."""
    words = ["ablate", str(spec), "--out", str(out)]
    if seeds is not None:
        words += ["--seeds", seeds if isinstance(seeds, str) else json.dumps(seeds)]
    if tier:
        words += ["--tier", tier]
    if underpowered:
        words.append("--underpowered")
    return (
        *words,
        *(word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value, default=str)}")),
    )
