"""The parser of command lines, options that several commands share, and their checks."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lm.config.plain import shown
from lm.config.tree import InputError, nearest, parse_value
from lm.execution.machine import require_run_settings
from lm.training.process import Execution

RESULTS = Path("results")
"""Default folder of results."""


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
    """Parser that raises InputError for a wrong command line, with the nearest option or setting."""

    settable = False
    """True if its command takes settings of a configuration."""

    resumes = False
    """True if its command resumes what it left when it is run again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", int, whole)  # those of Python take the digits of every script
        self.register("type", float, real)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; refuse unknown ones with the nearest match."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = self._suggest(unknown)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint and '.' + hint}")
        return options, unknown

    def _suggest(self, unknown: Sequence[str]) -> str:
        """Return a hint for the first unknown option, or else argument; empty if nothing is near."""
        first = next((index for index, argument in enumerate(unknown) if argument.startswith("--")), 0)
        name, equals, text = unknown[first].partition("=")
        plain = name.lstrip("-").replace("-", "_")
        if self.resumes and plain in RESUMING:
            return " It is not needed: the same command resumes what was interrupted"
        setting = find_setting(shipped_settings(), plain, exact=True) if self.settable else ""
        near = "" if setting else nearest(name, list(self._option_string_actions))
        if self.settable and not (setting or near):
            setting = find_setting(all_settings(), plain)
        if not setting:
            return near
        dashed, after = name.startswith("--"), unknown[first + 1 : first + 2]
        if dashed and not equals and after and not after[0].startswith("--"):
            equals, text = " ", after[0]
        return f" Did you mean {'--' if dashed else ''}{setting}{equals}{text}?"

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the message and the command whose help to read."""
        raise InputError(f"{message} (see {self.prog} --help)")


Option = Callable[[argparse._ActionsContainer], object]
"""Function that adds an option or an argument to a parser."""


class Command:
    """A command of `lm`.

    Args:
        about: what it does, in a line.
        examples: two command lines, which its help shows.
        run: runs it with its options and settings, and returns the exit code.
        options: its options, in the order of its help.
        settable: True if it takes settings of a configuration, such as --optim.lr 3e-4.
        usage: first line of its help; by default argparse writes it.
    """

    def __init__(
        self,
        about: str,
        examples: tuple[str, ...],
        run: Callable[[argparse.Namespace, dict[str, Any]], int],
        *options: Option,
        settable: bool = False,
        usage: str | None = None,
    ) -> None:
        self.about, self.examples, self.run, self.options = about, examples, run, options
        self.settable, self.usage = settable, usage


RESUMING = ("resume", "continue", "resume_from", "resume_from_checkpoint", "ckpt_path")
"""Names of options in other programs that resume a run."""


def shipped_settings() -> list[str]:
    """Return the dotted settings in shipped configurations, which is fast."""
    from lm.config.reading import load_config, shipped_files
    from lm.config.tree import flatten

    return sorted({name for path in shipped_files("configuration").values() for name in flatten(load_config(path))})


def all_settings() -> list[str]:
    """Return the dotted settings of a shipped configuration with all defaults, which takes seconds."""
    from lm.config.components import resolve
    from lm.config.reading import load_config
    from lm.config.tree import flatten
    from lm.training.run import RunConfig

    try:
        return sorted(flatten(resolve(load_config(Path("char_tiny")), RunConfig)))
    except InputError:  # nothing is shipped
        return []


def find_setting(settings: Sequence[str], name: str, exact: bool = False) -> str:
    """Return the shortest setting that ends in a name, or unless `exact` in one near it; empty if several are."""
    ends = {setting.rpartition(".")[2] for setting in settings if "." in setting}
    close = [] if exact else difflib.get_close_matches(name, sorted(ends), n=1, cutoff=0.8)
    end = name if name in ends else next(iter(close), None)
    paths = sorted((s for s in settings if "." in s and s.rpartition(".")[2] == end), key=lambda s: s.count("."))
    is_unique = paths and [s.count(".") for s in paths].count(paths[0].count(".")) == 1
    return paths[0] if is_unique else ""


# options -------------------------------------------------------------------------------------------------------------


def option(name: str, about: str, **settings: Any) -> Option:
    """Return an option, or an argument, with its help and settings of argparse."""
    return lambda parser: parser.add_argument(name, help=about, **settings)


def flag(name: str, about: str) -> Option:
    """Return an option without a value."""
    return option(name, about, action="store_true")


def exclusive(*options: Option) -> Option:
    """Return options of which a command line has at most one."""

    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_option in options:
            add_option(group)

    return add


def out_option(content: str = "folder of results") -> Option:
    """Return --out, the folder of results in which a command looks for runs or writes cells."""
    return option("--out", f"{content} (default: results)", type=Path, default=RESULTS)


def results_argument(more: str = "") -> Option:
    """Return a folder of results as an argument; `more` names what else it may be."""
    about = f"folder of results, or of one experiment in it, or that one's name{more} (default: results)"
    return option("folder", about, nargs="?", type=Path, default=RESULTS, metavar="DIR")


CONFIG = option("config", "a YAML file, or the name of a shipped one such as char_tiny", type=Path)
JSON = flag("--json", "print JSON for programs")
SET = option(
    "--set",
    "change the configuration, e.g. --set trainer.max_steps=100",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    dest="settings",
)
LOGGERS = option(
    "--logger",
    "log the rows of history.csv too: tensorboard, wandb, mlflow, csv; several with commas (default: none)",
    action="append",
    default=[],
    metavar="NAME",
    dest="loggers",
)
EXECUTOR = option(
    "--executor",
    "where cells are trained: local, ray, ray://HOST:PORT or slurm:partition=P,time=H:M:S (default: local)",
    default="local",
    metavar="E",
)
CHECKPOINTS = option(
    "--checkpoint-seconds",
    f"seconds between checkpoints (default: {Execution.checkpoint_seconds:zg})",
    type=float,
    default=Execution.checkpoint_seconds,
    metavar="S",
)
WORKERS = option("--workers", "cells trained at a time (default: one a device, or one a core)", type=int)
HANG = option(
    "--hang-minutes",
    "minutes without a heartbeat after which a cell's process is ended (default: 30; 0: never)",
    type=float,
    default=30.0,
    metavar="M",
)
TRAIN = (out_option("folder of cells and reports"), CHECKPOINTS, SET)
"""Options of every command that trains."""

TRAIN_CELLS = (WORKERS, HANG)
"""Options of commands that train several cells."""


# values --------------------------------------------------------------------------------------------------------------


def resolve_experiment_folder(folder: Path) -> Path:
    """Return a folder, or where none exists the experiment or ladder of that name in `results`."""
    from lm.analysis.runs import is_experiment_or_search

    named = RESULTS / folder
    is_name = not folder.exists() and (is_experiment_or_search(named) or (named / "ladder.json").is_file())
    return named if is_name else folder


def read_settings(options: argparse.Namespace, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `--set` and of dotted options. Raises InputError."""
    settings: dict[str, Any] = {}
    for text in options.settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--set {text}: expected KEY=VALUE, as in --set optim.lr=3e-4")
        settings[key.strip()] = parse_value(value, f"--set {key.strip()}")
    return {**settings, **overrides}


def execution_of(options: argparse.Namespace) -> Execution:
    """Check the options of a command that trains, and return how they have each cell trained. Raises InputError."""
    from lm.training.loggers import parse_loggers

    seconds, hang = options.checkpoint_seconds, getattr(options, "hang_minutes", Execution.hang_seconds / 60)
    workers = getattr(options, "workers", None)
    require_run_settings(options.out, seconds, workers, hang, lambda name: f"--{name.replace('_', '-')}")
    loggers = parse_loggers(getattr(options, "loggers", ()))
    return Execution(checkpoint_seconds=seconds, hang_seconds=60 * hang, loggers=loggers)
