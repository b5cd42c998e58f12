"""`lm report`: the tables and figures of finished results, also in the formats of a paper."""

import argparse
import contextlib
import os
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
        from lm.report.pack import open_results

        folders = [resolve_experiment_folder(folder) for folder in options.folders]
        sources = [stack.enter_context(open_results(folder, options.out)) for folder in folders]
        into = sources[0].report
        require_place(into, "the report's folder", folder=True)
        file, damaged = _write([source.folder for source in sources], into, options)
        if file is not None and (file == into or into != folders[0]):
            print(f"report: {file}", file=sys.stderr)
        return 1 if damaged else 0


def _write(folders: list[Path], into: Path, options: argparse.Namespace) -> tuple[Path | None, bool]:
    """Write a report; return the path to print, if any, and True if data are damaged."""
    from rich.console import Console

    from lm.analysis.ladder import FILE
    from lm.report.formats import parse_request, write_formats
    from lm.report.ladder_page import write_ladder_report
    from lm.report.search import write_page, write_study
    from lm.report.write import pointer, write_report

    is_default = len(folders) == 1 and options.format is None and options.columns is None
    is_html_page = options.format == "html" and options.columns is None
    is_overview = len(folders) > 1 and is_html_page
    searches = [folder for folder in folders if os.path.isfile(folder / "study.json")]
    ladders = [folder for folder in folders if os.path.isfile(folder / FILE)]
    if searches and is_html_page and len(folders) == 1:
        write_page(folders[0], into)
        print(f"report: {into / 'report.html'}", file=sys.stderr)
        return None, False
    if searches and not (is_default or is_overview):
        raise InputError(
            f"{searches[0]}: is a search; its report has table.md, trials.csv, figures and report.html, or report.html "
            "alone with --format html, also in a page of several; other formats and --columns take experiments"
        )
    if ladders and not (is_default or is_overview):
        raise InputError(
            f"{ladders[0]}: is a ladder; its report has table.md, table.csv, trends.csv and a figure, or a part of a "
            "page of several with --format html; --format and --columns take experiments, such as its rungs"
        )
    if not is_default:
        request = parse_request(options.format, options.columns, several=len(folders) > 1, figures=options.figures)
        return into, write_formats(folders, into, request, Console(), options.all)
    table = into / "table.md"
    if ladders:
        return table, write_ladder_report(folders[0], Console(), into, options.all).damaged
    if searches:
        write_study(folders[0], Console(), into, options.figures == "all")
        return table, False
    harmed = write_report(folders[0], Console(), into, options.figures == "all", options.all).harmed
    print(pointer(into), file=sys.stderr)
    return None, harmed


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
