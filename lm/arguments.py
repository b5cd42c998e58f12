"""The command line of `lm`: its commands and their options. Nothing heavy is imported."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from lm import __version__
from lm.config import InputError


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
    top.add_argument("--debug", action="store_true", help="show the traceback of any error; anywhere in the command")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    _training_parsers(commands)
    _report_parsers(commands)
    _model_parsers(commands)
    return top


def _evaluate_parser(command: Parser) -> None:
    command.usage = "lm evaluate RUN [--split SPLIT] [--lengths 64,128] [--data.corpus CORPUS ...]"
    command.add_argument("cell", metavar="RUN", help="a finished run: its folder, or the beginning of its id")
    command.add_argument("--split", choices=("train", "validation", "test"), help="what to measure on (default: test)")
    command.add_argument("--lengths", metavar="N,M", help="measure at contexts of so many tokens too: 64,128")
    command.add_argument("--tokens", type=int, metavar="N", help="over which, at most (default: the run's, or 65536)")
    command.add_argument("--out", type=Path, default=Path("results"), help="folder of cells (default: results)")
    _settable(command)


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


def _common(command: Parser) -> None:
    _output(command)
    _settable(command)


def _output(command: Parser) -> None:
    command.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of cells and reports (default: results)"
    )
    command.add_argument(
        "--checkpoint-seconds", type=float, default=20.0, metavar="S", help="seconds between checkpoints (default: 20)"
    )


def _settable(command: Parser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change the configuration, e.g. --set trainer.max_steps=100",
    )


def _training_parsers(commands: Any) -> None:
    fit = commands.add_parser(
        "fit",
        help="train one configuration",
        allow_abbrev=False,
        usage="lm fit CONFIG [--out DIR] [--optim.lr 3e-4 ...]",
    )
    fit.add_argument("config", type=Path, help="a YAML file such as experiments/bases/char_tiny.yaml")
    _common(fit)

    ablate = commands.add_parser(
        "ablate", help="train every arm of an experiment with every seed, and report", allow_abbrev=False
    )
    ablate.add_argument("spec", type=Path, help="a YAML file such as experiments/quickstart.yaml")
    _common(ablate)
    ablate.add_argument(
        "--seeds", help="instead of the file's: a number (6 for 0 to 5), a list (0,1,2 or 6,) or a range (0-5)"
    )
    ablate.add_argument("--workers", type=int, help="cells trained at a time (default: one a device, or one a core)")
    ablate.add_argument("--plan", action="store_true", help="show what would be trained, and how long it may take")
    ablate.add_argument("--retry-failed", action="store_true", help="train failed cells again")
    ablate.add_argument(
        "--underpowered", action="store_true", help="go on with seeds too few for any difference to be significant"
    )
    ablate.add_argument("--tier", default="", metavar="T", help="the experiment at another of its sizes, such as G")

    sweep = commands.add_parser("sweep", help="search for the best values of settings, and report", allow_abbrev=False)
    sweep.add_argument("spec", type=Path, help="a YAML file such as sweeps/learning_rate.yaml")
    _common(sweep)
    sweep.add_argument("--trials", type=int, metavar="N", help="instead of the file's")
    sweep.add_argument("--workers", type=int, help="cells trained at a time (default: one a device, or one a core)")
    sweep.add_argument("--plan", action="store_true", help="show what would be searched, and how long it may take")


def _report_parsers(commands: Any) -> None:
    report = commands.add_parser("report", help="rebuild table and figures from the records", allow_abbrev=False)
    report.add_argument("folder", type=Path, help="an experiment's folder, such as results/quickstart, or its pack")
    report.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the report (default: the experiment's, or beside its pack)"
    )
    report.add_argument("--replace", action="store_true", help="write it even where the report that is there says more")

    pack = commands.add_parser("pack", help="write an experiment as one file, without weights", allow_abbrev=False)
    pack.add_argument("folder", type=Path, help="the folder of an experiment or a search, such as results/quickstart")
    pack.add_argument("--out", type=Path, metavar="FILE", help="the pack (default: FOLDER.lmpack)")
    pack.add_argument("--replace", action="store_true", help="write it even over a pack that holds more")

    unpack = commands.add_parser("unpack", help="put the cells of a pack into a folder of results", allow_abbrev=False)
    unpack.add_argument("file", type=Path, help="what `lm pack` made, such as results/quickstart.lmpack")
    unpack.add_argument("--out", type=Path, default=Path("results"), help="folder of cells (default: results)")

    _evaluate_parser(commands.add_parser("evaluate", help="measure a finished run again", allow_abbrev=False))

    reproduce = commands.add_parser(
        "reproduce", help="run the experiments that carry claims, and print one table over all", allow_abbrev=False
    )
    reproduce.add_argument("names", nargs="*", metavar="NAME", help="experiments, such as glu (default: all)")
    reproduce.add_argument("--tier", choices=("C", "G"), default="C", help="C for a CPU, G for a GPU (default: C)")
    reproduce.add_argument("--experiments", type=Path, default=Path("experiments"), help="folder of experiment files")
    _output(reproduce)
    reproduce.add_argument("--workers", type=int, help="cells trained at a time (default: one a device or core)")
    reproduce.add_argument("--plan", action="store_true", help="show what would be trained, and how long it may take")

    trace = commands.add_parser(
        "trace", help="print the cells behind a number of a table, and the commands that make them", allow_abbrev=False
    )
    trace.add_argument("folder", type=Path, help="an experiment's folder, such as results/quickstart, or its pack")
    trace.add_argument("arm", help="one of its arms")
    trace.add_argument("metric", help="a quantity such as nll, or a path into the records such as initial/entropy")

    audit = commands.add_parser(
        "audit", help="check the statistics themselves on simulated experiments", allow_abbrev=False
    )
    audit.add_argument("--full", action="store_true", help="many more experiments, some minutes")
    audit.add_argument(
        "--cells", type=Path, metavar="DIR", help="an experiment's arms against themselves instead, 12 seeds or more"
    )
    audit.add_argument("--json", action="store_true", help="for machines")


def _model_parsers(commands: Any) -> None:
    _generate_parser(commands.add_parser("generate", help="let a finished run go on with a text", allow_abbrev=False))

    listing = commands.add_parser("list", help="print every component there is to choose from", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="for machines")

    schema = commands.add_parser(
        "schema", help="print the JSON Schema of experiments, configurations or sweeps", allow_abbrev=False
    )
    schema.add_argument(
        "kind",
        nargs="?",
        default="experiment",
        choices=("experiment", "configuration", "sweep"),
        help="which (default: experiment)",
    )
    schema.add_argument("--write", type=Path, metavar="DIR", help="write all three into this folder instead")

    verify = commands.add_parser(
        "verify", help="check the library against the worked examples of the teaching texts", allow_abbrev=False
    )
    verify.add_argument("ids", nargs="*", metavar="ID", help="an example, such as attn-3x4 (default: all)")
    verify.add_argument("--json", action="store_true", help="for machines")

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

    count = commands.add_parser(
        "count", help="parameters, FLOPs a token, cache and activation memory of a configuration", allow_abbrev=False
    )
    count.add_argument("config", type=Path, help="a YAML file such as experiments/bases/char_tiny.yaml")
    count.add_argument("--context", type=int, metavar="N", help="tokens in a row (default: the data's)")
    count.add_argument("--batch", type=int, metavar="B", help="rows in a batch (default: the data's)")
    count.add_argument("--json", action="store_true", help="for machines")
    _settable(count)
