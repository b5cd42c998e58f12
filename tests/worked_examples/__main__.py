"""`make verify`: checks the library against the worked examples."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from program import make_parser, run_program

from worked_examples.judge import Finding, as_text
from worked_examples.rows import select

HELP = "check the library against the worked examples of the teaching texts"
EXAMPLES = ("make verify", 'make verify VERIFY="attn-3x4"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return 1 where an example is off."""
    parser = make_parser("verify", HELP, EXAMPLES)
    parser.add_argument("ids", nargs="*", metavar="ID", help="an example, such as attn-3x4 (default: all)")
    return run_program(parser, _run, arguments)


def _run(options: argparse.Namespace) -> int:
    rows = select(options.ids)
    from worked_examples.compute import verify

    findings = verify(rows)
    for finding in findings:
        print("\n  ".join(_lines(finding)))
    counts = Counter(finding.verdict for finding in findings)
    verdicts = ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())
    print(f"{len(findings)} worked examples; {verdicts}")
    return 1 if counts["OFF"] else 0


def _lines(finding: Finding) -> Iterator[str]:
    """Yield an example with its verdict, then its figures and what there is to say of them."""
    row, ours = finding.row, finding.ours
    yield f"{row.id}: {finding.verdict}: {row.formula}"
    for name in filter(ours.__contains__, row.quantities):
        printed = f", printed {as_text(row.differently_stated[name])}" if name in row.differently_stated else ""
        yield f"{name}: {as_text(ours[name])}{printed}"
    yield from filter(None, (row.erratum, row.note, *finding.reasons))


if __name__ == "__main__":
    sys.exit(main())
