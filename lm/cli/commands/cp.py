"""`lm cp`: a shipped experiment to change."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser

HELP = "copy a shipped experiment, sweep or configuration with its base"
EXAMPLES = ("lm cp quickstart", "lm cp learning_rate mine")


def add_options(command: Parser) -> None:
    command.add_argument("name", help="of the experiment, such as quickstart")
    command.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="where to (default: here)")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.ablation.project import copies, put

    written = put(copies(options.name), options.folder, "DIR")
    said = ", ".join(map(str, written)) or "nothing, all is there already"
    print(f"written: {said}", file=sys.stderr)
    return 0
