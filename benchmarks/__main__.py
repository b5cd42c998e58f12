"""`python -m benchmarks`, which `make bench` runs: speed and memory on this machine."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.asked import Asked
from benchmarks.cases import CASES, chosen, require_checkout
from benchmarks.machine import describe_machine, kind
from benchmarks.run import bench, show_again
from benchmarks.show import console
from lm.cli.options import Parser
from lm.config.tree import InputError, require_place
from lm.execution.machine import MOST_WORKERS, threads_each
from lm.execution.signal_handling import INTERRUPTED, cause, ended_by_signals

HELP = "measure speed and memory on this machine, each way against another in turn"
EXAMPLES = ("python -m benchmarks --list", "python -m benchmarks step start --quick", 'make bench BENCH="step start"')
BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 where a limit was overrun, 2 for bad input."""
    parser = make_parser()
    try:
        with ended_by_signals():
            return _run(parser.parse_args(arguments))
    except InputError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"{parser.prog}: {cause()}", file=sys.stderr)
        return INTERRUPTED


def make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m benchmarks",
        description=f"{HELP[:1].upper()}{HELP[1:]}.",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="what to measure (default: every case)")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--quick", action="store_true", help="each at its smallest, to see that it works")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write FILE.json and a figure beside it; in a folder, named by the processor",
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="show what --out wrote and draw it again, no more")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a process (default: one a core)")
    parser.add_argument("--nanogpt", type=Path, metavar="PATH", help="a checkout of nanoGPT to compare with")
    return parser


def _run(options: argparse.Namespace) -> int:
    cases = chosen(options.cases)
    require_checkout(options.nanogpt)
    if options.threads is not None and not 1 <= options.threads <= MOST_WORKERS:
        raise InputError(f"--threads: expected 1 or more, {MOST_WORKERS} at most, found {options.threads}")
    if options.out is not None:
        if options.show is not None:
            raise InputError("--show draws what is there again and measures nothing; leave --out away")
        if options.out.is_dir():
            options.out = options.out / f"{kind(describe_machine(1))}.json"
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a folder, or a name that ends in .json")
        require_place(options.out, "--out")
        require_place(options.out.with_suffix(".png"), "--out")
    if options.list:
        for name, case in CASES.items():
            print(f"{name}: {case.about}")
        return 0
    if options.show is not None:
        show_again(options.show, options.cases, console())
        return 0
    asked = Asked(options.threads or threads_each(1), options.quick, options.nanogpt)
    return bench(cases.values(), asked, options.out, console())


if __name__ == "__main__":
    sys.exit(main())
