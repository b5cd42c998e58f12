"""`lm report`: the tables and figures of finished results, also in the formats of a paper."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Command, flag, option, resolve_experiment_folder
from lm.config.tree import InputError, require_place


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write the reports of experiments in the requested formats."""
    if len(options.folders) > 1 and options.out is None:
        raise InputError(f"a report of {len(options.folders)} experiments needs a folder; give --out DIR")
    with contextlib.ExitStack() as stack:
        from rich.console import Console

        from lm.report.pack import open_results
        from lm.report.write import parse_request, pointer, write_reports

        folders = [resolve_experiment_folder(folder) for folder in options.folders]
        sources = [stack.enter_context(open_results(folder, options.out)) for folder in folders]
        into = sources[0].report
        require_place(into, "the report's folder", folder=True)
        request = parse_request(options.format, options.columns, len(folders) > 1, options.figures)
        reports = write_reports([source.folder for source in sources], into, request, Console(), options.all)
        print(pointer(into) if {"md", "html"} <= {*request.formats} else f"report: {into}", file=sys.stderr)
        return 1 if any(report.damaged for report in reports) else 0


COMMANDS = {
    "report": Command(
        "rebuild tables and figures from the records",
        ("lm report quickstart", "lm report quickstart.lmpack --out report"),
        run,
        option(
            "folders",
            "an experiment's name, its folder such as results/quickstart, or its pack; several share one report",
            type=Path,
            nargs="+",
            metavar="folder",
        ),
        option(
            "--out", "folder of the report (default: the experiment's, or beside its pack)", type=Path, metavar="DIR"
        ),
        option(
            "--format",
            "md (with the usual figures), html, latex, csv, pdf, svg; several with commas",
            metavar="F",
        ),
        option("--figures", "four figures, or every one that has data", choices=("usual", "all"), default="usual"),
        option("--columns", "the quantities of the table, such as nll,ece", metavar="Q"),
        flag("--all", "print every table and note, not the first table alone"),
    ),
}
