"""`lm reproduce`: the experiments that carry claims, or the ladders."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, add_output, add_settable, add_workers, check_output, settings_of
from lm.config.reading import shipped_files
from lm.config.tree import InputError

HELP = "run the experiments that carry claims, or all ladders, and print one table over all"
EXAMPLES = ("lm reproduce glu --workers 2", "lm reproduce --first-seeds 6 --plan")
SETTABLE = True


def add_options(command: Parser) -> None:
    command.add_argument("names", nargs="*", metavar="NAME", help="experiments, such as glu (default: all)")
    command.add_argument(
        "--tier", choices=("C", "G", "L"), default="C", help="C: claims on a CPU, G: on a GPU, L: ladders (default: C)"
    )
    command.add_argument(
        "--experiments",
        type=Path,
        default=Path("experiments"),
        help="folder of experiment files (default: experiments, or those that are shipped)",
    )
    add_output(command)
    add_settable(command)
    command.add_argument(
        "--first-seeds", type=int, metavar="N", help="N seeds of each experiment at most, its first (default: all)"
    )
    add_workers(command)
    command.add_argument("--plan", action="store_true", help="show what would be trained, and how long it may take")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    check_output(options)
    from lm.ablation.ablate import Manner
    from lm.ablation.reproduce import Portion, find_experiments, reproduce

    settings = settings_of(options, overrides)
    if some := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(some)}: an experiment has several; use --first-seeds")
    portion = Portion(options.tier, settings, options.first_seeds)
    if options.tier == "L" and options.first_seeds:
        raise InputError("--tier L: a rung has seeds of its own; expected no --first-seeds")

    folder = options.experiments
    known = list(shipped_files("experiment").values())
    if folder == Path("experiments") and not folder.is_dir() and known:
        folder = known[0].parent
    files = find_experiments(folder, options.names, "ladder" if options.tier == "L" else "claims")
    seconds, given = options.checkpoint_seconds, options.arguments
    manner = Manner(
        options.out,
        options.workers,
        checkpoint_seconds=seconds,
        underpowered=True,
        command=given,
        hang_seconds=60 * options.hang_minutes,
    )
    if options.tier == "L":
        from lm.ablation.ladders import reproduce_ladders

        return reproduce_ladders(files, settings, manner, options.plan)
    return reproduce(files, portion, manner, options.plan, bool(options.names))
