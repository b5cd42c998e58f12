"""`lm count`: what a configuration costs."""

import argparse
import json
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, add_settable, settings_of
from lm.config.reading import load_config
from lm.config.tree import InputError, override

HELP = "parameters, FLOPs a token, cache and activation memory of a configuration"
EXAMPLES = ("lm count char_tiny", "lm count char_tiny --context 256 model.width=128 --json")
SETTABLE = True


def add_options(command: Parser) -> None:
    command.add_argument("config", type=Path, help="a YAML file, or the name of a shipped one such as char_tiny")
    command.add_argument("--context", type=int, metavar="N", help="tokens in a row (default: the data's)")
    command.add_argument("--batch", type=int, metavar="B", help="rows in a batch (default: the data's)")
    command.add_argument("--json", action="store_true", help="for machines")
    add_settable(command)


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    for name in ("context", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name}: expected 1 or more, found {value}")
    tree = override(load_config(options.config), settings_of(options, overrides))
    from lm.inference.count import count

    found = count(tree, options.context, options.batch)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    from rich.console import Console

    from lm.report.run import show_count

    show_count(found, Console())
    return 0
