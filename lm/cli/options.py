"""The parser of command lines, options that several commands share, and their checks."""

import argparse
import difflib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.config.usual_names import suggest_option
from lm.execution.machine import require_run_settings
from lm.training.process import Execution

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = Path("results")  # default folder of results


def bounded(kind: type[int] | type[float], low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a reader of numbers from `low` to `high`."""

    def read(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            expected = f"{low} or more" if high == math.inf else f"{low} to {high}"
            raise argparse.ArgumentTypeError(f"expected {expected}, found {value}")
        return value

    read.__name__ = kind.__name__  # which argparse shows
    return read


def whole_numbers(text: str) -> list[int]:
    """Return the whole numbers from 1 in a text with commas, sorted. Raises ArgumentTypeError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[1-9][0-9]{0,6}", part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers from 1, such as 32,64,128, found {shown(text)}")
    return sorted({int(part) for part in parts})


class Parser(argparse.ArgumentParser):
    """Parser that raises InputError for a wrong command line, with the nearest option or setting."""

    settable = False  # true if its command takes settings of a configuration

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; refuse unknown ones with the nearest match."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = next((argument for argument in unknown if argument.startswith("--")), unknown[0]).partition("=")[0]
            plain = name.lstrip("-").replace("-", "_")
            settings = _settings_by_name() if self.settable else {}
            usual = suggest_option(plain, self._option_string_actions, self.settable)
            hint = "" if plain in settings else usual or self._nearest_option(name)
            if plain == "resume":
                hint = " The same command resumes what was interrupted"
            elif plain in ("config", "cfg", "config_file", "c"):
                hint = f" The file goes without an option: {self.prog} FILE"
            elif not hint and (close := difflib.get_close_matches(plain, settings, n=1, cutoff=0.8)):
                hint = f" Did you mean {'--' * name.startswith('--')}{settings[close[0]]}?"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint and '.' + hint}")
        return options, unknown

    def _nearest_option(self, name: str) -> str:
        """Return a hint of the closest option, without counting the dashes that all of them share."""
        options = {option.lstrip("-"): option for option in self._option_string_actions if option != name}
        close = difflib.get_close_matches(name.lstrip("-").lower(), options, n=1, cutoff=0.6)
        return f" Did you mean {options[close[0]]}?" if close else ""

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the message and the command whose help to read."""
        raise InputError(f"{message} (see {self.prog} --help)")


Option = Callable[[argparse._ActionsContainer], object]  # function that adds an option or an argument to a parser


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


def _settings_by_name() -> dict[str, str]:
    """Return the shortest dotted setting of a shipped configuration by the name that it ends in."""
    from lm.store.user_cache import remember

    def write() -> dict[str, str]:
        from lm.config.components import resolve
        from lm.config.reading import load_config
        from lm.config.tree import flatten
        from lm.training.run import RunConfig

        try:
            settings = flatten(resolve(load_config(Path("char_tiny")), RunConfig))
        except InputError:  # nothing is shipped
            return {}
        by_depth = sorted((setting for setting in settings if "." in setting), key=lambda setting: -setting.count("."))
        return {setting.rpartition(".")[2]: setting for setting in by_depth}

    return dict(remember("settings", None, write))


# options -------------------------------------------------------------------------------------------------------------


def option(name: str, about: str, type: Any = None, metavar: str | None = None, **settings: Any) -> Option:
    """Return an option, or an argument, with its help, the type and name of its value, and settings of argparse."""
    settings |= {key: value for key, value in (("type", type), ("metavar", metavar)) if value is not None}
    return lambda parser: parser.add_argument(name, help=about, **settings)


def flag(name: str, about: str) -> Option:
    """Return an option without a value."""
    return option(name, about, action="store_true")


def repeated(name: str, about: str, metavar: str, type: Any = None, **settings: Any) -> Option:
    """Return an option that may be given several times."""
    return option(name, about, type, metavar, action="append", default=[], **settings)


def out_option(content: str = "folder of results") -> Option:
    """Return --out, the folder of results in which a command looks for runs or writes cells."""
    return option("--out", f"{content} (default: results)", Path, default=RESULTS)


def results(more: str = "") -> Option:
    """Return a folder of results as an argument; `more` names what else it may be."""
    about = f"folder of results, or of one experiment in it, or that one's name{more} (default: results)"
    return option("folder", about, Path, "DIR", nargs="?", default=RESULTS)


CONFIG = option("config", "a YAML file, or the name of a shipped one such as char_tiny", Path)
JSON = flag("--json", "print JSON for programs")
SET = option("--set", "change the configuration, e.g. --set trainer.max_steps=100", None, "KEY=VALUE")
LOGGERS = repeated(
    "--logger",
    "log the rows of history.csv too: tensorboard, wandb, mlflow, csv; several with commas (default: none)",
    "NAME",
    dest="loggers",
)
EXECUTOR = option(
    "--executor",
    "where cells are trained: local, ray, ray://HOST:PORT or slurm:partition=P,time=H:M:S (default: local)",
    None,
    "E",
    default="local",
)
SECONDS, MINUTES = Execution.checkpoint_seconds, Execution.hang_seconds / 60
CHECKPOINTS = option(
    "--checkpoint-seconds", f"seconds between checkpoints (default: {SECONDS:zg})", float, "S", default=SECONDS
)
WORKERS = option("--workers", "cells trained at a time (default: one a device, or one a core)", int)
HANG = option(
    "--hang-minutes",
    f"minutes without a heartbeat after which a cell's process is ended (default: {MINUTES:zg}; 0: never)",
    float,
    "M",
    default=MINUTES,
)
TRAIN = (out_option("folder of cells and reports"), CHECKPOINTS, SET)  # options of every command that trains

TRAIN_CELLS = (WORKERS, HANG)  # options of commands that train several cells


# output --------------------------------------------------------------------------------------------------------------


def console() -> "Console":
    """Return the console of the terminal; rich takes a while to import."""
    from rich.console import Console

    return Console()


def print_result(as_json: bool, content: Callable[[], Any], show: Callable[["Console"], object]) -> None:
    """Print content as JSON for programs, or what `show` prints on the console."""
    if as_json:
        print(json.dumps(content(), indent=2))
    else:
        show(console())


# values --------------------------------------------------------------------------------------------------------------


def experiment_folder(folder: Path) -> Path:
    """Return a folder, or where none exists the experiment or ladder of that name in `results`."""
    from lm.analysis.runs import is_experiment_or_search

    named = RESULTS / folder
    is_name = not folder.exists() and (is_experiment_or_search(named) or (named / "ladder.json").is_file())
    return named if is_name else folder


def execution_of(options: argparse.Namespace) -> Execution:
    """Check the options of a command that trains, and return how they have each cell trained. Raises InputError."""
    from lm.training.loggers import parse_loggers

    seconds, hang = options.checkpoint_seconds, getattr(options, "hang_minutes", MINUTES)
    workers = getattr(options, "workers", None)
    require_run_settings(options.out, seconds, workers, hang, lambda name: f"--{name.replace('_', '-')}")
    loggers = parse_loggers(getattr(options, "loggers", ()))
    return Execution(checkpoint_seconds=seconds, hang_seconds=60 * hang, loggers=loggers)
