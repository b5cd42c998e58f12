"""What each command of `lm` does with its options. Nothing heavy is imported before a command needs it."""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lm.config import InputError, Tree, load_yaml, override, parse_value, require_place
from lm.plain import shown

INTERRUPTED = 130
MOST_WORKERS = 1024
"""Processes at a time on one machine."""


def _settings(texts: Sequence[str], overrides: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--set {text}: expected KEY=VALUE, as in --set optim.lr=3e-4")
        settings[key.strip()] = parse_value(value, f"--set {key.strip()}")
    return {**settings, **overrides}


def _check_output(options: argparse.Namespace) -> None:
    require_place(options.out, "--out", folder=True)
    if not 0 <= options.checkpoint_seconds < math.inf:
        raise InputError(f"--checkpoint-seconds: expected a number from 0, found {options.checkpoint_seconds}")
    workers = getattr(options, "workers", None)
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"--workers: expected 1 or more, {MOST_WORKERS} at most, found {shown(workers)}")


def _fit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _check_output(options)
    tree: Tree = override(load_yaml(options.config), _settings(options.settings, overrides))
    from rich.console import Console

    from lm.cell import check
    from lm.report.run import show_run
    from lm.results import Store
    from lm.sweep.progress import step_lines
    from lm.trainer import Execution, into_log, train

    cell, store = check(tree), Store(options.out)
    store.recover(cell.id)
    if store.finished(cell.id):
        print(f"already trained: {store.directory(cell.id)}", file=sys.stderr)
    else:
        with into_log() as begun:
            train(cell, store, step_lines(), Execution(checkpoint_seconds=options.checkpoint_seconds), begun=begun)
    if not store.finished(cell.id):  # a second process of a multi-device run, whose first one reports
        return 0
    if options.debug and (trace := store.record(cell.id).get("traceback")):
        print(trace, end="", file=sys.stderr)
    return 0 if show_run(store, cell.id, Console()) == "ok" else 1


def _ablate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.sweep.experiment import load_experiment

    _check_output(options)
    settings = _settings(options.settings, overrides)
    if given := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(given)}: an experiment has several; use --seeds 0,1,2")
    seeds = None if options.seeds is None else parse_value(options.seeds, "--seeds")
    if seeds is None:  # nothing, or what YAML takes for null
        seeds = options.seeds
    experiment = load_experiment(options.spec, settings, seeds, options.tier)
    from lm.sweep.ablate import Manner, ablate

    manner = Manner(
        options.out,
        options.workers,
        options.retry_failed,
        options.checkpoint_seconds,
        options.underpowered,
        options.arguments,
    )
    return ablate(experiment, manner, options.plan)


def _reproduce(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _check_output(options)
    from lm.sweep.ablate import Manner
    from lm.sweep.reproduce import find_experiments, reproduce

    files = find_experiments(options.experiments, options.names)
    seconds, given = options.checkpoint_seconds, options.arguments
    manner = Manner(options.out, options.workers, checkpoint_seconds=seconds, underpowered=True, command=given)
    return reproduce(files, options.tier, manner, options.plan, bool(options.names))


def _trace(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.pack import opened
    from lm.report.trace import trace

    with opened(options.folder) as place:
        trace(place.folder, options.arm, options.metric, Console(), place.pack)
    return 0


def _audit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.audit import audit, audit_cells
    from lm.report.audit import all_right, show_audit, to_json

    if options.cells is None:
        findings = audit(options.full)
    else:
        from lm.analysis import load
        from lm.pack import opened

        with opened(options.cells) as place:
            findings = list(audit_cells(load(place.folder)))
        if not findings:
            raise InputError(f"--cells {options.cells}: no arm has 12 finished seeds, with which a claim is possible")
    if options.json:
        print(to_json(findings))
    else:
        show_audit(findings, Console())
    return 0 if all_right(findings) else 1


def _sweep(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _check_output(options)
    settings = _settings(options.settings, overrides)
    if given := {"seed", "seeds"} & settings.keys():
        raise InputError(f"{min(given)}: a sweep's trials may have several; give them with seeds in its file")
    from lm.sweep.spec import load_sweep

    spec = load_sweep(options.spec, settings, options.trials)
    from lm.sweep.search import sweep

    return sweep(spec, options.out, options.workers, options.checkpoint_seconds, options.plan)


def _report(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rich.console import Console

    from lm.pack import opened
    from lm.report.search import write_study
    from lm.report.write import write_report

    damaged = False
    with opened(options.folder, options.out) as place:
        require_place(place.report, "the report's folder", folder=True)
        if os.path.isfile(place.folder / "study.json"):
            write_study(place.folder, Console(), place.report, options.replace)
        else:
            results = write_report(place.folder, Console(), place.report, options.replace)
            damaged = bool(results.damaged or results.broken)
    if place.report != options.folder:
        print(f"report: {place.report / 'table.md'}", file=sys.stderr)
    return 1 if damaged else 0


def _pack(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if options.out is not None:
        require_place(options.out, "--out")
    from lm.pack import pack

    archive, expected = pack(options.folder, options.out, options.replace)
    held = f"{len(archive.cells)} of {expected} cells, {len(archive.members.get('curves', ()))} curves"
    print(f"packed: {archive.path}: {held}, {os.path.getsize(archive.path):,} bytes", file=sys.stderr)
    return 0


def _unpack(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    require_place(options.out, "--out", folder=True)
    from lm.pack import unpack

    found = unpack(options.file, options.out)
    print(f"unpacked: {found.folder}: {len(found.put)} cells put, {len(found.there)} there already", file=sys.stderr)
    for line in found.left_out:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if found.kept or found.busy else 0


def _evaluate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    changes = _settings(options.settings, overrides)
    foreign = [key for key in changes if not key.startswith("data.")]
    if foreign:
        raise InputError(f"lm evaluate takes settings of the data alone, such as data.corpus, not {foreign[0]!r}")
    lengths = [] if options.lengths is None else parse_value(f"[{options.lengths}]", "--lengths")
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 1 for length in lengths):
        raise InputError(f"--lengths: expected whole numbers of tokens, as in 64,128, found {shown(options.lengths)}")
    if options.tokens is not None and options.tokens < max(lengths, default=1):
        least = max(lengths, default=1)
        raise InputError(f"--tokens: expected {least} or more, the longest of --lengths, found {options.tokens}")
    from rich.console import Console

    from lm.generate import find
    from lm.remeasure import Request, remeasure
    from lm.report.run import show_evaluations

    folder = find(options.cell, options.out)
    show_evaluations(remeasure(folder, Request(options.split, lengths, options.tokens, changes)), Console())
    return 0


def _generate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.generate import chooser, find, write_text

    seed = overrides.get("seed", 0)
    choose = chooser(options.greedy, options.temperature, options.top_k, options.top_p, seed)
    folder = find(options.cell, options.out)
    try:
        write_text(folder, options.prompt, options.tokens, choose, options.cache)
    except KeyboardInterrupt:  # there is nothing to take up
        print("\nlm: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _list(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.catalogue import catalogue, lines
    from lm.cell import Run

    found = catalogue(Run)
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)))
    return 0


def _schema(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.results import to_json, write_atomic
    from lm.schema import KINDS, schema

    if options.write is None:
        print(to_json(schema(options.kind)), end="")
        return 0
    require_place(options.write, "--write", folder=True)
    for kind in KINDS:
        write_atomic(options.write / f"{kind}.json", to_json(schema(kind)))
    return 0


def _verify(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.verify.rows import select

    rows = select(options.ids)
    from lm.verify.compute import verify
    from lm.verify.show import all_right, console, print_findings, to_json

    findings = verify(rows)
    if options.json:
        print(to_json(findings))
    else:
        print_findings(findings, console())
    return 0 if all_right(findings) else 1


def _translate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.generate import find
    from lm.translate import translate

    folder = find(options.cell, options.out)
    print(translate(folder, options.split, options.beam, options.alpha, options.input).text)
    return 0


def _count(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    for name in ("context", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name}: expected 1 or more, found {value}")
    tree = override(load_yaml(options.config), _settings(options.settings, overrides))
    from lm.count import count

    found = count(tree, options.context, options.batch)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    from rich.console import Console

    from lm.report.count import show_count

    show_count(found, Console())
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace, dict[str, Any]], int]] = {
    "fit": _fit,
    "ablate": _ablate,
    "sweep": _sweep,
    "report": _report,
    "pack": _pack,
    "unpack": _unpack,
    "reproduce": _reproduce,
    "trace": _trace,
    "audit": _audit,
    "evaluate": _evaluate,
    "generate": _generate,
    "list": _list,
    "schema": _schema,
    "verify": _verify,
    "translate": _translate,
    "count": _count,
}

SETTABLE = ("fit", "ablate", "sweep", "evaluate", "count")
"""The commands that take settings of the configuration, `--optim.lr 3e-4`."""
