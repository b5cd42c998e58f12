"""`lm unpack`: the cells of a pack where an ablation can go on."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import require_place

HELP = "put the cells of a pack into a folder of results"
EXAMPLES = ("lm unpack quickstart.lmpack", "lm unpack quickstart.lmpack --out results")


def add_options(command: Parser) -> None:
    command.add_argument("file", type=Path, help="what `lm pack` made, such as results/quickstart.lmpack")
    command.add_argument("--out", type=Path, default=Path("results"), help="folder of cells (default: results)")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    require_place(options.out, "--out", folder=True)
    from lm.report.pack import unpack

    found = unpack(options.file, options.out)
    print(
        f"unpacked: {found.folder}: {len(found.added)} cells put, {len(found.already_present)} there already",
        file=sys.stderr,
    )
    for line in found.left_out:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if found.conflicting or found.busy else 0
