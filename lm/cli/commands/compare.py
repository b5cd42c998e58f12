"""`lm compare`: verdicts on runs that other programs trained."""

import argparse
import math
from pathlib import Path
from typing import Any

from lm.cli.options import JSON, Command, console, flag, option, repeated
from lm.config.tree import InputError, nearest, require_place


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Compare runs that others trained, and print or write the result."""
    from lm.analysis.external.runs import CompareRequest, Pairing, gather
    from lm.analysis.external.trackers import read
    from lm.report.external import as_json, write_comparison
    from lm.stats.verdicts import Better

    if options.json and options.out is not None:
        raise InputError("--json: prints instead of writing a report; leave out --out")
    if options.paired and options.unpaired:
        raise InputError("--unpaired: not allowed with --paired")
    if options.out is not None:
        require_place(options.out, "--out", folder=True)
    if options.margin is not None and not 0 < options.margin < math.inf:
        raise InputError(f"--margin: expected a number above 0, found {options.margin}")
    metrics, higher = _split_names(options.metric), _split_names(options.higher_is_better or "")
    if other := [name for name in higher if name not in metrics]:
        choices = f"{nearest(other[0], metrics)} Metrics: {', '.join(metrics)}"
        raise InputError(f"--higher-is-better {other[0]}: is not in --metric.{choices}")
    if not metrics:
        raise InputError(f"--metric {options.metric!r}: expected the name of a quantity")
    pairing: Pairing = "paired" if options.paired else "unpaired" if options.unpaired else "auto"
    names = (options.baseline, metrics, options.arm_column, options.seed_column, higher)
    direction: Better = "lower" if options.higher_is_better is None or higher else "higher"
    margin = math.nan if options.margin is None else options.margin
    request = CompareRequest(*names, direction, tuple(map(tuple, options.only)), pairing, margin)
    runs = gather(read(options.path, options.runs_called), request)
    if options.json:
        print(as_json(runs))
    else:
        write_comparison(runs, console(), options.out)
    return 0


def _split_names(text: str) -> tuple[str, ...]:
    """Return names with commas between them, without duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _filter(text: str) -> tuple[str, str]:
    """Return a column and its text. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected COLUMN=TEXT, as in experiment=quickstart, found {text!r}")
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
            "path", "a CSV, parquet or JSON file with a row a run, or what MLflow or TensorBoard left", Path, "RUNS"
        ),
        option("--baseline", "the arm that others are compared with", None, "ARM", required=True),
        option("--metric", "the metrics to test; several with commas are a family of tests", None, "Q", required=True),
        option("--higher-is-better", "metrics for which it is; all others without Q", None, "Q", nargs="?", const=""),
        option("--margin", "equivalence margin of the first metric", float, "M"),
        option("--arm-column", "column, parameter or tag that names the arm (default: arm)", None, "C", default="arm"),
        option("--seed-column", "column of the seed (default: seed)", None, "C", default="seed"),
        repeated("--only", "use only runs with this text; also several of a column", "C=TEXT", type=_filter),
        option("--runs-called", "pattern of TensorBoard's folders, such as '{arm}/seed_{seed}'", None, "PATTERN"),
        flag("--paired", "pair runs by seed, on the seeds that two arms share"),
        flag("--unpaired", "do not pair runs by seed; no seeds are needed"),
        option("--out", "write tables, figures and a page there", Path, "DIR"),
        JSON,
    ),
}
