"""The commands of `lm`, a file each: what it takes and what it does. A new file here is a new command.

    HELP = "what it does, in a line"
    EXAMPLES = ("lm NAME", "lm NAME --option")            # two, which its help shows
    SETTABLE = True                                       # where it takes settings, --optim.lr 3e-4
    def add_options(command: Parser) -> None: ...
    def run(options: Namespace, overrides: dict) -> int:  # the exit code

Nothing heavy is imported before a command is run.
"""

import argparse
import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lm.cli.options import Parser


@dataclass(frozen=True)
class Command:
    """A command: its line of help, two examples, its options, what it does, and whether it takes settings."""

    help: str
    examples: tuple[str, ...]
    add_options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace, dict[str, Any]], int]
    settable: bool


@functools.cache
def commands() -> dict[str, Command]:
    """All of them by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found[info.name] = Command(
            module.HELP, module.EXAMPLES, module.add_options, module.run, getattr(module, "SETTABLE", False)
        )
    return found
