"""`lm export` and `lm import`: models in the files of `transformers`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import SET, Command, console, option, out_option
from lm.config.tree import InputError, path_name, require_place


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
    "export": Command(
        "write a finished run's model, tokenizer and card for transformers",
        ("lm export quickstart/swiglu/0 --to swiglu", "lm export 00f2b14b --to model --family llama --dtype bfloat16"),
        export,
        option("cell", "a finished run: experiment/arm/seed, its folder, or the beginning of its id", None, "RUN"),
        out_option("folder of cells"),
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
