"""`lm report`, `lm trace` and `lm transfer`: tables and figures, the cells of a number, and answers by setting."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Command, console, experiment_folder, flag, option, out_option
from lm.config.plain import shown
from lm.config.tree import InputError, nearest, require_place


def report(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write the reports of experiments in the requested formats."""
    if len(options.folders) > 1 and options.out is None:
        raise InputError(f"a report of {len(options.folders)} experiments needs a folder; give --out DIR")
    with contextlib.ExitStack() as stack:
        from lm.report.pack import open_results
        from lm.report.write import parse_request, pointer, write_reports

        folders = [experiment_folder(folder) for folder in options.folders]
        sources = [stack.enter_context(open_results(folder, options.out)) for folder in folders]
        into = sources[0].report
        require_place(into, "the report's folder", folder=True)
        request = parse_request(options.format, options.columns, len(folders) > 1, options.figures)
        reports = write_reports([source.folder for source in sources], into, request, console(), options.all)
        print(pointer(into) if {"md", "html"} <= {*request.formats} else f"report: {into}", file=sys.stderr)
        return 1 if any(report.damaged for report in reports) else 0


def trace(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print where the numbers of an arm or a run come from."""
    from lm.analysis.results import read_manifest
    from lm.report.pack import can_be_packed, open_results, rungs_of
    from lm.report.trace import trace as print_trace

    folder, arm, metric = options.folder, options.arm, options.metric
    if not folder.exists() and can_be_packed(options.out / folder):
        folder = options.out / folder
    elif metric is None and (run_of_arm := _find_run(folder, options.out)) is not None:
        folder, arm, metric = *run_of_arm, arm
    with open_results(folder) as source:
        experiment = source.folder
        if rungs := {rung.name.removeprefix(f"{experiment.name}."): rung for rung in rungs_of(experiment)}:
            fitting = [name for name in rungs if arm is not None and arm.startswith(f"{name}.")]
            if not fitting:
                hint = f", found {shown(arm)}.{nearest(arm.partition('.')[0], list(rungs))}" if arm else "."
                expected = f"expected RUNG.ARM after it{hint} Its rungs are {', '.join(rungs)}"
                raise InputError(f"{folder}: is a ladder; {expected}")
            rung = max(fitting, key=len)  # one name may begin another
            experiment, arm = rungs[rung], arm[len(rung) + 1 :]
        if metric is None or arm is None:
            manifest = read_manifest(experiment)
            if arm is None:
                raise InputError(f"{folder}: expected an arm after it, one of {', '.join(manifest['arms'])}")
            metric = manifest["metric"]
        print_trace(experiment, arm, metric, console(), source.pack)
    return 0


def transfer(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print how often cheaper settings have answered as the dearest one does."""
    if options.to is not None:
        require_place(options.to, "--to")
    from lm.report.pack import can_be_packed, open_results
    from lm.report.render import markdown_page, print_section
    from lm.report.transfer import transfer_sections
    from lm.store.files import write_atomic

    sources = [experiment_folder(folder) for folder in options.folders]
    sources = sources or [path for path in sorted(options.out.glob("*")) if can_be_packed(path)]
    with contextlib.ExitStack() as stack:
        sections = transfer_sections([stack.enter_context(open_results(source)).folder for source in sources])
    for section in sections:
        print_section(section, console())
    if options.to is not None:
        write_atomic(options.to, markdown_page(sections))
        print(f"written: {options.to}", file=sys.stderr)
    return 0


def _find_run(path: Path, out: Path) -> tuple[Path, str] | None:
    """Return the experiment's folder and the arm of a run; None for an experiment or a pack. Raises InputError."""
    from lm.analysis.runs import NO_EXPERIMENT, experiments_using, find_one, is_experiment_or_search, runs
    from lm.store.archive import ENDING

    name = str(path)
    if (path / "record.json").is_file():
        cell = path.resolve()
        out, name = cell.parent.parent, cell.name
    elif path.exists() or is_experiment_or_search(path) or path.with_name(f"{path.name}{ENDING}").exists():
        return None
    match = find_one(name, out)
    if match.experiment != NO_EXPERIMENT:
        return out / match.experiment, match.arm
    users = {(run.experiment, run.arm): run for run in experiments_using(match.cell, runs(out).runs)}
    if len(users) != 1:
        names = ", ".join(run.name for run in users.values())
        raise InputError(f"{path}: {f'belongs to {names}; give one of them' if users else 'belongs to no experiment'}")
    experiment, arm = next(iter(users))
    return out / experiment, arm


COMMANDS = {
    "report": Command(
        "rebuild tables and figures from the records",
        ("lm report quickstart", "lm report quickstart.lmpack --out report"),
        report,
        option("folders", "an experiment's name, folder or pack; several share one report", Path, "folder", nargs="+"),
        option("--out", "folder of the report (default: the experiment's, or beside its pack)", Path, "DIR"),
        option("--format", "md (with the usual figures), html, latex, csv, pdf, svg; several with commas", None, "F"),
        option("--figures", "three figures, or every one that has data", choices=("usual", "all"), default="usual"),
        option("--columns", "the quantities of the table, such as nll,ece", None, "Q"),
        flag("--all", "print every table and note, not the first table alone"),
    ),
    "trace": Command(
        "print the cells behind a number of a table, and the commands that made them",
        ("lm trace quickstart swiglu nll", "lm trace quickstart/swiglu/0"),
        trace,
        option(
            "folder", "an experiment's name, folder or pack; or a run: its name or id's beginning", Path, "EXPERIMENT"
        ),
        option("arm", "one of its arms, of a ladder RUNG.ARM; left out after a run", nargs="?"),
        option("metric", "a quantity, or a path into records: initial/entropy (default: the headline)", nargs="?"),
        out_option(),
        usage="lm trace EXPERIMENT ARM [METRIC], or lm trace RUN [METRIC]",
    ),
    "transfer": Command(
        "print how often cheaper settings (smaller, shorter, on one text) have answered as the dearest one does",
        ("lm transfer", "lm transfer results/reference/*.lmpack --to transfer.md"),
        transfer,
        option("folders", "experiments and ladders, as folders or packs (default: all of --out)", Path, nargs="*"),
        out_option(),
        option("--to", "write the tables to a file of Markdown too", Path, "FILE"),
    ),
}
