"""`lm help`, `lm list`, `lm schema` and `lm completion`: what `lm` accepts."""

import argparse
import json
from pathlib import Path
from shlex import join
from typing import Any

from lm.cli.options import JSON, Command, option
from lm.config.reading import SHIPPED_FOLDERS
from lm.config.tree import InputError, require_place
from lm.config.usual_names import suggest


def print_help(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the help of one command, or list all commands."""
    from lm.cli.entry import parsers

    top, inner = parsers()
    if options.about is not None and options.about not in inner:
        near = suggest(options.about, list(inner), "commands")
        raise InputError(f"no command {options.about!r}.{near} Choose from {', '.join(inner)}")
    (top if options.about is None else inner[options.about]).print_help()
    return 0


def list_components(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print all components with their options."""
    from lm.store.user_cache import remember

    def write() -> dict[str, str]:
        from lm.config.components import catalogue, catalogue_lines  # need the classes, whose import takes seconds
        from lm.training.run import RunConfig

        components = catalogue(RunConfig)
        return {"json": json.dumps(components, indent=2), "text": "\n".join(catalogue_lines(components))}

    print(remember("components", None, write)["json" if options.json else "text"])
    return 0


def write_schema(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print one JSON Schema, or write all three into a folder."""
    from lm.cli.schema import schema
    from lm.store.files import to_json, write_atomic

    if options.write is None:
        print(to_json(schema(options.kind)), end="")
        return 0
    require_place(options.write, "--write", folder=True)
    for kind in SHIPPED_FOLDERS:
        write_atomic(options.write / f"{kind}.json", to_json(schema(kind)))
    return 0


RUN_ARGUMENTS = ("cell", "left", "right")  # arguments that take a run, whose folders lie among the files


FILES = (
    "ls -p | grep '/$'; find . -maxdepth 3 '(' -name '.?*' -o -name cells ')' -prune -o -name '*.y*ml' -print "
    "2>/dev/null | cut -c3-"
)
"""Commands of any shell that list folders, and the YAML files in them and in theirs."""


def print_completion(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the script that a shell reads to complete command lines."""
    import shtab

    from lm.cli.entry import parsers

    top, inner = parsers.__wrapped__()  # of its own, as it is changed
    names = names_by_argument(list(inner))
    for command, parser in inner.items():
        for action in parser._actions:
            words = names.get((command, action.dest))
            if words and action.type is Path:
                action.complete = shtab.cmd(f"printf '%s\\n' {join(words)}; {FILES}")  # type: ignore[attr-defined]
            elif words:
                action.choices = words
            elif action.type is Path or action.dest in RUN_ARGUMENTS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(top, options.shell))
    return 0


def names_by_argument(commands: list[str]) -> dict[tuple[str, str], list[str]]:
    """Return the names that each argument of a command takes, for arguments that take names."""
    from lm.config.reading import shipped_files
    from lm.data.public import DATASETS

    names = {kind: list(shipped_files(kind)) for kind in SHIPPED_FOLDERS}
    configurations = {(command, "config"): names["configuration"] for command in ("fit", "count", "coordinates")}
    return configurations | {
        ("ablate", "spec"): names["experiment"],
        ("sweep", "spec"): names["sweep"],
        ("reproduce", "names"): names["experiment"],
        ("cp", "name"): list(dict.fromkeys(name for kind in names.values() for name in kind)),
        ("help", "about"): commands,
        ("data", "name"): list(DATASETS),
    }


COMMANDS = {
    "completion": Command(
        "print a script by which a shell completes commands, options, files and names of what is shipped",
        ("lm completion bash", "lm completion fish"),
        print_completion,
        option("shell", "the shell that reads the script", choices=("bash", "zsh", "fish")),
    ),
    "help": Command(
        "show the arguments of a command, with examples",
        ("lm help", "lm help ablate"),
        print_help,
        option("about", "name of a command (default: list all)", nargs="?", metavar="COMMAND"),
    ),
    "list": Command(
        "list every component that a configuration can choose", ("lm list", "lm list --json"), list_components, JSON
    ),
    "schema": Command(
        "print the JSON Schema of experiments, configurations or sweeps",
        ("lm schema experiment", "lm schema --write schema"),
        write_schema,
        option("kind", "kind of file", nargs="?", default="experiment", choices=[*SHIPPED_FOLDERS]),
        option("--write", "write all three schemas into this folder instead", Path, "DIR"),
    ),
}
