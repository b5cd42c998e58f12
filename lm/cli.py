"""The `lm` command. Nothing heavy is imported before a command needs it."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lm import __version__
from lm.config import InputError, Tree, load_yaml, nearest, override, parse_value

COMMANDS = ("fit", "ablate", "report", "generate", "list", "verify", "translate", "count")
BAD_INPUT = 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Answers a wrong command line with one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    """The one parser, a sub-command each for what `lm` can do."""
    top = Parser(
        prog="lm",
        description="Ablations for transformer language models: paired, honest, resumable.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"lm {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    fit = commands.add_parser(
        "fit",
        help="train one configuration",
        allow_abbrev=False,
        usage="lm fit CONFIG [--out DIR] [--optim.lr 3e-4 ...]",
    )
    fit.add_argument("config", type=Path, help="a YAML file such as experiments/bases/char_tiny.yaml")
    _common(fit)
    fit.set_defaults(run=_fit)

    ablate = commands.add_parser(
        "ablate", help="train every arm of an experiment with every seed, and report", allow_abbrev=False
    )
    ablate.add_argument("spec", type=Path, help="a YAML file such as experiments/quickstart.yaml")
    _common(ablate)
    ablate.add_argument("--seeds", help="instead of the file's: 0,1,2")
    ablate.add_argument("--workers", type=int, help="cells trained at a time (default: one a device, or one a core)")
    ablate.add_argument("--plan", action="store_true", help="show what would be trained, and how long it may take")
    ablate.add_argument("--retry-failed", action="store_true", help="train failed cells again")
    ablate.set_defaults(run=_ablate)

    report = commands.add_parser("report", help="rebuild table and figures from the records", allow_abbrev=False)
    report.add_argument("folder", type=Path, help="an experiment's folder, such as results/quickstart")
    report.set_defaults(run=_report)

    _generate_parser(commands.add_parser("generate", help="let a finished run go on with a text", allow_abbrev=False))

    listing = commands.add_parser("list", help="print every component there is to choose from", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="for machines")
    listing.set_defaults(run=_list)

    verify = commands.add_parser(
        "verify", help="check the library against the worked examples of the teaching texts", allow_abbrev=False
    )
    verify.add_argument("ids", nargs="*", metavar="ID", help="an example, such as attn-3x4 (default: all)")
    verify.add_argument("--json", action="store_true", help="for machines")
    verify.set_defaults(run=_verify)

    translate = commands.add_parser(
        "translate", help="translate with a finished run of an EncoderDecoder, and print BLEU", allow_abbrev=False
    )
    translate.add_argument("cell", metavar="RUN", help="a finished run: its folder, or the beginning of its id")
    translate.add_argument(
        "--split", choices=("train", "validation", "test"), default="test", help="what to translate (default: test)"
    )
    translate.add_argument("--beam", type=int, default=4, help="hypotheses at a time; 1 is greedy (default: 4)")
    translate.add_argument("--alpha", type=float, default=0.6, help="of the length penalty (default: 0.6)")
    translate.add_argument("--input", type=Path, help="translate the lines of this file instead of a split")
    translate.add_argument("--out", type=Path, default=Path("results"), help="folder of cells (default: results)")
    translate.set_defaults(run=_translate)

    count = commands.add_parser(
        "count", help="parameters, FLOPs a token, cache and activation memory of a configuration", allow_abbrev=False
    )
    count.add_argument("config", type=Path, help="a YAML file such as experiments/bases/char_tiny.yaml")
    count.add_argument("--context", type=int, metavar="N", help="tokens in a row (default: the data's)")
    count.add_argument("--batch", type=int, metavar="B", help="rows in a batch (default: the data's)")
    count.add_argument("--json", action="store_true", help="for machines")
    _settable(count)
    count.set_defaults(run=_count)
    return top


def _generate_parser(command: Parser) -> None:
    command.add_argument("cell", metavar="RUN", help="a finished run: its folder, or the beginning of its id")
    command.add_argument("--prompt", required=True, metavar="TEXT", help="what to go on from")
    command.add_argument(
        "--tokens", type=int, metavar="N", help="the most to make (default: 200, or as many as it has positions for)"
    )
    command.add_argument("--temperature", type=float, metavar="T", help="divides the logits (default: 1)")
    command.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only")
    command.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest with P of the probability")
    command.add_argument("--greedy", action="store_true", help="take the likeliest token always")
    command.add_argument("--seed", metavar="S", help="same seed, same text (default: 0)")
    command.add_argument("--cache", choices=("full", "int8", "none"), default="full", help="of keys and values")
    command.add_argument("--out", type=Path, default=Path("results"), help="folder of cells (default: results)")
    command.set_defaults(run=_generate)


def _common(command: Parser) -> None:
    command.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of cells and reports (default: results)"
    )
    command.add_argument(
        "--checkpoint-seconds", type=float, default=20.0, metavar="S", help="seconds between checkpoints (default: 20)"
    )
    _settable(command)


def _settable(command: Parser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change the configuration, e.g. --set trainer.max_steps=100",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    try:
        given, rest = _split(list(sys.argv[1:] if arguments is None else arguments))
        if given and not given[0].startswith("-") and given[0] not in COMMANDS:
            raise InputError(f"no command {given[0]!r}.{nearest(given[0], COMMANDS)} Choose from {', '.join(COMMANDS)}")
        options = parser().parse_args(given)
        if options.command is None:
            parser().print_help()
            return 0
        foreign = [key for key, _ in rest if (options.command, key) != ("generate", "seed")]
        if foreign and options.command not in ("fit", "ablate", "count"):
            raise InputError(f"lm {options.command} takes no setting {foreign[0]!r}")
        return int(options.run(options, dict(rest)))
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

    from lm.report.run import show_run
    from lm.results import Store
    from lm.sweep.progress import step_lines
    from lm.trainer import Execution, check, train, write_work

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
    from lm.sweep.plan import load_experiment

    _check_out(options.out)
    settings = _settings(options.settings, overrides)
    if "seed" in settings:
        raise InputError("seed: an experiment has several; use --seeds 0,1,2")
    seeds = None if options.seeds is None else parse_value(f"[{options.seeds}]")
    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers: expected 1 or more, found {options.workers}")
    experiment = load_experiment(options.spec, settings, seeds)
    from lm.sweep.ablate import ablate

    return ablate(
        experiment, options.out, options.workers, options.plan, options.retry_failed, options.checkpoint_seconds
    )


def _report(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if not options.folder.is_dir():
        siblings = [str(p) for p in options.folder.parent.iterdir()] if options.folder.parent.is_dir() else []
        raise InputError(f"{options.folder}: no such folder.{nearest(options.folder, siblings)}")
    from rich.console import Console

    from lm.report.write import write_report

    write_report(options.folder, Console())
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
    from lm.trainer import Run

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
