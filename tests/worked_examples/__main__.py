"""`make verify`: checks the library against the worked examples."""

import argparse
import sys
from collections.abc import Sequence

from program import make_parser, run_program

from worked_examples.rows import select

HELP = "check the library against the worked examples of the teaching texts"
EXAMPLES = ("make verify", 'make verify VERIFY="attn-3x4 --json"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return 1 where an example is off."""
    parser = make_parser("verify", HELP, EXAMPLES)
    parser.add_argument("ids", nargs="*", metavar="ID", help="an example, such as attn-3x4 (default: all)")
    parser.add_argument("--json", action="store_true", help="for machines")
    return run_program(parser, _run, arguments)


def _run(options: argparse.Namespace) -> int:
    rows = select(options.ids)
    from worked_examples.compute import verify
    from worked_examples.show import all_right, console, print_findings, to_json

    findings = verify(rows)
    if options.json:
        print(to_json(findings))
    else:
        print_findings(findings, console())
    return 0 if all_right(findings) else 1


if __name__ == "__main__":
    sys.exit(main())
