"""`lm data`: public texts that experiments name."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import InputError

HELP = "fetch public texts that experiments name, or list them"
EXAMPLES = ("lm data", "lm data tinyshakespeare --to data")


def add_options(command: Parser) -> None:
    command.add_argument("name", nargs="?", help="which, such as tinyshakespeare (default: list them)")
    command.add_argument(
        "--to", type=Path, metavar="DIR", help="folder that gets a folder of that name (default: data)"
    )
    command.add_argument(
        "--from", type=Path, dest="source", metavar="DIR", help="take the files from this folder; nothing is fetched"
    )
    command.add_argument("--any", action="store_true", help="with --from: also where checksums differ")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.data.public import DATASETS, download_to

    if options.any and options.source is None:
        raise InputError("--any: is for files at hand; give --from DIR too")
    if options.name is None:
        if options.to is not None or options.source is not None:
            raise InputError(f"lm data: expected a name before --to or --from, one of {', '.join(DATASETS)}")
        for name, data in DATASETS.items():
            size = sum(file.size for file in data.files) / 1e6
            print(f"{name}: {data.about}")
            print(f"    {size:z.1f} MB; {data.licence}; {data.source}")
        return 0
    into = Path("data") if options.to is None else options.to
    written = download_to(options.name, into, options.source, options.any)
    said = ", ".join(map(str, written)) or f"nothing, all of {into / options.name} is there already"
    print(f"written: {said}", file=sys.stderr)
    return 0
