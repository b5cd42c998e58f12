"""`lm export`: models in the files of `transformers`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Command, option, out_option


def export(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write the model of a finished run for other programs."""
    from lm.inference.export import export as write_model
    from lm.inference.finished import find

    exported = write_model(find(options.cell, options.out), options.to, options.family, options.dtype)
    print(f"written: {exported.folder}: a model of the family {exported.family}", file=sys.stderr)
    if exported.reason:
        print(f"lm: no published family has all of its parts: {exported.reason}", file=sys.stderr)
    return 0


COMMANDS = {
    "export": Command(
        "write a finished run's model, tokenizer and card for transformers",
        ("lm export quickstart/swiglu/0 --to swiglu", "lm export 00f2b14b --to model --family llama --dtype bfloat16"),
        export,
        option("cell", "a finished run: experiment/arm/seed, its folder, or the beginning of its id", metavar="RUN"),
        out_option("folder of cells"),
        option(
            "--to", "folder of the model, which must not exist or be empty", type=Path, required=True, metavar="DIR"
        ),
        option("--family", "family of the model, such as llama; lm is our own class (default: auto)", default="auto"),
        option("--dtype", "float64, float32, bfloat16 or float16 (default: that of the run)", metavar="TYPE"),
    ),
}
