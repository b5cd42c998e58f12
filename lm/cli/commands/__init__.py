"""The commands of `lm`: each module here has a table of one command or of a few related ones.

    COMMANDS = {"name": Command("what it does, in a line", ("lm name", "lm name --json"), run, JSON)}

`run(options, settings)` runs it and returns the exit code; its options follow. Nothing heavy is imported before a
command runs.
"""

import functools
import importlib
import pkgutil

from lm.cli.options import Command


@functools.cache
def commands() -> dict[str, Command]:
    """Return all commands by name."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return dict(sorted(item for module in modules for item in module.COMMANDS.items()))
