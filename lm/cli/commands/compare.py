"""`lm compare`: verdicts on runs that other programs trained."""

import argparse
import math
from pathlib import Path
from typing import Any

from lm.cli.options import JSON, Command, exclusive, flag, option
from lm.config.tree import InputError, nearest, require_place


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
        choices = f"{nearest(other[0], metrics)} Metrics: {', '.join(metrics)}"
        raise InputError(f"--higher-is-better {other[0]}: is not in --metric.{choices}")
    if not metrics:
        raise InputError(f"--metric {options.metric!r}: expected the name of a quantity")
    pairing: Pairing = "paired" if options.paired else "unpaired" if options.unpaired else "auto"
    names = (options.baseline, metrics, options.arm_column, options.seed_column, higher)
    lower, only = options.higher_is_better is None or higher, tuple(map(_parse_filter, options.only))
    request = CompareRequest(*names, "lower" if lower else "higher", only, pairing, margin)
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
        run,
        option(
            "path",
            "a CSV, parquet or JSON file with one row per run (arm, seed, metrics) or per quantity (cells.csv); "
            "or MLflow's mlruns or mlflow.db, or TensorBoard's folder",
            type=Path,
            metavar="RUNS",
        ),
        option("--baseline", "the arm that others are compared with", required=True, metavar="ARM"),
        option(
            "--metric", "the metrics to test; several with commas are one family of tests", required=True, metavar="Q"
        ),
        option(
            "--higher-is-better",
            "metrics for which higher is better; without names, all that lm does not know (default: lower)",
            nargs="?",
            const="",
            metavar="Q",
        ),
        option("--margin", "equivalence margin of the first metric", type=float, metavar="M"),
        option(
            "--arm-column", "column, parameter or tag that names the arm (default: arm)", default="arm", metavar="C"
        ),
        option("--seed-column", "column of the seed (default: seed)", default="seed", metavar="C"),
        option(
            "--only", "use only runs with this text; may be repeated", action="append", default=[], metavar="C=TEXT"
        ),
        option("--runs-called", "pattern of TensorBoard's folders, such as '{arm}/seed_{seed}'", metavar="PATTERN"),
        exclusive(
            flag("--paired", "pair runs by seed, on the seeds that two arms share"),
            flag("--unpaired", "do not pair runs by seed; no seeds are needed"),
        ),
        option("--out", "write tables, figures and a page there", type=Path, metavar="DIR"),
        JSON,
    ),
}
