"""`make faults`: injects faults into small runs and compares each with an undisturbed one."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from program import make_parser, run_program

from faults.faults import FAULTS, chosen
from faults.place import require_linux
from faults.rows import Row, console, show, write
from faults.run import DIFFERS, inject
from lm.config.tree import InputError, require_place

HELP = "kill, stop, tear, fill and disconnect small runs, and compare what they come to with one left alone"
EXAMPLES = ("make faults FAULTS=--list", 'make faults FAULTS="--kills 20 --faults kills,checkpoint --out faults.json"')

MOST_KILLS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return 1 where a disturbed run differs from an undisturbed one."""
    parser = make_parser("faults", HELP, EXAMPLES)
    parser.add_argument(
        "--kills", type=int, default=100, metavar="N", help="of processes, over many runs (default: 100)"
    )
    parser.add_argument("--faults", metavar="A,B", help="which, separated by commas (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of what is drawn at random (default: 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write FILE.json")
    parser.add_argument("--list", action="store_true", help="print the faults")
    return run_program(parser, _run, arguments)


def _run(options: argparse.Namespace) -> int:
    faults = chosen([name.strip() for name in options.faults.split(",")] if options.faults is not None else [])
    if not 1 <= options.kills <= MOST_KILLS:
        raise InputError(f"--kills: expected 1 or more, {MOST_KILLS:,} at most, found {options.kills}")
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a name that ends in .json")
        require_place(options.out, "--out")
    if options.list:
        for fault in FAULTS.values():
            print(f"{fault.name}: {fault.about}")
        return 0
    require_linux()
    settings = {"kills": options.kills, "seed": options.seed}

    def write_rows(rows: list[Row]) -> None:
        if options.out is not None:
            write(rows, settings, options.out)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is to be ended
    try:
        rows = inject(faults, options.kills, options.seed, write_rows)
    finally:
        signal.signal(signal.SIGTERM, before)
    show(rows, console())
    return 1 if any(row.came_to == DIFFERS for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
