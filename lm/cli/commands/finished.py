"""`lm evaluate`, `lm generate` and `lm translate`: commands that use the model of a finished run."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Command, Parser, add_out, add_settable, read_settings
from lm.config.plain import shown
from lm.config.tree import InputError, parse_value
from lm.execution.signal_handling import INTERRUPTED

SPLITS = ("train", "validation", "test")


def _add_run(parser: Parser) -> None:
    parser.add_argument(
        "cell", metavar="RUN", help="a finished run: experiment/arm/seed, its folder, or the beginning of its id"
    )
    add_out(parser, "folder of cells")


def add_evaluate_options(parser: Parser) -> None:
    """Add the arguments of `lm evaluate`."""
    parser.usage = "lm evaluate RUN [--split SPLIT] [--lengths 64,128] [--data.corpus CORPUS ...]"
    _add_run(parser)
    parser.add_argument("--split", choices=SPLITS, help="split to evaluate on (default: test)")
    parser.add_argument("--lengths", metavar="N,M", help="also evaluate at contexts of these numbers of tokens: 64,128")
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="most tokens to evaluate on (default: the run's, or 65536)"
    )
    add_settable(parser)


def evaluate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Measure a finished run again, also on other data or at other contexts."""
    changes = read_settings(options, overrides)
    other = [key for key in changes if not key.startswith("data.")]
    if other:
        raise InputError(f"lm evaluate takes settings of the data alone, such as data.corpus, not {other[0]!r}")
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


def add_generate_options(parser: Parser) -> None:
    """Add the arguments of `lm generate`."""
    _add_run(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to continue")
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="most tokens to generate (default: 200, or the model's longest context)"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="divisor of the logits (default: 1)")
    parser.add_argument("--top-k", type=int, metavar="K", help="sample from the K most likely tokens only")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the most likely with P of the probability"
    )
    parser.add_argument("--greedy", action="store_true", help="always take the most likely token")
    parser.add_argument("--seed", metavar="S", help="random seed: the same seed gives the same text (default: 0)")
    parser.add_argument("--cache", choices=("full", "int8", "none"), default="full", help="cache of keys and values")


def generate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Continue a text with a finished run."""
    from lm.inference.finished import find
    from lm.inference.generate import chooser, write_text

    seed = overrides.get("seed", 0)
    choose = chooser(options.greedy, options.temperature, options.top_k, options.top_p, seed)
    folder = find(options.cell, options.out)
    try:
        write_text(folder, options.prompt, options.tokens, choose, options.cache)
    except KeyboardInterrupt:  # nothing can be resumed
        print("\nlm: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def add_translate_options(parser: Parser) -> None:
    """Add the arguments of `lm translate`."""
    _add_run(parser)
    parser.add_argument("--split", choices=SPLITS, default="test", help="split to translate (default: test)")
    parser.add_argument("--beam", type=int, default=4, help="size of the beam; 1 is greedy (default: 4)")
    parser.add_argument("--alpha", type=float, default=0.6, help="exponent of the length penalty (default: 0.6)")
    parser.add_argument("--input", type=Path, help="translate the lines of this file instead of a split")


def translate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Translate a split or a file with a finished run."""
    from lm.inference.finished import find
    from lm.inference.translate import translate as translate_with

    folder = find(options.cell, options.out)
    print(translate_with(folder, options.split, options.beam, options.alpha, options.input).text)
    return 0


COMMANDS = {
    "evaluate": Command(
        "evaluate a finished run again",
        ("lm evaluate quickstart/swiglu/0 --lengths 64,256", "lm evaluate 00f2b14b --split validation --out results"),
        add_evaluate_options,
        evaluate,
        settable=True,
    ),
    "generate": Command(
        "continue a text with a finished run",
        (
            'lm generate quickstart/swiglu/0 --prompt "def "',
            'lm generate 00f2b14b --prompt "def " --tokens 50 --top-p 0.9 --seed 1',
        ),
        add_generate_options,
        generate,
    ),
    "translate": Command(
        "translate with a finished run of an EncoderDecoder, and print BLEU",
        ("lm translate translation/post_norm/0 --beam 4", "lm translate 00f2b14b --input sentences.txt"),
        add_translate_options,
        translate,
    ),
}
