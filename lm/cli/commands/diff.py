"""`lm diff`: what differs between two runs, two arms or two configurations."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.cli.options import Parser
from lm.config.reading import load_config
from lm.config.tree import InputError, Tree, load_yaml

if TYPE_CHECKING:
    from lm.store.record import Record

HELP = "say in what two runs, two arms or two configurations differ"
EXAMPLES = ("lm diff quickstart/pre_norm quickstart/post_norm", "lm diff a.yaml b.yaml --json")


def add_options(command: Parser) -> None:
    what = "a run (experiment/arm/seed, its folder, the beginning of its id), an arm (experiment/arm), or a YAML file"
    command.add_argument("left", metavar="A", help=what)
    command.add_argument("right", metavar="B", help="another of the same kind")
    command.add_argument("--out", type=Path, default=Path("results"), help="folder of results (default: results)")
    command.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    files = [_is_configuration(one) for one in (options.left, options.right)]
    if files[0] != files[1]:
        odd = options.left if files[0] else options.right
        other = options.right if files[0] else options.left
        raise InputError(f"{odd} is a configuration and {other} is none; expected two of one kind")
    from rich.console import Console

    from lm.analysis.run_diff import diff_configurations, diff_runs
    from lm.report.run import diff_json, show_diff

    if files[0]:
        found = diff_configurations(_resolved(options.left), _resolved(options.right))
    else:
        sides = [_side(one, options.out) for one in (options.left, options.right)]
        found = diff_runs((sides[0][0], sides[1][0]), (sides[0][1], sides[1][1]))
    if options.json:
        print(json.dumps(diff_json(found), indent=2))
    else:
        show_diff(found, (options.left, options.right), Console(), measured=not files[0])
    return 0


def _is_configuration(given: str) -> bool:
    return given.endswith((".yaml", ".yml"))


def _resolved(given: str) -> Tree:
    """The configuration in a file, every default filled in. Raises InputError where it could not be trained."""
    from lm.training.cell import checked_unread

    tree = load_config(Path(given))
    try:
        return checked_unread(tree)
    except InputError as error:
        raise InputError(f"{given}: {error}") from None


def _side(given: str, out: Path) -> "tuple[Tree, list[Record]]":
    """The configuration of a run or an arm, and its records. Raises InputError where it has none yet."""
    from lm.analysis.run_lookup import find_run_or_arm
    from lm.store.store import Store

    store, found = find_run_or_arm(given, out)
    records = [run.record for run in found if run.record is not None]
    if not records:
        raise InputError(f"{given}: {found[0].name} is {found[0].state}; expected one that has ended")
    well = [record for record in records if record["status"] == "ok"] or records[:1]
    return load_yaml(Store(store).directory(well[0]["id"]) / "config.yaml"), well
