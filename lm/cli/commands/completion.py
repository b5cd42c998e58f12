"""`lm completion`: what a shell reads to complete command lines."""

import argparse
from typing import Any

from lm.cli.options import Parser

HELP = "print what a shell reads to complete commands, options, files and names of what is shipped"
EXAMPLES = ("lm completion bash", "lm completion fish")


def add_options(command: Parser) -> None:
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.cli.completion import script
    from lm.cli.entry import parsers

    print(script(*parsers(), options.shell))
    return 0
