"""The `lm` command: one function a command. Nothing heavy is imported before a command needs it."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm.arguments import parser
from lm.config import InputError, Tree, load_yaml, nearest, override, parse_value

BAD_INPUT = 2
INTERRUPTED = 130


def _split(arguments: list[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Takes the dotted overrides (`--optim.lr 3e-4`, `--optim.lr=3e-4`, `--seed 1`) out of a command line."""
    kept: list[str] = []
    overrides: list[tuple[str, Any]] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not ("." in key or key == "seed"):
            kept.append(argument)
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise InputError(f"{argument}: needs a value, as in {argument}=VALUE")
            text = queue.pop(0)
        overrides.append((key, parse_value(text)))
    return kept, overrides


def _settings(texts: Sequence[str], overrides: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--set {text}: expected KEY=VALUE, as in --set optim.lr=3e-4")
        settings[key.strip()] = parse_value(value)
    return {**settings, **overrides}


def _check_out(out: Path) -> None:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out}: {there} is a file; expected a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"--out {out}: {there} cannot be written to")


def _fit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _check_out(options.out)
    tree: Tree = override(load_yaml(options.config), _settings(options.settings, overrides))
    from rich.console import Console

    from lm.cell import check
    from lm.report.run import show_run
    from lm.results import Store
    from lm.sweep.progress import step_lines
    from lm.trainer import Execution, train, write_work

    cell, store = check(tree), Store(options.out)
    store.recover(cell.id)
    if store.finished(cell.id):
        print(f"already trained: {store.directory(cell.id)}", file=sys.stderr)
    else:
        train(write_work(cell, store), step_lines(), Execution(checkpoint_seconds=options.checkpoint_seconds))
    if not store.finished(cell.id):  # a second process of a multi-device run, whose first one reports
        return 0
    return 0 if show_run(store, cell.id, Console()) == "ok" else 1


def _ablate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.sweep.experiment import load_experiment

    _check_out(options.out)
    settings = _settings(options.settings, overrides)
    if "seed" in settings:
        raise InputError("seed: an experiment has several; use --seeds 0,1,2")
    seeds = None if options.seeds is None else parse_value(f"[{options.seeds}]")
    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers: expected 1 or more, found {options.workers}")
    experiment = load_experiment(options.spec, settings, seeds, options.tier)
    from lm.sweep.ablate import ablate

    return ablate(
        experiment,
        options.out,
        options.workers,
        options.plan,
        options.retry_failed,
        options.checkpoint_seconds,
        options.underpowered,
    )


def _sweep(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _check_out(options.out)
    settings = _settings(options.settings, overrides)
    if "seed" in settings:
        raise InputError("seed: a sweep's trials may have several; give them with seeds in its file")
    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers: expected 1 or more, found {options.workers}")
    from lm.sweep.spec import load_sweep

    spec = load_sweep(options.spec, settings, options.trials)
    from lm.sweep.search import sweep

    return sweep(spec, options.out, options.workers, options.checkpoint_seconds, options.plan)


def _report(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if not options.folder.is_dir():
        siblings = [str(p) for p in options.folder.parent.iterdir()] if options.folder.parent.is_dir() else []
        raise InputError(f"{options.folder}: no such folder.{nearest(options.folder, siblings)}")
    from rich.console import Console

    if (options.folder / "study.json").is_file():
        from lm.report.study import write_study

        write_study(options.folder, Console())
        return 0
    from lm.report.write import write_report

    write_report(options.folder, Console())
    return 0


def _evaluate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    changes = _settings(options.settings, overrides)
    foreign = [key for key in changes if not key.startswith("data.")]
    if foreign:
        raise InputError(f"lm evaluate takes settings of the data alone, such as data.corpus, not {foreign[0]!r}")
    lengths = [] if options.lengths is None else parse_value(f"[{options.lengths}]")
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 1 for length in lengths):
        raise InputError(f"--lengths: expected whole numbers of tokens, as in 64,128, found {options.lengths!r}")
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
    "evaluate": _evaluate,
    "generate": _generate,
    "list": _list,
    "verify": _verify,
    "translate": _translate,
    "count": _count,
}

SETTABLE = ("fit", "ablate", "sweep", "evaluate", "count")
"""The commands that take settings of the configuration, `--optim.lr 3e-4`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    try:
        given, rest = _split(list(sys.argv[1:] if arguments is None else arguments))
        if given and not given[0].startswith("-") and given[0] not in COMMANDS:
            raise InputError(
                f"no command {given[0]!r}.{nearest(given[0], list(COMMANDS))} Choose from {', '.join(COMMANDS)}"
            )
        options = parser().parse_args(given)
        if options.command is None:
            parser().print_help()
            return 0
        foreign = [key for key, _ in rest if (options.command, key) != ("generate", "seed")]
        if foreign and options.command not in SETTABLE:
            raise InputError(f"lm {options.command} takes no setting {foreign[0]!r}")
        return COMMANDS[options.command](options, dict(rest))
    except InputError as error:
        print(f"lm: {error}", file=sys.stderr)
        return BAD_INPUT
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns Ctrl-C into SystemExit(1), and SIGTERM into a SystemExit of its own.
        if isinstance(error, SystemExit) and not (
            isinstance(error.__context__, KeyboardInterrupt) or _by_signal(error)
        ):
            raise
        print("lm: interrupted; the same command takes up where this one stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _by_signal(error: SystemExit) -> bool:
    return isinstance(error.__context__, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException"
