"""`lm translate`: a finished encoder-decoder at work."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, add_run

HELP = "translate with a finished run of an EncoderDecoder, and print BLEU"
EXAMPLES = ("lm translate translation/post_norm/0 --beam 4", "lm translate 00f2b14b --input sentences.txt")


def add_options(command: Parser) -> None:
    add_run(command)
    command.add_argument(
        "--split", choices=("train", "validation", "test"), default="test", help="what to translate (default: test)"
    )
    command.add_argument("--beam", type=int, default=4, help="hypotheses at a time; 1 is greedy (default: 4)")
    command.add_argument("--alpha", type=float, default=0.6, help="of the length penalty (default: 0.6)")
    command.add_argument("--input", type=Path, help="translate the lines of this file instead of a split")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.inference.finished import find
    from lm.inference.translate import translate

    folder = find(options.cell, options.out)
    print(translate(folder, options.split, options.beam, options.alpha, options.input).text)
    return 0
