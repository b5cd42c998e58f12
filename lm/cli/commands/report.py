"""`lm report`: table and figures once more, and in the formats of a paper."""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, called
from lm.config.tree import InputError, require_place

HELP = "rebuild table and figures from the records"
EXAMPLES = ("lm report quickstart", "lm report quickstart.lmpack --out report")


def add_options(command: Parser) -> None:
    command.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="folder",
        help="an experiment's name, its folder such as results/quickstart, or its pack; several share one report",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the report (default: the experiment's, or beside its pack)"
    )
    command.add_argument(
        "--format",
        metavar="F",
        help="md (with the usual figures), html, latex, csv, parquet, pdf, svg; several with commas",
    )
    command.add_argument(
        "--figures", choices=("usual", "all"), default="usual", help="three figures, or every one that has data"
    )
    command.add_argument("--columns", metavar="Q", help="the quantities of the table, such as nll,ece")
    command.add_argument(
        "--check", action="store_true", help="write nothing, and name the files that differ from what is rebuilt"
    )
    command.add_argument("--replace", action="store_true", help="write it even over a report that says more")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if len(options.folders) > 1 and options.out is None:
        raise InputError(f"a report of {len(options.folders)} experiments has no place; give --out DIR")
    with contextlib.ExitStack() as stack:
        from lm.report.pack import open_results

        options.folders = [called(folder) for folder in options.folders]
        places = [stack.enter_context(open_results(folder, options.out)) for folder in options.folders]
        require_place(places[0].report, "the report's folder", folder=True)
        return _report([place.folder for place in places], places[0].report, options)


def _report(folders: list[Path], into: Path, options: argparse.Namespace) -> int:
    """Writes a report, or checks the one that is there; returns the exit code."""
    from rich.console import Console

    from lm.analysis.ladder import FILE
    from lm.report.formats import check_report, parse_request, write_formats
    from lm.report.search import write_page, write_study
    from lm.report.write import write_report

    usual = len(folders) == 1 and options.format is None and options.columns is None and not options.check
    searches = [place for place in folders if os.path.isfile(place / "study.json")]
    if searches and [options.format, options.columns, options.check, len(folders)] == ["html", None, False, 1]:
        write_page(folders[0], into)
        print(f"report: {into / 'report.html'}", file=sys.stderr)
        return 0
    ladders = [place for place in folders if os.path.isfile(place / FILE)]
    page = len(folders) > 1 and options.format == "html" and options.columns is None  # one of whatever there is
    if searches and not (usual or page):
        raise InputError(
            f"{searches[0]}: is a search, whose report is table.md, trials.csv, figures and report.html, or that alone "
            "with --format html, as is a page of several; other formats, --columns and --check take experiments"
        )
    if ladders and not (usual or page):
        raise InputError(
            f"{ladders[0]}: is a ladder, whose report is table.md, table.csv, trends.csv and a figure, or a part of a "
            "page of several with --format html; else --format, --columns and --check take experiments, as its rungs"
        )
    if not usual:
        asked = parse_request(options.format, options.columns, several=len(folders) > 1, figures=options.figures)
        if options.check:
            return check_report(folders, into, asked)
        damaged = write_formats(folders, into, asked, Console(), options.replace)
        print(f"report: {into}", file=sys.stderr)
        return 1 if damaged else 0
    damaged = False
    if ladders:
        from lm.report.ladder_page import write_ladder_report

        damaged = write_ladder_report(folders[0], Console(), into, options.replace).damaged
    elif searches:
        write_study(folders[0], Console(), into, options.replace, options.figures == "all")
    else:
        results = write_report(folders[0], Console(), into, options.replace, options.figures == "all")
        damaged = results.harmed
    if into != options.folders[0]:
        print(f"report: {into / 'table.md'}", file=sys.stderr)
    return 1 if damaged else 0
