"""`lm evaluate`, `generate`, `translate`, `export` and `import`: the model of a finished run, and how it gets there."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import SET, Command, bounded, console, flag, option, out_option, repeated, whole_numbers
from lm.config.tree import InputError, path_name, require_place
from lm.execution.signal_handling import INTERRUPTED

SPLITS = ("train", "validation", "test")
RUN = (
    option("cell", "a finished run: experiment/arm/seed, its folder, or the beginning of its id", None, "RUN"),
    out_option("folder of cells"),
)


def evaluate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Measure a finished run again, also on other data or at other contexts."""
    if other := [key for key in overrides if not key.startswith("data.")]:
        raise InputError(f"lm evaluate takes settings of the data alone, such as data.corpus, not {other[0]!r}")
    longest = max(options.lengths, default=1)
    if options.tokens is not None and options.tokens < longest:
        raise InputError(f"--tokens: expected {longest} or more, the longest of --lengths, found {options.tokens}")
    if options.limit and not options.tasks:
        raise InputError("--limit: counts the items of --tasks, which is missing")
    if options.tasks and overrides:
        raise InputError(f"--tasks: have data of their own; leave out --{next(iter(overrides))}")
    from lm.inference.finished import find
    from lm.inference.remeasure import Request, remeasure
    from lm.report.run import show_evaluations

    request = Request(options.split, options.lengths, options.tokens, overrides, options.tasks or (), options.limit)
    show_evaluations(remeasure(find(options.cell, options.out), request), console())
    return 0


def generate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Continue a text with a finished run."""
    from lm.inference.finished import find
    from lm.inference.generate import chooser, write_text

    choose = chooser(options.greedy, options.temperature, options.top_k, options.top_p, options.seed)
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


def export(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write the model of a finished run for other programs."""
    from lm.inference.export import export as write_model
    from lm.inference.finished import find

    exported = write_model(find(options.cell, options.out), options.to, options.family, options.dtype)
    print(f"written: {exported.folder}: a model of the family {exported.family}", file=sys.stderr)
    if exported.reason:
        print(f"lm: no published family has all of its parts: {exported.reason}", file=sys.stderr)
    return 0


def import_model(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Make a finished run of a model of another program."""
    if other := [key for key in overrides if not key.startswith("data.") or "tokenizer" in key]:
        raise InputError(f"{other[0]}: the model is as it was trained; give settings of the data, such as data.corpus")
    require_place(options.out, "--out", folder=True)
    name = None if options.name is None else path_name(options.name, "--as")
    from lm.inference.importer import import_run
    from lm.report.run import show_run
    from lm.store.store import Store

    folder = import_run(options.folder, options.out, overrides, name)
    show_run(Store(options.out), folder.name, console())
    return 0


COMMANDS = {
    "evaluate": Command(
        "evaluate a finished run again",
        ("lm evaluate quickstart/swiglu/0 --lengths 64,256", "lm evaluate 00f2b14b --tasks my_task.yaml --limit 100"),
        evaluate,
        *RUN,
        option("--split", "split to evaluate on (default: test)", choices=SPLITS),
        option("--lengths", "also evaluate at contexts of these numbers of tokens", whole_numbers, "N,M", default=[]),
        option("--tokens", "most tokens to evaluate on (default: the run's, or 65536)", bounded(int, 1), "N"),
        repeated("--tasks", "a task of lm-evaluation-harness: a YAML file or a name; may be repeated", "TASK"),
        option("--limit", "most items of each task, the first ones (default: all)", bounded(int, 1), "N"),
        SET,
        settable=True,
        usage="lm evaluate RUN [--split SPLIT] [--lengths 64,128] [--tasks TASK] [--data.corpus CORPUS ...]",
    ),
    "generate": Command(
        "continue a text with a finished run",
        (
            'lm generate quickstart/swiglu/0 --prompt "def "',
            'lm generate 00f2b14b --prompt "def " --tokens 50 --top-p 0.9 --seed 1',
        ),
        generate,
        *RUN,
        option("--prompt", "text to continue", None, "TEXT", required=True),
        option("--tokens", "most tokens to generate (default: 200, or the model's longest context)", int, "N"),
        option("--temperature", "divisor of the logits (default: 1)", float, "T"),
        option("--top-k", "sample from the K most likely tokens only", int, "K"),
        option("--top-p", "sample from the most likely with P of the probability", float, "P"),
        flag("--greedy", "always take the most likely token"),
        option("--seed", "random seed: the same seed gives the same text (default: 0)", int, "S", default=0),
        option("--cache", "cache of keys and values", choices=("full", "none"), default="full"),
    ),
    "translate": Command(
        "translate with a finished run of an EncoderDecoder, and print BLEU",
        ("lm translate translation/post_norm/0 --beam 4", "lm translate 00f2b14b --input sentences.txt"),
        translate,
        *RUN,
        option("--split", "split to translate (default: test)", choices=SPLITS, default="test"),
        option("--beam", "size of the beam; 1 is greedy (default: 4)", int, default=4),
        option("--alpha", "exponent of the length penalty (default: 0.6)", float, default=0.6),
        option("--input", "translate the lines of this file instead of a split", Path),
    ),
    "export": Command(
        "write a finished run's model, tokenizer and card for transformers",
        ("lm export quickstart/swiglu/0 --to swiglu", "lm export 00f2b14b --to model --family llama --dtype bfloat16"),
        export,
        *RUN,
        option("--to", "folder of the model, which must not exist or be empty", Path, "DIR", required=True),
        option("--family", "family of the model, such as llama; lm is our own class (default: auto)", default="auto"),
        option("--dtype", "float64, float32, bfloat16 or float16 (default: that of the run)", None, "TYPE"),
    ),
    "import": Command(
        "make a finished run of a model in the files of transformers, and measure it",
        ("lm import models/gpt2 --as gpt2", "lm import pythia-70m --data.context 512 --data.corpus.size 4000000"),
        import_model,
        option("folder", "folder with config.json, model.safetensors and tokenizer.json", Path, "DIR"),
        option("--as", "name of the run, then imported/NAME/0 (default: its id alone)", None, "NAME", dest="name"),
        out_option("folder of cells"),
        SET,
        settable=True,
        usage="lm import DIR [--as NAME] [--data.corpus CORPUS ...]",
    ),
}
