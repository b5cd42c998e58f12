"""`lm bench`: what all of this costs on this machine."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import InputError, require_place
from lm.execution.machine import MOST_WORKERS

HELP = "measure speed and memory on this machine, each way against another in turn"
EXAMPLES = ("lm bench --list", "lm bench step start --quick")


def add_options(command: Parser) -> None:
    command.add_argument("cases", nargs="*", metavar="CASE", help="what to measure (default: every case)")
    command.add_argument("--list", action="store_true", help="print the cases")
    command.add_argument("--quick", action="store_true", help="each at its smallest, to see that it works")
    command.add_argument("--out", type=Path, metavar="FILE", help="write FILE.json, and a figure beside it")
    command.add_argument("--show", type=Path, metavar="FILE", help="show what --out wrote and draw it again, no more")
    command.add_argument("--threads", type=int, metavar="N", help="threads of a process (default: one a core)")
    command.add_argument("--nanogpt", type=Path, metavar="PATH", help="a checkout of nanoGPT to compare with")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.bench.cases import CASES, chosen, require_checkout

    cases = chosen(options.cases)
    require_checkout(options.nanogpt)
    if options.threads is not None and not 1 <= options.threads <= MOST_WORKERS:
        raise InputError(f"--threads: expected 1 or more, {MOST_WORKERS} at most, found {options.threads}")
    if options.out is not None:
        if options.show is not None:
            raise InputError("--show draws what is there again and measures nothing; leave --out away")
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a name that ends in .json")
        require_place(options.out, "--out")
        require_place(options.out.with_suffix(".png"), "--out")
    if options.list:
        for name, case in CASES.items():
            print(f"{name}: {case.about}")
        return 0
    if options.show is not None:
        from lm.bench.run import show_again
        from lm.bench.show import console

        show_again(options.show, options.cases, console())
        return 0
    from lm.bench.asked import Asked
    from lm.bench.run import bench
    from lm.bench.show import console
    from lm.execution.machine import threads_each

    asked = Asked(options.threads or threads_each(1), options.quick, options.nanogpt)
    return bench(cases.values(), asked, options.out, console())
