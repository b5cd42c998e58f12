"""`lm chaos`: faults injected into small runs, and what comes of them."""

import argparse
import signal
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.plain import shown
from lm.config.tree import InputError, require_place

HELP = "kill, stop, tear, fill and disconnect small runs, and compare what they come to with one left alone"
EXAMPLES = ("lm chaos --list", "lm chaos --kills 20 --faults kills,checkpoint --out chaos.json")

MOST_KILLS = 100_000


def add_options(command: Parser) -> None:
    command.add_argument(
        "--kills", type=int, default=100, metavar="N", help="of processes, over many runs (default: 100)"
    )
    command.add_argument("--faults", metavar="A,B", help="which, separated by commas (default: all)")
    command.add_argument("--seed", metavar="S", help="of what is drawn at random (default: 0)")
    command.add_argument("--out", type=Path, metavar="FILE", help="write FILE.json")
    command.add_argument("--list", action="store_true", help="print the faults")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.chaos.faults import FAULTS, chosen

    faults = chosen([name.strip() for name in options.faults.split(",")] if options.faults is not None else [])
    if not 1 <= options.kills <= MOST_KILLS:
        raise InputError(f"--kills: expected 1 or more, {MOST_KILLS:,} at most, found {options.kills}")
    seed = overrides.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InputError(f"--seed: expected a whole number, found {shown(seed)}")
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a name that ends in .json")
        require_place(options.out, "--out")
    if options.list:
        for fault in FAULTS.values():
            print(f"{fault.name}: {fault.about}")
        return 0
    from lm.chaos.place import require_linux
    from lm.chaos.rows import Row, console, show, write
    from lm.chaos.run import DIFFERS, chaos

    require_linux()
    asked = {"kills": options.kills, "seed": seed}
    out = options.out

    def keep(rows: list[Row]) -> None:
        if out is not None:
            write(rows, asked, out)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is to be ended
    try:
        rows = chaos(faults, options.kills, seed, keep)
    finally:
        signal.signal(signal.SIGTERM, before)
    show(rows, console())
    return 1 if any(row.came_to == DIFFERS for row in rows) else 0
