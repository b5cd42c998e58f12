"""`lm completion`: a script by which a shell completes command lines, made by shtab."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import Any

from lm.cli.options import Command, option
from lm.config.tree import InputError

OR_FILE = {("ablate", "spec"): "experiment", ("sweep", "spec"): "sweep"}
OR_FILE |= {("fit", "config"): "configuration", ("count", "config"): "configuration"}
"""Arguments that take the name of something shipped or a YAML file, with the kind of what is shipped."""

RUN_ARGUMENTS = ("cell", "left", "right")
"""Arguments that take a run, whose folders lie among the files."""

FOLDER_METAVARS = ("DIR", "EXPERIMENT")
"""Names in the help of arguments that take a folder."""


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the completion script of a shell."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """Return the script that a shell reads to complete command lines. Raises InputError without shtab."""
    try:
        import shtab
    except ImportError:
        raise InputError("lm completion: needs the package shtab; install it with: pip install shtab") from None
    from lm.cli.entry import build_parsers

    top, commands = build_parsers()
    names = names_by_argument(list(commands))
    for command, parser in commands.items():
        for action in parser._actions:
            argument = (command, action.dest)
            if argument in OR_FILE:
                action.complete = _name_or_file("_".join(argument), names[argument])  # type: ignore[attr-defined]
            elif argument in names:
                action.choices = names[argument]
            elif action.type is Path or action.dest in RUN_ARGUMENTS:
                is_folder = action.metavar in FOLDER_METAVARS or (action.metavar, action.dest) == (None, "out")
                action.complete = shtab.DIRECTORY if is_folder else shtab.FILE  # type: ignore[attr-defined]
    text: str = shtab.complete(top, shell)
    return text


def names_by_argument(commands: list[str]) -> dict[tuple[str, str], list[str]]:
    """Return the names that each argument of a command takes, for arguments that take names."""
    from lm.config.reading import SHIPPED_FOLDERS, shipped_files
    from lm.data.public import DATASETS

    names = {argument: list(shipped_files(kind)) for argument, kind in OR_FILE.items()}
    everything = dict.fromkeys(name for kind in SHIPPED_FOLDERS for name in shipped_files(kind))
    return names | {
        ("cp", "name"): list(everything),
        ("reproduce", "names"): list(shipped_files("experiment")),
        ("help", "about"): commands,
        ("data", "name"): list(DATASETS),
    }


def _name_or_file(argument: str, names: Sequence[str]) -> dict[str, object]:
    """Complete one of `names` or a YAML file; the end of the function's name tells shtab to add slashes to folders."""
    function, words = f"_lm_{argument}_or_file", join(names)
    yaml = r"string match -r '.*(?:\.(?:yaml|yml)|/)(?:\t.*)?$'"
    patterns = [f"-W {join([words])}", "-f -X '!*.yaml'", "-f -X '!*.yml'", "-d"]
    bash = "; ".join(f'compgen {pattern} -- "$1"' for pattern in patterns)
    zsh = f"compadd -- {words}; _files -g '*.(yaml|yml)'"
    fish = f"printf '%s\\n' {words}; __fish_complete_path (commandline -ct) | {yaml}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f"{function}() {{ {bash}; }}",
            "zsh": f"{function}() {{ {zsh}; }}",
            "fish": f"function {function}; {fish}; end",
        },
    }


COMMANDS = {
    "completion": Command(
        "print a script by which a shell completes commands, options, files and names of what is shipped",
        ("lm completion bash", "lm completion fish"),
        run,
        option("shell", "the shell that reads the script", choices=("bash", "zsh", "fish")),
    ),
}
