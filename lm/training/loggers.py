"""Loggers of runs: their names, the packages that each needs, and Lightning's logger behind each name.

    OUT/logs/csv/<experiment>/<arm>/<seed>/metrics.csv
    OUT/logs/tensorboard/<experiment>/<arm>/<seed>/events.out.tfevents...
    OUT/logs/wandb/offline-run-...
    OUT/logs/mlflow.db

Their packages are imported only for a run that uses them.
"""

import contextlib
import importlib.util
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, Tree, nearest
from lm.store.files import escape_formula
from lm.store.locks import locked
from lm.store.redaction import redacted_tree

# packages that each logger imports
NEEDS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "csv": (),
}
PATIENCE = 15  # seconds to wait for a server that does not answer
FOLDER = "logs"  # folder of the logs, in the folder of cells and reports


def parse_loggers(value: object, where: str = "--logger") -> tuple[str, ...]:
    """Parse the names of loggers, each once. Raises InputError with the nearest name, or the package to install."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: expected the name of a logger, or a list of names, found {shown(value)}")
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))
    if strange := [name for name in names if name not in NEEDS]:
        choices = f"{nearest(strange[0], list(NEEDS))} Choose from {', '.join(NEEDS)}"
        raise InputError(f"{where}: no logger {strange[0]!r}.{choices}")
    for name in names:
        for package in NEEDS[name]:
            with contextlib.suppress(ValueError):  # blocked from import
                if importlib.util.find_spec(package) is not None:
                    continue
            hint = "pip install 'lm-ablations[track]'"
            raise InputError(f"{where} {name}: the package {package} is not installed; {hint}")
    return names


class Logger(ABC):
    """One of Lightning's loggers for a run; `folder` is of all logs, `run` the logger's id from an earlier attempt."""

    restart_on_resume = False  # True to start the log of a resumed run anew, with all rows of the checkpoint

    def __init__(self, folder: Path, run_name: str, config: Tree, run: str | None) -> None:
        self.folder, self.run_name, self.config, self.run = folder, run_name, redacted_tree(config), run
        self.logger: Any = self.make()
        self.logger.log_hyperparams(self.config)

    @abstractmethod
    def make(self) -> Any:
        """Build Lightning's logger; set `run` if the log can be continued."""

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Log a row of the learning curve, and write it out."""
        self.logger.log_metrics(dict(row), step)
        self.logger.save()

    def end(self, status: str) -> None:
        """Close the log with a status: `success`, `failed` or `interrupted`."""
        self.logger.finalize(status)


class _InFolder(Logger):
    """Files in a folder of the run's own, in which a resumed run holds no step twice."""

    restart_on_resume = True
    kind: str
    options: dict[str, Any]

    def make(self) -> Any:
        import lightning.pytorch.loggers

        experiment, arm, seed = self.run_name.split("/")
        outer = self.folder / self.kind.removesuffix("Logger").lower() / experiment
        shutil.rmtree(outer / arm / seed, ignore_errors=True)
        return getattr(lightning.pytorch.loggers, self.kind)(outer, name=arm, version=seed, **self.options)


class Csv(_InFolder):
    """A file of rows, which Lightning's logger empties whenever it is opened."""

    kind = "CSVLogger"
    options = {"flush_logs_every_n_steps": 10**9}

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Log a row whose names no spreadsheet takes for formulas."""
        super().row(step, {escape_formula(name): value for name, value in row.items()})


class TensorBoard(_InFolder):
    """Files of events, to which is only appended."""

    kind = "TensorBoardLogger"
    options = {"default_hp_metric": False}
    listed = False  # True once its table of hyperparameters has the run, which is added with the first validation loss

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Log a row; the first with a validation loss also lists the hyperparameters."""
        if self.listed or "validation_nll" not in row:
            super().row(step, row)
            return
        self.listed = True
        self.logger.log_hyperparams(self.config, dict(row), step)
        self.logger.save()


class WandB(Logger):
    """Runs that `wandb sync` uploads, unless WANDB_MODE sets another mode."""

    def make(self) -> Any:
        """Start a run of Weights & Biases, offline unless the environment says otherwise."""
        defaults = {"WANDB_SILENT": "true", "WANDB_INIT_TIMEOUT": f"{PATIENCE}", "WANDB_MODE": "offline"}
        os.environ.update(defaults | os.environ)
        import wandb
        from lightning.pytorch.loggers import WandbLogger

        self.folder.mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT") or self.run_name.split("/")[0]
        names: Any = {"project": project, "group": self.run_name.rpartition("/")[0], "name": self.run_name}
        settings = wandb.Settings(console="off")
        run = wandb.init(**names, dir=self.folder, id=self.run, resume="allow", settings=settings)
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        self.run = run.id
        return WandbLogger(experiment=run)

    def end(self, status: str) -> None:
        """Finish the run with an exit code."""
        import wandb

        self.logger.experiment.finish(exit_code=int(status != "success"))
        wandb.teardown()


class MLflow(Logger):
    """Runs in a database beside the cells, or at MLFLOW_TRACKING_URI."""

    def make(self) -> Any:
        """Start a run of MLflow, or resume it."""
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
        patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": f"{PATIENCE}"}
        os.environ.update(quiet | patience | os.environ)
        from lightning.pytorch.loggers import MLFlowLogger

        folder = self.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        with locked(folder / ".mlflow.lock", "the database of mlflow", lambda line: None):  # created by one at a time
            files = None if "MLFLOW_TRACKING_URI" in os.environ else (folder / "mlflow").as_uri()
            options: Any = {"tracking_uri": uri, "artifact_location": files, "run_id": self.run}
            logger = MLFlowLogger(self.run_name.split("/")[0], self.run_name, **options)
            run = logger.run_id
        if self.run is not None:
            logger.experiment.update_run(run, status="RUNNING")
        self.run = run
        return logger

    def end(self, status: str) -> None:
        """Close the run with its status."""
        self.logger.finalize("KILLED" if status == "interrupted" else status)


KINDS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow, "csv": Csv}
