"""`lm help`, `lm list`, `lm schema` and `lm doctor`: what `lm` accepts, and what this machine has."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import JSON, Command, option, out_option
from lm.config.tree import InputError, nearest, require_place

FILE_KINDS = ("experiment", "configuration", "sweep")


def print_help(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the help of one command, or list all commands."""
    from lm.cli.entry import parsers

    top, inner = parsers()
    if options.about is not None and options.about not in inner:
        near = nearest(options.about, list(inner))
        raise InputError(f"no command {options.about!r}.{near} Choose from {', '.join(inner)}")
    (top if options.about is None else inner[options.about]).print_help()
    return 0


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


def doctor(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print what is installed and what is wrong with it."""
    from lm.cli.doctor import examine, format_report

    report = examine(options.out)
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    for line in report["wrong"]:
        print(f"lm: {line}", file=sys.stderr)
    return 0 if report["ok"] else 1


COMMANDS = {
    "doctor": Command(
        "report what is installed, which devices there are, and what an experiment would choose and why",
        ("lm doctor", "lm doctor --json"),
        doctor,
        out_option(),
        JSON,
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
        option("kind", "kind of file (default: experiment)", nargs="?", default=FILE_KINDS[0], choices=FILE_KINDS),
        option("--write", "write all three schemas into this folder instead", type=Path, metavar="DIR"),
    ),
}
