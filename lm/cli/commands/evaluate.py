"""`lm evaluate`: a finished run measured again."""

import argparse
from typing import Any

from lm.cli.options import Parser, add_run, add_settable, settings_of
from lm.config.plain import shown
from lm.config.tree import InputError, parse_value

HELP = "measure a finished run again"
EXAMPLES = (
    "lm evaluate quickstart/pre_norm/0 --lengths 64,256",
    "lm evaluate 00f2b14b --split validation --out results",
)
SETTABLE = True


def add_options(command: Parser) -> None:
    command.usage = "lm evaluate RUN [--split SPLIT] [--lengths 64,128] [--data.corpus CORPUS ...]"
    add_run(command)
    command.add_argument("--split", choices=("train", "validation", "test"), help="what to measure on (default: test)")
    command.add_argument("--lengths", metavar="N,M", help="measure at contexts of so many tokens too: 64,128")
    command.add_argument("--tokens", type=int, metavar="N", help="over which, at most (default: the run's, or 65536)")
    add_settable(command)


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    changes = settings_of(options, overrides)
    foreign = [key for key in changes if not key.startswith("data.")]
    if foreign:
        raise InputError(f"lm evaluate takes settings of the data alone, such as data.corpus, not {foreign[0]!r}")
    lengths = [] if options.lengths is None else parse_value(f"[{options.lengths}]", "--lengths")
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 1 for length in lengths):
        raise InputError(f"--lengths: expected whole numbers of tokens, as in 64,128, found {shown(options.lengths)}")
    if options.tokens is not None and options.tokens < max(lengths, default=1):
        least = max(lengths, default=1)
        raise InputError(f"--tokens: expected {least} or more, the longest of --lengths, found {options.tokens}")
    from rich.console import Console

    from lm.inference.finished import find
    from lm.inference.remeasure import Request, remeasure
    from lm.report.run import show_evaluations

    folder = find(options.cell, options.out)
    show_evaluations(remeasure(folder, Request(options.split, lengths, options.tokens, changes)), Console())
    return 0
