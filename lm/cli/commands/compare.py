"""`lm compare`: verdicts on runs that other programs trained."""

import argparse
import math
from pathlib import Path
from typing import Any

from lm.cli.options import Command, Parser, add_json
from lm.config.tree import InputError, nearest, require_place


def add_options(parser: Parser) -> None:
    """Add the arguments of `lm compare`."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="RUNS",
        help="a CSV, parquet or JSON file with one row per run (arm, seed, metrics) or per quantity (cells.csv); "
        "or MLflow's mlruns or mlflow.db, Optuna's journal or database, TensorBoard's folder",
    )
    parser.add_argument("--baseline", required=True, metavar="ARM", help="the arm that others are compared with")
    parser.add_argument(
        "--metric", required=True, metavar="Q", help="the metrics to test; several with commas are one family of tests"
    )
    parser.add_argument(
        "--higher-is-better",
        nargs="?",
        const="",
        metavar="Q",
        help="metrics for which higher is better; without names, all that lm does not know (default: lower)",
    )
    parser.add_argument("--margin", type=float, metavar="M", help="equivalence margin of the first metric")
    parser.add_argument(
        "--arm-column", default="arm", metavar="C", help="column, parameter or tag that names the arm (default: arm)"
    )
    parser.add_argument("--seed-column", default="seed", metavar="C", help="column of the seed (default: seed)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="C=TEXT", help="use only runs with this text; may be repeated"
    )
    parser.add_argument(
        "--runs-called", metavar="PATTERN", help="pattern of TensorBoard's folders, such as '{arm}/seed_{seed}'"
    )
    pairing = parser.add_mutually_exclusive_group()
    pairing.add_argument("--paired", action="store_true", help="pair runs by seed, on the seeds that two arms share")
    pairing.add_argument("--unpaired", action="store_true", help="do not pair runs by seed; no seeds are needed")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write tables, figures and a page there")
    add_json(parser)


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Compare runs that others trained, and print or write the result."""
    from rich.console import Console

    from lm.analysis.external.detect import read
    from lm.analysis.external.runs import CompareRequest, Pairing, gather
    from lm.report.external import as_json, write_comparison

    if options.out is not None:
        require_place(options.out, "--out", folder=True)
    margin = math.nan if options.margin is None else options.margin
    if not (math.isnan(margin) or 0 < margin < math.inf) or (options.margin is not None and math.isnan(margin)):
        raise InputError(f"--margin: expected a number above 0, found {options.margin}")
    metrics = _split_names(options.metric)
    higher = _split_names(options.higher_is_better or "")
    if other := [name for name in higher if name not in metrics]:
        raise InputError(
            f"--higher-is-better {other[0]}: is not in --metric.{nearest(other[0], metrics)} "
            f"Metrics: {', '.join(metrics)}"
        )
    if not metrics:
        raise InputError(f"--metric {options.metric!r}: expected the name of a quantity")
    pairing: Pairing = "paired" if options.paired else "unpaired" if options.unpaired else "auto"
    request = CompareRequest(
        options.baseline,
        metrics,
        options.arm_column,
        options.seed_column,
        higher,
        "lower" if options.higher_is_better is None or higher else "higher",
        tuple(map(_parse_filter, options.only)),
        pairing,
        margin,
    )
    runs = gather(read(options.path, options.runs_called), request)
    if options.json and options.out is not None:
        raise InputError("--json: prints instead of writing a report; leave out --out")
    if options.json:
        print(as_json(runs))
    else:
        write_comparison(runs, Console(), options.out)
    return 0


def _split_names(text: str) -> tuple[str, ...]:
    """Return names with commas between them, without duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _parse_filter(text: str) -> tuple[str, str]:
    """Return a column and its text. Raises InputError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--only {text}: expected COLUMN=TEXT, as in --only experiment=quickstart")
    return name, value


COMMANDS = {
    "compare": Command(
        "compare runs of other programs: a table of arm, seed and metrics, or files of their trackers",
        (
            "lm compare runs.csv --baseline plain --metric loss",
            "lm compare mlruns --baseline plain --metric val/accuracy --higher-is-better --out comparison",
        ),
        add_options,
        run,
    )
}
