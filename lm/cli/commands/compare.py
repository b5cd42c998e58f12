"""`lm compare`: runs that were made elsewhere."""

import argparse
import math
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import InputError, nearest, require_place

HELP = "compare runs made elsewhere: a table of arm, seed and metrics, or what W&B, MLflow, Optuna or TensorBoard left"
EXAMPLES = (
    "lm compare runs.csv --baseline plain --metric loss",
    "lm compare mlruns --baseline plain --metric val/accuracy --higher-is-better --out comparison",
)


def add_options(command: Parser) -> None:
    command.add_argument(
        "path",
        type=Path,
        metavar="RUNS",
        help="a CSV, parquet or JSON file with a row a run (columns arm, seed, metrics) or a quantity (cells.csv); "
        "or W&B's wandb folder, MLflow's mlruns or mlflow.db, Optuna's journal or database, TensorBoard's folder",
    )
    command.add_argument("--baseline", required=True, metavar="ARM", help="the arm that the others are compared with")
    command.add_argument(
        "--metric", required=True, metavar="Q", help="the quantity that is judged; several with commas are one family"
    )
    command.add_argument(
        "--higher-is-better",
        nargs="?",
        const="",
        metavar="Q",
        help="in these quantities, or in all judged of which nothing is known (default: lower is)",
    )
    command.add_argument("--margin", type=float, metavar="M", help="within which arms count as equivalent in the first")
    command.add_argument(
        "--arm-column", default="arm", metavar="C", help="what tells arms apart: a column, parameter or tag (arm)"
    )
    command.add_argument("--seed-column", default="seed", metavar="C", help="the same of seeds (default: seed)")
    command.add_argument(
        "--only", action="append", default=[], metavar="C=TEXT", help="take only the runs that say so; may be repeated"
    )
    command.add_argument(
        "--runs-called", metavar="PATTERN", help="how TensorBoard's folders are called, such as '{arm}/seed_{seed}'"
    )
    pairing = command.add_mutually_exclusive_group()
    pairing.add_argument("--paired", action="store_true", help="pair runs by seed, on the seeds that two arms share")
    pairing.add_argument("--unpaired", action="store_true", help="do not pair runs by seed; no seeds are needed")
    command.add_argument("--out", type=Path, metavar="DIR", help="write tables, figures and a page there")
    command.add_argument("--json", action="store_true", help="print comparisons and notes for programs")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.analysis.external.detect import read
    from lm.analysis.external.runs import CompareRequest, Pairing, gather
    from lm.report.external import as_json, write_comparison

    if options.out is not None:
        require_place(options.out, "--out", folder=True)
    margin = math.nan if options.margin is None else options.margin
    if not (math.isnan(margin) or 0 < margin < math.inf) or (options.margin is not None and math.isnan(margin)):
        raise InputError(f"--margin: expected a number above 0, found {options.margin}")
    metrics = _names(options.metric)
    higher = _names(options.higher_is_better or "")
    if other := [name for name in higher if name not in metrics]:
        raise InputError(
            f"--higher-is-better {other[0]}: is not judged.{nearest(other[0], metrics)} Judged: {', '.join(metrics)}"
        )
    if not metrics:
        raise InputError(f"--metric {options.metric!r}: expected the name of a quantity")
    pairing: Pairing = "paired" if options.paired else "unpaired" if options.unpaired else "auto"
    asked = CompareRequest(
        options.baseline,
        metrics,
        options.arm_column,
        options.seed_column,
        higher,
        "lower" if options.higher_is_better is None or higher else "higher",
        tuple(map(_wanted, options.only)),
        pairing,
        margin,
    )
    runs = gather(read(options.path, options.runs_called), asked)
    if options.json and options.out is not None:
        raise InputError("--json: is printed in the place of a report; leave out --out")
    if options.json:
        print(as_json(runs))
    else:
        write_comparison(runs, Console(), options.out)
    return 0


def _names(given: str) -> tuple[str, ...]:
    """Names with commas between, each once."""
    return tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def _wanted(given: str) -> tuple[str, str]:
    """A column and its text. Raises InputError."""
    name, equals, text = given.partition("=")
    if not equals or not name:
        raise InputError(f"--only {given}: expected COLUMN=TEXT, as in --only experiment=quickstart")
    return name, text
