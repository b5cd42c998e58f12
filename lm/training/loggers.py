"""Loggers that people look at runs with: which there are, what each needs, and Lightning's own behind each name.

    OUT/logs/csv/<experiment>/<arm>/<seed>/metrics.csv
    OUT/logs/tensorboard/<experiment>/<arm>/<seed>/events.out.tfevents...
    OUT/logs/wandb/offline-run-...
    OUT/logs/mlflow.db

No package of theirs is imported before a run asks for it.
"""

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

NEEDS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "csv": (),
}
"""The packages that each logger imports."""

LOSS = "validation_nll"

PATIENCE = 15
"""Seconds that a run waits for a server that does not answer."""

FOLDER = "logs"
"""Of what the loggers write, in the folder of cells and reports."""


def asked_for(given: object, where: str = "--logger") -> tuple[str, ...]:
    """The names of loggers in what was given at `where`, each once.

    Raises:
        InputError: for a name that there is not, with the nearest, and where a package is missing, with its command.
    """
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: expected the name of a logger, or a list of names, found {shown(given)}")
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))
    for name in names:
        if name not in NEEDS:
            raise InputError(f"{where}: no logger {name!r}.{nearest(name, list(NEEDS))} Choose from {', '.join(NEEDS)}")
    for name in names:
        for package in NEEDS[name]:
            if not _there(package):
                raise InputError(
                    f"{where} {name}: the package {package} is not installed; pip install 'lm-ablations[track]'"
                )
    return names


def _there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # kept from being imported
        return False


class Logger(ABC):
    """One of Lightning's loggers at work on one run.

    Args:
        folder: of what loggers write.
        called: what the run is called, experiment/arm/seed.
        config: its resolved configuration, and its id; what is logged of it holds no secrets.
        run: by which the logger knows what an earlier try has logged; None for a new run.
    """

    again = False
    """Whether a try that takes a run up begins its log anew, with all rows of the checkpoint, or goes on in it."""

    def __init__(self, folder: Path, called: str, config: Tree, run: str | None) -> None:
        self.folder, self.called, self.config, self.run = folder, called, redacted_tree(config), run
        self.made: Any = self.make()
        self.made.log_hyperparams(self.config)

    @abstractmethod
    def make(self) -> Any:
        """Lightning's logger; sets `run`, where there is something to go on in."""

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Logs a row of the learning curve, and sees to it that it is written."""
        self.made.log_metrics(dict(row), step)
        self.made.save()

    def end(self, status: str) -> None:
        """Nothing more comes of this try: `success`, `failed` or `interrupted`, after which another may go on."""
        self.made.finalize(status)

    def place(self, kind: str) -> tuple[Path, str, str]:
        """An empty folder of the run's own, as the two folders that it lies in and its name."""
        experiment, arm, seed = self.called.split("/")
        outer, name = self.folder / kind / experiment, f"{arm}/{seed}"
        shutil.rmtree(outer / name, ignore_errors=True)
        return outer, arm, seed


class Csv(Logger):
    """A file of rows. Lightning's logger begins it anew whenever it is opened."""

    again = True

    def make(self) -> Any:
        from lightning.pytorch.loggers import CSVLogger

        outer, arm, seed = self.place("csv")
        return CSVLogger(outer, name=arm, version=seed, flush_logs_every_n_steps=10**9)

    def row(self, step: int, row: Mapping[str, float]) -> None:
        super().row(step, {escape_formula(name): value for name, value in row.items()})


class TensorBoard(Logger):
    """Files of events, which are only ever added to: begun anew, no step stands there twice."""

    again = True
    listed = False
    """Whether its table of hyperparameters has the run, which it takes in with the first loss of validation."""

    def make(self) -> Any:
        from lightning.pytorch.loggers import TensorBoardLogger

        outer, arm, seed = self.place("tensorboard")
        return TensorBoardLogger(outer, name=arm, version=seed, default_hp_metric=False)

    def row(self, step: int, row: Mapping[str, float]) -> None:
        if self.listed or LOSS not in row:
            super().row(step, row)
            return
        self.listed = True
        self.made.log_hyperparams(self.config, dict(row), step)
        self.made.save()


class WandB(Logger):
    """Runs that `wandb sync` uploads, unless WANDB_MODE says that they are to go up at once."""

    def make(self) -> Any:
        _unless_said(WANDB_SILENT="true", WANDB_INIT_TIMEOUT=f"{PATIENCE}", WANDB_MODE="offline")
        import wandb
        from lightning.pytorch.loggers import WandbLogger

        self.folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or self.called.split("/")[0],
            group=self.called.rpartition("/")[0],
            name=self.called,
            dir=self.folder,
            id=self.run,
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        made, self.run = WandbLogger(experiment=run), run.id
        return made

    def end(self, status: str) -> None:
        import wandb

        self.made.experiment.finish(exit_code=int(status != "success"))
        wandb.teardown()


class MLflow(Logger):
    """Runs in a database beside the cells, or where MLFLOW_TRACKING_URI says."""

    def make(self) -> Any:
        _unless_said(
            MLFLOW_DISABLE_TELEMETRY="true",
            MLFLOW_LOGGING_LEVEL="WARNING",
            MLFLOW_HTTP_REQUEST_MAX_RETRIES="1",
            MLFLOW_HTTP_REQUEST_TIMEOUT=f"{PATIENCE}",
        )
        from lightning.pytorch.loggers import MLFlowLogger

        folder = self.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        with locked(folder / ".mlflow.lock", "the database of mlflow", lambda line: None):  # that one at a time makes
            made = MLFlowLogger(
                self.called.split("/")[0],
                self.called,
                tracking_uri=uri,
                artifact_location=None if "MLFLOW_TRACKING_URI" in os.environ else (folder / "mlflow").as_uri(),
                run_id=self.run,
            )
            found = made.run_id
        if self.run is not None:
            made.experiment.update_run(found, status="RUNNING")
        self.run = found
        return made

    def end(self, status: str) -> None:
        self.made.finalize("KILLED" if status == "interrupted" else status)


def _unless_said(**settings: str) -> None:
    """Sets variables of the environment by which a package is told what to do, where a person has not."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


KINDS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow, "csv": Csv}
