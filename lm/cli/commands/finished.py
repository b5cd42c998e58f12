"""`lm evaluate`, `lm generate` and `lm translate`: commands that use the model of a finished run."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import SET, Command, flag, option, out_option, read_settings
from lm.config.plain import shown
from lm.config.tree import InputError, parse_value
from lm.execution.signal_handling import INTERRUPTED

SPLITS = ("train", "validation", "test")


RUN = (
    option("cell", "a finished run: experiment/arm/seed, its folder, or the beginning of its id", metavar="RUN"),
    out_option("folder of cells"),
)


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
        evaluate,
        *RUN,
        option("--split", "split to evaluate on (default: test)", choices=SPLITS),
        option("--lengths", "also evaluate at contexts of these numbers of tokens: 64,128", metavar="N,M"),
        option("--tokens", "most tokens to evaluate on (default: the run's, or 65536)", type=int, metavar="N"),
        SET,
        settable=True,
        usage="lm evaluate RUN [--split SPLIT] [--lengths 64,128] [--data.corpus CORPUS ...]",
    ),
    "generate": Command(
        "continue a text with a finished run",
        (
            'lm generate quickstart/swiglu/0 --prompt "def "',
            'lm generate 00f2b14b --prompt "def " --tokens 50 --top-p 0.9 --seed 1',
        ),
        generate,
        *RUN,
        option("--prompt", "text to continue", required=True, metavar="TEXT"),
        option(
            "--tokens", "most tokens to generate (default: 200, or the model's longest context)", type=int, metavar="N"
        ),
        option("--temperature", "divisor of the logits (default: 1)", type=float, metavar="T"),
        option("--top-k", "sample from the K most likely tokens only", type=int, metavar="K"),
        option("--top-p", "sample from the most likely with P of the probability", type=float, metavar="P"),
        flag("--greedy", "always take the most likely token"),
        option("--seed", "random seed: the same seed gives the same text (default: 0)", metavar="S"),
        option("--cache", "cache of keys and values", choices=("full", "none"), default="full"),
    ),
    "translate": Command(
        "translate with a finished run of an EncoderDecoder, and print BLEU",
        ("lm translate translation/post_norm/0 --beam 4", "lm translate 00f2b14b --input sentences.txt"),
        translate,
        *RUN,
        option("--split", "split to translate (default: test)", choices=SPLITS, default="test"),
        option("--beam", "size of the beam; 1 is greedy (default: 4)", type=int, default=4),
        option("--alpha", "exponent of the length penalty (default: 0.6)", type=float, default=0.6),
        option("--input", "translate the lines of this file instead of a split", type=Path),
    ),
}
