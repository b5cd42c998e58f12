"""Loggers that follow a run while it trains: they receive the rows of its learning curve, and nothing else.

    OUT/logs/csv/<experiment>/<arm>/<seed>/metrics.csv
    OUT/logs/tensorboard/<experiment>/<arm>/<seed>/events.out.tfevents...
    OUT/logs/wandb/offline-run-...
    OUT/logs/mlflow.db

A row is logged once a later one has begun, as until then validation may add to it; the last ones come from
`history.csv`. The last logged step is saved in the cell's work folder, so that a resumed run continues the same log.
Lightning and the packages of loggers are imported only for a run that uses them.
"""

import contextlib
import csv
import importlib.util
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, Tree, nearest
from lm.store.files import escape_formula, read_json, to_json, unescape_formula, write_atomic
from lm.store.leases import LostError
from lm.store.locks import LogLine, locked
from lm.store.redaction import redacted, redacted_tree
from lm.store.store import LOGGED

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

Rows = Mapping[int, Mapping[str, float]]  # a learning curve: the measurements at each optimiser step


class Tracker:
    """Passes the rows of a run to loggers, in its first process; one that fails is dropped, and the run goes on."""

    def __init__(self, work: Path, log: LogLine) -> None:
        self.path, self.log, self.process = work / LOGGED, log, os.getpid()
        self.loggers: dict[str, Logger] = {}
        self.last_logged_step: dict[str, int] = {}
        self.num_rows = 0

    def begin(self, names: Sequence[str], folder: Path, run_name: str, config: Tree) -> None:
        """Open the loggers, each at the end of its existing log."""
        try:
            logged = {name: (entry["run"], int(entry["told"])) for name, entry in read_json(self.path).items()}
        except (InputError, AttributeError, KeyError, TypeError, ValueError):
            logged = {}
        self.loggers, self.num_rows = {}, 0
        for name in names:
            kind, (run, step) = KINDS[name], logged.get(name, (None, -1))
            with self._best_effort(name):
                self.loggers[name] = kind(folder, run_name, config, run)
                self.last_logged_step[name] = -1 if kind.restart_on_resume else step
        self._write()

    def _write(self) -> None:
        steps, loggers = self.last_logged_step, self.loggers.items()
        logged = {name: {"run": of.run, "told": steps[name]} for name, of in loggers}
        write_atomic(self.path, to_json(logged), sync=False)

    @contextlib.contextmanager
    def _best_effort(self, name: str) -> Iterator[None]:
        """Drop a logger that raises an exception."""
        from lightning.pytorch.utilities.seed import isolate_rng

        try:
            with isolate_rng(include_cuda=False):
                yield
        except Exception as error:
            self.loggers.pop(name, None)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.log(f"--logger {name}: {redacted(reason)}; the run goes on without it")

    def log_rows(self, rows: Rows, before: int | None = None) -> None:
        """Pass new rows, `before` a step, to each logger; the step is saved first, so that no row is doubled."""
        for step in sorted(rows):
            if before is not None and step >= before:
                break
            due = [name for name in self.loggers if self.last_logged_step[name] < step]
            if not due:
                continue
            self.last_logged_step |= dict.fromkeys(due, step)
            self._write()
            for name in due:
                with self._best_effort(name):
                    self.loggers[name].row(step, rows[step])

    def end(self, status: str) -> None:
        """Close the loggers."""
        for name in list(self.loggers):
            with self._best_effort(name):
                self.loggers[name].end(status)

    def follow(self, recorder: Any) -> None:
        """Pass new rows of the recorder on to the loggers; a forked process has no loggers of its own."""
        if os.getpid() != self.process or len(recorder.rows) == self.num_rows:
            return
        started, self.num_rows = time.monotonic(), len(recorder.rows)
        self.log_rows(recorder.rows, max(recorder.rows))
        recorder.clock += time.monotonic() - started
        recorder.meter.pause()


@contextlib.contextmanager
def tracked(
    names: Sequence[str], work: Path, folder: Path, run_name: str, config: Tree, log: LogLine
) -> Iterator[Callable[[Any], None]]:
    """Follow a run with loggers, if any: yield a function to call with each recorder, and log the rest at the end."""
    if not names:
        yield lambda recorder: None
        return
    tracker, status = Tracker(work, log), "interrupted"
    tracker.begin(names, folder, run_name, config)

    def follow(recorder: Any) -> None:
        if tracker.num_rows:  # another attempt in this process, from the last checkpoint
            tracker.end("interrupted")
            tracker.begin(names, folder, run_name, config)
        recorder.on_row = lambda: tracker.follow(recorder)

    try:
        yield follow
        if (history := work / "history.csv").is_file():  # there is none of a run that was pruned
            with open(history, encoding="utf-8", newline="") as file:
                rows = {
                    int(row.pop("step")): {unescape_formula(name): float(text) for name, text in row.items() if text}
                    for row in csv.DictReader(file)
                }
            tracker.log_rows(rows)
        status = "success"
    except LostError:  # another process goes on with it
        raise
    except Exception:
        status = "failed"
        raise
    finally:
        tracker.end(status)
