"""`lm verify`: the worked examples."""

import argparse
from typing import Any

from lm.cli.options import Parser

HELP = "check the library against the worked examples of the teaching texts"
EXAMPLES = ("lm verify", "lm verify attn-3x4 --json")


def add_options(command: Parser) -> None:
    command.add_argument("ids", nargs="*", metavar="ID", help="an example, such as attn-3x4 (default: all)")
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.verify.rows import select

    rows = select(options.ids)
    from lm.verify.compute import verify
    from lm.verify.show import all_right, console, print_findings, to_json

    findings = verify(rows)
    if options.json:
        print(to_json(findings))
    else:
        print_findings(findings, console())
    return 0 if all_right(findings) else 1
