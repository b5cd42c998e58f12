"""What several commands take, and how it is checked."""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lm.config.plain import shown
from lm.config.tree import InputError, nearest, parse_value
from lm.execution.machine import require_run_settings

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

    settable = False
    """Whether its command takes settings of a configuration."""

    resumes = False
    """Whether its command takes up what it left, when it is given again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", int, whole)  # those of Python take the digits of every script
        self.register("type", float, real)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            guess = self._meant(unknown)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{guess and '.' + guess}")
        return found, unknown

    def _meant(self, unknown: Sequence[str]) -> str:
        """Return what the first unknown option, or else argument, may stand for; or an empty string."""
        first = next((index for index, one in enumerate(unknown) if one.startswith("--")), 0)
        name, equals, text = unknown[first].partition("=")
        plain = name.lstrip("-").replace("-", "_")
        if self.resumes and plain in RESUMING:
            return " It is not needed: the same command resumes what was interrupted"
        setting = name_in(settings_shipped(), plain, exact=True) if self.settable else ""
        near = "" if setting else nearest(name, list(self._option_string_actions))
        if self.settable and not (setting or near):
            setting = name_in(settings_there_are(), plain)
        if not setting:
            return near
        dashed, after = name.startswith("--"), unknown[first + 1 : first + 2]
        if dashed and not equals and after and not after[0].startswith("--"):
            equals, text = " ", after[0]
        return f" Did you mean {'--' if dashed else ''}{setting}{equals}{text}?"

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


RESUMING = ("resume", "continue", "resume_from", "resume_from_checkpoint", "ckpt_path")
"""What options are called elsewhere that take up a run."""


def settings_shipped() -> list[str]:
    """Return the dotted settings that shipped configurations give, which takes no time."""
    from lm.config.reading import load_config
    from lm.config.shipped import shipped
    from lm.config.tree import flatten

    return sorted({name for path in shipped("configuration").values() for name in flatten(load_config(path))})


def settings_there_are() -> list[str]:
    """Return the dotted settings of a usual configuration with every default, which takes seconds; none without one."""
    from lm.config.components import resolve
    from lm.config.reading import load_config
    from lm.config.tree import flatten
    from lm.training.run import Run

    try:
        return sorted(flatten(resolve(load_config(Path(USUAL)), Run)))
    except InputError:  # nothing is shipped
        return []


USUAL = "char_tiny"
"""The shipped configuration whose settings are offered."""


def name_in(settings: Sequence[str], plain: str, exact: bool = False) -> str:
    """Return the setting that ends in this name, or in one near it; of several the only one that is shortest."""
    ends = {setting.rpartition(".")[2] for setting in settings if "." in setting}
    close = [] if exact else difflib.get_close_matches(plain, sorted(ends), n=1, cutoff=0.8)
    end = plain if plain in ends else next(iter(close), None)
    paths = sorted((s for s in settings if "." in s and s.rpartition(".")[2] == end), key=lambda s: s.count("."))
    alone = paths and [s.count(".") for s in paths].count(paths[0].count(".")) == 1
    return paths[0] if alone else ""


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
    from lm.analysis.runs import is_experiment_or_search

    named = RESULTS / folder
    return (
        named
        if not folder.exists() and (is_experiment_or_search(named) or (named / "ladder.json").is_file())
        else folder
    )


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
    from lm.execution.factory import usable

    return usable(options.executor, loggers)


def check_output(options: argparse.Namespace) -> None:
    """Raises InputError where cells cannot go, or with workers or checkpoints that cannot be."""
    workers, hang = getattr(options, "workers", None), getattr(options, "hang_minutes", 0.0)
    require_run_settings(
        options.out, options.checkpoint_seconds, workers, hang, lambda name: f"--{name.replace('_', '-')}"
    )
