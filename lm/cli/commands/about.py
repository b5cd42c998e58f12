"""`lm help`, `lm list` and `lm schema`: commands that describe what `lm` accepts."""

import argparse
import json
from pathlib import Path
from typing import Any

from lm.cli.options import Command, Parser, add_json
from lm.config.tree import InputError, nearest, require_place


def add_help_options(parser: Parser) -> None:
    """Add the arguments of `lm help`."""
    parser.add_argument("about", nargs="?", metavar="COMMAND", help="name of a command (default: list all)")


def print_help(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the help of one command, or list all commands."""
    from lm.cli.entry import parsers

    top, inner = parsers()
    if options.about is not None and options.about not in inner:
        near = nearest(options.about, list(inner))
        raise InputError(f"no command {options.about!r}.{near} Choose from {', '.join(inner)}")
    (top if options.about is None else inner[options.about]).print_help()
    return 0


def add_list_options(parser: Parser) -> None:
    """Add the options of `lm list`."""
    add_json(parser)


def list_components(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print all components with their options."""
    from lm.store.answers import remember

    print(remember("components", None, _write_catalogue)["json" if options.json else "text"])
    return 0


def _write_catalogue() -> dict[str, str]:
    """Return what `lm list` prints, by its form; needs the classes, whose import takes seconds."""
    from lm.config.components import catalogue, catalogue_lines
    from lm.training.run import RunConfig

    components = catalogue(RunConfig)
    return {"json": json.dumps(components, indent=2), "text": "\n".join(catalogue_lines(components))}


def add_schema_options(parser: Parser) -> None:
    """Add the arguments of `lm schema`."""
    kinds = ("experiment", "configuration", "sweep")
    parser.add_argument("kind", nargs="?", default=kinds[0], choices=kinds, help="kind of file (default: experiment)")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write all three schemas into this folder instead")


def write_schema(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print one JSON Schema, or write all three into a folder."""
    from lm.cli.schema import KINDS, schema
    from lm.store.files import to_json, write_atomic

    if options.write is None:
        print(to_json(schema(options.kind)), end="")
        return 0
    require_place(options.write, "--write", folder=True)
    for kind in KINDS:
        write_atomic(options.write / f"{kind}.json", to_json(schema(kind)))
    return 0


COMMANDS = {
    "help": Command(
        "show the arguments of a command, with examples", ("lm help", "lm help ablate"), add_help_options, print_help
    ),
    "list": Command(
        "list every component that a configuration can choose",
        ("lm list", "lm list --json"),
        add_list_options,
        list_components,
    ),
    "schema": Command(
        "print the JSON Schema of experiments, configurations or sweeps",
        ("lm schema experiment", "lm schema --write schema"),
        add_schema_options,
        write_schema,
    ),
}
