"""`lm pack`: an experiment, a search or a ladder as one file."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import require_place

HELP = "write an experiment as one file, without weights"
EXAMPLES = ("lm pack results/quickstart", "lm pack results/quickstart --thin --out quickstart.lmpack")


def add_options(command: Parser) -> None:
    command.add_argument(
        "folder", type=Path, help="the folder of an experiment, a search or a ladder, such as results/quickstart"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="the pack (default: FOLDER.lmpack)")
    command.add_argument(
        "--thin",
        action="store_true",
        help="shorten learning curves to loss, gradient norm and validations: a tenth of the size",
    )


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if options.out is not None:
        require_place(options.out, "--out")
    from lm.report.pack import pack

    archive, expected = pack(options.folder, options.out, options.thin)
    held = f"{len(archive.cells)} of {expected} cells, {len(archive.members.get('curves', ()))} curves"
    print(f"packed: {archive.path}: {held}, {os.path.getsize(archive.path):,} bytes", file=sys.stderr)
    return 0
