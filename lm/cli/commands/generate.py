"""`lm generate`: a finished run goes on with a text."""

import argparse
import sys
from typing import Any

from lm.cli.options import Parser, add_run
from lm.execution.signal_handling import INTERRUPTED

HELP = "let a finished run go on with a text"
EXAMPLES = (
    'lm generate quickstart/pre_norm/0 --prompt "def "',
    'lm generate 00f2b14b --prompt "def " --tokens 50 --top-p 0.9 --seed 1',
)


def add_options(command: Parser) -> None:
    add_run(command)
    command.add_argument("--prompt", required=True, metavar="TEXT", help="what to go on from")
    command.add_argument(
        "--tokens", type=int, metavar="N", help="the most to make (default: 200, or as many as it has positions for)"
    )
    command.add_argument("--temperature", type=float, metavar="T", help="divides the logits (default: 1)")
    command.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only")
    command.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest with P of the probability")
    command.add_argument("--greedy", action="store_true", help="take the likeliest token always")
    command.add_argument("--seed", metavar="S", help="same seed, same text (default: 0)")
    command.add_argument("--cache", choices=("full", "int8", "none"), default="full", help="of keys and values")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.inference.finished import find
    from lm.inference.generate import chooser, write_text

    seed = overrides.get("seed", 0)
    choose = chooser(options.greedy, options.temperature, options.top_k, options.top_p, seed)
    folder = find(options.cell, options.out)
    try:
        write_text(folder, options.prompt, options.tokens, choose, options.cache)
    except KeyboardInterrupt:  # there is nothing to take up
        print("\nlm: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0
