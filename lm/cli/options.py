"""What several commands take, and how it is checked."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lm.config.plain import shown
from lm.config.tree import InputError, nearest, parse_value
from lm.execution.machine import require_manner

INTERRUPTED = 130

RESULTS = Path("results")
"""Where results lie unless something else is said."""


def whole(text: str) -> int:
    """Return a whole number in ASCII digits. Raises ArgumentTypeError."""
    try:
        return int(text.encode("ascii"))
    except ValueError:  # UnicodeEncodeError is one
        raise argparse.ArgumentTypeError(f"expected a whole number, in digits 0 to 9, found {shown(text)}") from None


def real(text: str) -> float:
    """Return a number in ASCII digits. Raises ArgumentTypeError."""
    try:
        return float(text.encode("ascii"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, in digits 0 to 9, found {shown(text)}") from None


class Parser(argparse.ArgumentParser):
    """Answers a wrong command line with one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", int, whole)  # those of Python take the digits of every script
        self.register("type", float, real)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            guess = nearest(unknown[0].partition("=")[0], list(self._option_string_actions))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{guess and '.' + guess}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


# options -------------------------------------------------------------------------------------------------------------


def add_output(command: Parser) -> None:
    """Where cells and reports go, and how often a cell is saved on its way."""
    command.add_argument("--out", type=Path, default=RESULTS, help="folder of cells and reports (default: results)")
    command.add_argument(
        "--checkpoint-seconds", type=float, default=20.0, metavar="S", help="seconds between checkpoints (default: 20)"
    )


def add_settable(command: Parser) -> None:
    """Changes of the configuration."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change the configuration, e.g. --set trainer.max_steps=100",
    )


def add_workers(command: Parser) -> None:
    """How many cells are trained at a time."""
    command.add_argument("--workers", type=int, help="cells trained at a time (default: one a device, or one a core)")
    command.add_argument(
        "--hang-minutes",
        type=float,
        default=30.0,
        metavar="M",
        help="without a sign of life after which a cell's process is ended (default: 30; 0: never)",
    )


def add_executor(command: Parser) -> None:
    """What trains the cells."""
    command.add_argument(
        "--executor",
        default="local",
        metavar="E",
        help="what trains cells: local, ray, ray://HOST:PORT or slurm:partition=P,time=H:M:S (default: local)",
    )


def add_loggers(command: Parser) -> None:
    """What follows runs while they train."""
    command.add_argument(
        "--logger",
        action="append",
        default=[],
        metavar="NAME",
        dest="loggers",
        help="log the rows of history.csv too: tensorboard, wandb, mlflow, csv; several with commas (default: none)",
    )


def add_run(command: Parser) -> None:
    """A finished run, and where runs lie."""
    command.add_argument(
        "cell", metavar="RUN", help="a finished run: experiment/arm/seed, its folder, or the beginning of its id"
    )
    command.add_argument("--out", type=Path, default=RESULTS, help="folder of cells (default: results)")


def add_results(command: Parser, more: str = "") -> None:
    """A folder of results, to look at; `more` says what else may stand for some of it."""
    command.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help=f"folder of results, or of one experiment in it, or that one's name{more} (default: results)",
    )


def called(folder: Path) -> Path:
    """A folder that was asked for, or that of the experiment or ladder in `results` for which its name may stand."""
    from lm.analysis.runs import describes

    named = RESULTS / folder
    return named if not folder.exists() and (describes(named) or (named / "ladder.json").is_file()) else folder


def add_experiment(command: Parser) -> None:
    """An experiment's folder, or what `lm pack` made of it."""
    command.add_argument("folder", type=Path, help="an experiment's folder, such as results/quickstart, or its pack")


# checks --------------------------------------------------------------------------------------------------------------


def settings_of(options: argparse.Namespace, overrides: dict[str, Any]) -> dict[str, Any]:
    """The changes that `--set` and dotted options ask for. Raises InputError."""
    return {**_settings(options.settings), **overrides}


def loggers_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The loggers that `--logger` asks for. Raises InputError for one that there is not, or that lacks its package."""
    from lm.training.loggers import asked_for

    return asked_for(options.loggers)


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--set {text}: expected KEY=VALUE, as in --set optim.lr=3e-4")
        settings[key.strip()] = parse_value(value, f"--set {key.strip()}")
    return settings


def executor_of(options: argparse.Namespace, loggers: Sequence[str]) -> str:
    """What trains the cells. Raises InputError where there is none of that name, or it cannot be reached."""
    from lm.execution.asked import usable

    return usable(options.executor, loggers)


def check_output(options: argparse.Namespace) -> None:
    """Raises InputError where cells cannot go, or with workers or checkpoints that cannot be."""
    workers, hang = getattr(options, "workers", None), getattr(options, "hang_minutes", 0.0)
    require_manner(options.out, options.checkpoint_seconds, workers, hang, lambda name: f"--{name.replace('_', '-')}")
