"""`lm init`: a small project to begin with."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser

HELP = "write a small project: an experiment that runs at once, a base, a component of one's own"
EXAMPLES = ("lm init demo", "lm init .")


def add_options(command: Parser) -> None:
    command.add_argument("folder", type=Path, metavar="DIR", help="where to; made if it is not there")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.ablation.project import put, starter

    put(starter(), options.folder, "DIR")
    inside = "" if options.folder == Path() else f"cd {shlex.quote(str(options.folder))} && "
    print(f"written: {options.folder}: next, {inside}lm ablate mine.yaml", file=sys.stderr)
    return 0
