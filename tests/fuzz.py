"""Damaged input: files, manifests and command lines that no one should ever be hurt by.

A case is a valid set of files and a valid command line, to which something was done: a value replaced by a hostile one,
a key lost or added, bytes of a file damaged, an argument spoilt. `outcome` runs a command line in this process.
"""

import contextlib
import copy
import io
import json
import random
import signal
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import yaml
from helpers import RUN
from records import make_manifest

from lm.cli import main
from lm.config.tree import override

SECONDS, PATIENCE = 10, 120
"""Of the processor that a case may take, and on the clock, where it waits for something or the machine is busy."""

BASE = override(
    RUN,
    {
        "data.corpus": {"class_path": "LocalText", "init_args": {"path": "text.txt", "document": "line"}},
        "data.tokenizer": "Characters",
        "data.context": 4,
        "data.batch_size": 2,
        "model.width": 8,
        "model.layers": 1,
        "trainer.max_steps": 4,
        "trainer.precision": "32-true",
        "evaluate": {"lengths": [4, 8], "tokens": 64},
    },
)
EXPERIMENT: dict[str, Any] = {
    "title": "A demonstration",
    "base": "base.yaml",
    "baseline": "rope",
    "seeds": [0, 1],
    "common": {"optim.lr": 0.003, "model.norm": "RMSNorm"},
    "arms": {
        "rope": {},
        "alibi": {"model.position": "Alibi"},
        "few": {"model.attention": {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 1, "window": 3}}},
    },
    "metric": "nll",
    "margin": {"nll": 0.01},
    "confirmatory": ["alibi"],
    "declared": {"few": ["parameters"]},
    "axes": {"optim.lr": "nuisance"},
    "tiers": {"G": {"common": {"model.layers": 2}, "seeds": 3}},
    "notes": "None.",
    "claims": [
        {
            "claim": "It is so.",
            "metric": "nll",
            "arm": "alibi",
            "relation": "less",
            "margin": 0.1,
            "source": "us",
            "kind": "ours",
        },
        {
            "claim": "It grows.",
            "metric": "log nll",
            "over": {"rope": 1, "few": 2},
            "relation": "slope",
            "low": 0,
            "kind": "ours",
        },
    ],
}
RATES: dict[str, Any] = {**EXPERIMENT, "lr_curve": {"rates": {"low": 0.001, "high": 0.1, "n": 3}, "seeds": [70]}}

TUNED: dict[str, Any] = {
    **{key: EXPERIMENT[key] for key in ("base", "baseline", "arms")},
    "seeds": {"min": 6, "max": 12, "stages": 3},
    "tune": {
        "space": {"optim.lr": {"low": 0.001, "high": 0.1, "log": True}},
        "trials": 3,
        "seeds": [100],
        "sampler": {"name": "tpe", "n_startup_trials": 2},
        "pruner": "none",
    },
}
DESIGNED: dict[str, Any] = {
    "base": "base.yaml",
    "seeds": 2,
    "confirmatory": False,
    "equal": "tokens",
    "design": {
        "kind": "fractional",
        "factors": {
            "norm": {"layer": {"model.norm": "LayerNorm"}, "rms": {"model.norm": "RMSNorm"}},
            "mlp": {"gelu": {"model.mlp": "GELU"}, "swiglu": {"model.mlp": "SwiGLU"}},
            "bias": {"with": {}, "without": {"model.attention.bias": False}},
        },
        "generators": {"bias": ["norm", "mlp"]},
    },
}
SWEEP: dict[str, Any] = {
    "title": "A search",
    "base": "base.yaml",
    "common": {"trainer.val_check_interval": 2},
    "space": {
        "optim.lr": {"low": 1.0e-4, "high": 3.0e-2, "log": True},
        "model.layers": {"low": 1, "high": 2, "int": True},
        "model.dropout": {"low": 0.0, "high": 0.5, "step": 0.1},
        "model.position": {
            "choices": ["Alibi", {"class_path": "Rope", "space": {"base": {"low": 100, "high": 1000, "log": True}}}]
        },
    },
    "objectives": {"nll": "lower"},
    "trials": 4,
    "seeds": [0],
    "sampler": {"name": "tpe", "seed": 0, "n_startup_trials": 2},
    "pruner": {"name": "median", "n_startup_trials": 2, "n_warmup_steps": 1},
    "storage": "sqlite:///study.db",
}
SMALLER = {"claim": "It is.", "metric": "nll", "relation": "less", "contrast": {"a": -1.0, "b": 1.0}, "kind": "ours"}
MANIFEST = make_manifest(
    "demo",
    "A demonstration",
    ("a", "b"),
    range(3),
    tier="C",
    command=["ablate", "demo.yaml"],
    margin={"nll": 0.05},
    confirmatory=["b"],
    declared={"b": ["parameters"]},
    axes={"model.block": "scientific"},
    equal="steps",
    design={"kind": "arms", "aliases": []},
    claims=[SMALLER],
)
STUDY: dict[str, Any] = {
    "format": 1,
    "name": "search",
    "title": "A search",
    "notes": "",
    "objectives": {"nll": "lower"},
    "space": {
        "optim.lr": {"low": 0.001, "high": 0.1, "log": True, "step": None, "int": False},
        "model.norm": {"choices": ["LayerNorm", "RMSNorm"]},
    },
    "trials": 3,
    "seeds": [0],
    "methods": [{"sampler": {"name": "tpe", "seed": 0}, "pruner": {"name": "none", "seed": 0}, "from_trial": 0}],
    "study": [
        {
            "number": number,
            "state": "complete",
            "params": {"optim.lr": 0.01 * (number + 1), "model.norm": "LayerNorm"},
            "values": [2.0 - 0.1 * number],
            "reason": None,
            "cells": {},
            "seconds": 1.0,
            "reported": {},
        }
        for number in range(3)
    ],
}
TEXT = "".join(f"line {number} of a short text, twice {number % 7}\n" for number in range(40))

LOGGED: list[dict[str, Any]] = [
    {"config": {"arm": arm, "seed": seed, "set": "x"}, "summary": {"loss": 2.0 - seed / 8, "f1": 0.5 + seed}}
    for arm in ("a", "b", "c")
    for seed in range(4)
]
TABLED: list[list[Any]] = [["arm", "seed", "set", "loss", "state"]]
TABLED += [[arm, seed, "x", 1.5 + seed / 8, "finished"] for arm in ("a", "b") for seed in range(4)]

COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "fit": (["fit", "base.yaml", "--out", "out"], ["base.yaml"]),
    "count": (["count", "base.yaml", "--json"], ["base.yaml"]),
    "ablate": (["ablate", "experiment.yaml", "--plan", "--out", "out"], ["experiment.yaml", "base.yaml"]),
    "tier": (["ablate", "experiment.yaml", "--plan", "--tier", "G", "--seeds", "0,1"], ["experiment.yaml"]),
    "tune": (["ablate", "tuned.yaml", "--plan", "--workers", "2"], ["tuned.yaml"]),
    "rates": (["ablate", "rates.yaml", "--plan", "--workers", "2"], ["rates.yaml"]),
    "design": (["ablate", "designed.yaml", "--plan", "--optim.lr", "0.01"], ["designed.yaml"]),
    "sweep": (["sweep", "sweep.yaml", "--plan", "--trials", "3"], ["sweep.yaml", "base.yaml"]),
    "reproduce": (["reproduce", "experiment", "--experiments", ".", "--plan"], ["experiment.yaml"]),
    "report": (["report", "out/demo"], ["out/demo/experiment.json"]),
    "search": (["report", "out/search"], ["out/search/study.json"]),
    "trace": (["trace", "out/demo", "b", "nll"], ["out/demo/experiment.json"]),
    "status": (["status", "out"], ["out/demo/experiment.json", "out/search/study.json"]),
    "ls": (["ls", "out", "--arm", "b", "--seed", "1"], ["out/demo/experiment.json", "out/search/study.json"]),
    "diff": (["diff", "demo/a", "demo/b/1", "--out", "out", "--json"], ["out/demo/experiment.json"]),
    "configurations": (["diff", "base.yaml", "other.yaml"], ["base.yaml", "other.yaml"]),
    "evaluate": (["evaluate", "a-0", "--lengths", "4,8", "--out", "out"], []),
    "generate": (["generate", "a-0", "--prompt", "line", "--seed", "1", "--out", "out"], []),
    "translate": (["translate", "a-0", "--beam", "2", "--out", "out"], []),
    "export": (["export", "a-0", "--to", "out/model", "--out", "out"], []),
    "import": (["import", "out/model", "--as", "a", "--data.context", "8", "--out", "out"], []),
    "based": (["fit", "based.yaml", "--out", "out"], ["based.yaml", "base.yaml"]),
    "help": (["help", "fit"], []),
    "compare": (["compare", "runs.csv", "--baseline", "a", "--metric", "loss", "--only", "set=x"], ["runs.csv"]),
    "exported": (["compare", "runs.json", "--baseline", "a", "--metric", "loss", "--unpaired"], ["runs.json"]),
    "coordinates": (["coordinates", "base.yaml", "--widths", "8,16", "--steps", "1"], ["base.yaml"]),
    "cp": (["cp", "quickstart", "out/copy"], []),
    "init": (["init", "out/project"], []),
}
"""For each kind of case a valid command line and the files it reads, of which some are damaged."""

WORDS = """nan inf -inf 1e999 1e-4 3 '3' 0x10 true null ~ 1:30 2020-01-01 2020-13-45
    Rope AdamW SGD Rprop Muon Learned RopeYarn T5Bias LinearAttention BatchNorm GPT2 EncoderDecoder PairData
    PaddedRows MarkovText BracketText HubText BPE Unigram WordPiece
    .. ../../x / . a.b os.path sys.exit exits.Thing fails.Thing no.such.Thing /dev/null /dev/zero pipe out
    text.txt * ~ ~nobody { } [ &a *a << !!int nll nll@99999999999999 nll@² data/tokens rope a
    sqlite:// sqlite:////no/such/x.db mysql://a:b@c/d x://y postgresql://[ sqlite:///out ://
    fractional factorial one_at_a_time leave_one_out seconds flops range equivalent slope"""
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", " ", [], {}, [[]], [None], {"": None}, {"a": {"b": {}}}),
    *(0, -1, 1, 2, 3, 7, 1000, 2**31, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**18, 10**30, 10**400, 10**11),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-300, 1e300, -1e300, 5e-324, float("nan"), float("inf"), float("-inf")),
    *WORDS.split(),
    *("x" * 300, "a\0b", "a\nb", "\ud800", "\x1b[31m", "é" * 200, "log "),
    *({"class_path": "Rope"}, {"class_path": ["Rope"]}, {"class_path": "Rope", "init_args": [1]}, {"class_path": None}),
    *({"class_path": "RopeYarn", "init_args": {"stretch": -1}}, {"class_path": "BPE", "init_args": {"size": 10**7}}),
    *({"low": 0, "high": 1}, {"low": 1, "high": 0}, {"low": -1e308, "high": 1e308}, {"choices": []}),
    *({"low": 0, "high": 10**9, "int": True}, {"low": 0, "high": 1, "step": 1e-300}, {"choices": [[], {}, None]}),
    *({"low": 0, "high": 1e18, "step": 1}, {"low": 1e-320, "high": 1, "log": True}, {"choices": ["a"], "low": 1}),
    *({"choices": [1, "1"]}, {"min": 1, "max": 10**9, "stages": 2}, {"min": 2, "max": 3, "stages": 10**9}, {"max": -1}),
    *([0, 0], [*range(50)], {"name": "gp"}, {"name": "grid"}, {"name": "qmc", "qmc_type": "x"}, {"name": "none"}),
    *({"name": "nsga2", "population_size": 1}, {"name": "cmaes", "sigma0": -1}, {"name": ["tpe"]}),
    {"name": "hyperband", "reduction_factor": 1},
)
BYTES = (b"\0", b"\xff", b"\xed\xa0\x80", b"\t", b"\n", b": ", b"- ", b"&a ", b"*a ", *map(str.encode, "'\"{}[]"))
TEXTS = (
    "a: " + "[" * 3000,
    "a: &a [x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 10)}]\n" for i in range(12)),
    *("a: &a {<<: *a}", "a: &a [*a]", "seed: " + "9" * 5000, "seed: 0b_", "seed: !!int abc", "seed: 2020-13-45"),
    *("? {a: b}\n: c", "a: !!binary aGk=\nb: !!set {a, b}\nc: !!timestamp x", '"\\ud800": 1', '"\\UFFFFFFFF": 1'),
    *("%YAML 9" + "9" * 5000 + ".1\n---\na: b", "---\na: b\n---\nc: d", "[" * 200000, "x: 1\n" * 3, "{}", "", "null"),
)
FLAGS = """--seeds --tier --workers --out --trials --set --checkpoint-seconds --lengths --tokens --split --temperature
    --top-k --beam --alpha --context --batch --experiments --input"""

DOTTED = """seed trainer.max_steps trainer.accumulate_grad_batches trainer.val_check_interval trainer.precision
    trainer.gradient_clip_val trainer.limit_val_batches trainer.devices trainer.strategy trainer.num_nodes
    trainer.accelerator trainer.log_every_n_steps trainer.max_time trainer.deterministic evaluate.lengths
    optim optim.lr optim.optimizer optim.optimizer.betas optim.optimizer.eps optim.schedule
    optim.optimizer.weight_decay optim.schedule.warmup optim.schedule.final optim.objective.z_loss
    optim.objective.label_smoothing model model.width model.heads model.layers model.dropout
    model.position model.position.base model.norm model.norm.eps model.mlp model.mlp.expansion
    model.attention.window model.attention.softcap model.attention.scale model.attention.key_value_heads
    model.attention model.block model.block.alpha model.initializer model.initializer.std model.embedding
    data data.context data.batch_size data.split data.corpus data.corpus.path data.corpus.field data.corpus.size
    data.tokenizer data.tokenizer.size data.evaluation_batch_size evaluate.tokens
    a..b . model.position.class_path model.position.init_args model.nothing"""
PATHS = (*DOTTED.split(), "", "a" + ".a" * 100)

# making --------------------------------------------------------------------------------------------------------------

LARGE = ([None] * 2000, {f"more{index}": None for index in range(2000)}, json.loads("[" * 60 + "]" * 60))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((tree, key), *places(value))]


def damaged(tree: Any, damages: list[tuple[int, str, Any]]) -> Any:
    """A copy of a tree with these damages."""
    tree = copy.deepcopy(tree)
    for number, what, value in damages:
        if not (here := places(tree)):
            break
        node, key = here[number % len(here)]
        if what == "drop":
            del node[key]
        elif what == "key" and isinstance(node, dict):
            node[str(value)[:20]] = copy.deepcopy(value)
        elif what == "path" and isinstance(node[key], dict):  # a change where files have such changes
            node[key][PATHS[number % len(PATHS)]] = copy.deepcopy(value)
        else:
            node[key] = copy.deepcopy(value)
    return tree


def valid_files() -> dict[str, Any]:
    """The files of a case that nothing was done to."""
    named = {
        "base": BASE,
        "based": {"base": "base.yaml", "model": {"width": 4}, "optim.lr": 0.01},
        "other": override(BASE, {"model.width": 4}),
        "experiment": EXPERIMENT,
        "tuned": TUNED,
        "rates": RATES,
        "designed": DESIGNED,
        "sweep": SWEEP,
    }
    files: dict[str, Any] = {f"{name}.yaml": tree for name, tree in named.items()}
    files |= {"runs.csv": TABLED, "runs.json": LOGGED}
    return {**files, "out/demo/experiment.json": MANIFEST, "out/search/study.json": STUDY}


def written(name: str, tree: Any) -> bytes:
    """A tree as the file that holds it."""
    if name.endswith(".json"):
        return json.dumps(tree).encode("utf-8", "surrogatepass")
    if name.endswith(".csv"):
        rows = [row if isinstance(row, list) else [row] for row in tree] if isinstance(tree, list) else [[tree]]
        return "\n".join(",".join(map(str, row)) for row in rows).encode("utf-8", "surrogatepass")
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def command(kind: str, draw: random.Random) -> tuple[list[str], dict[str, bytes]]:
    """A command line of a kind, and the content of all files, with something done to one or the other."""
    (arguments, read), trees = copy.deepcopy(COMMANDS[kind]), valid_files()
    files = {name: written(name, tree) for name, tree in trees.items()}
    if read and draw.random() < 0.85:
        name = draw.choice(read)
        kinds, values = ("set", "set", "set", "drop", "key", "path"), (*HOSTILE, *LARGE)
        damages = [
            (draw.randrange(400), draw.choice(kinds), draw.choice(values)) for _ in range(draw.choice((1, 1, 2)))
        ]
        files[name] = written(name, damaged(trees[name], damages))
        if (how := draw.random()) < 0.1:
            files[name] = draw.choice(TEXTS).encode()
        elif how < 0.25:
            start = draw.randrange(len(files[name]))
            end = start + draw.choice((0, 1, 2, 10, 1000))
            files[name] = files[name][:start] + draw.choice((b"", *BYTES)) + files[name][end:]
    else:
        value, place = draw.choice(HOSTILE), draw.randrange(len(arguments))
        text = str(value) if draw.random() < 0.7 else json.dumps(value)
        match draw.choice(("replace", "double", "drop", "flag", "flag", "path", "path", "path", "set")):
            case "replace":
                arguments[place] = text
            case "double":
                arguments.insert(place, arguments[place])
            case "drop":
                del arguments[max(place, 1)]
            case "flag":
                arguments += [draw.choice(FLAGS.split()), text]
            case "path":
                arguments += [f"--{draw.choice(PATHS)}", text]
            case "set":
                arguments += ["--set", f"{draw.choice(PATHS)}={text}"]
    if "--plan" in COMMANDS[kind][0] and "--plan" not in arguments:
        arguments.append("--plan")  # nothing is trained here
    return arguments, files


# running -------------------------------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """Raised in a case that takes too long; no `except Exception` may hide it."""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlow

    kinds = ((signal.SIGALRM, signal.ITIMER_REAL, PATIENCE), (signal.SIGPROF, signal.ITIMER_PROF, seconds))
    before = [signal.signal(number, stop) for number, _, _ in kinds]
    for _, timer, limit in kinds:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(kinds, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def outcome(arguments: list[str]) -> str:
    """Runs a command line in the current folder. Returns what is wrong, or an empty text."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            alarm(SECONDS),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            code: object = main(arguments)
    except SystemExit as error:  # --help and --version
        code = error.code or 0
    except TooSlow:
        return f"took more than {SECONDS} seconds:\n{traceback.format_exc()}"
    except BaseException:
        return traceback.format_exc()
    lines = err.getvalue().splitlines()
    if code not in (0, 1, 2):
        return f"exit code {code}: {err.getvalue()[-500:]}"
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("lm: ")):
        return f"exit code 2 with {len(lines)} lines on stderr: {err.getvalue()[:500]}"
    if code == 2 and len(lines[0]) > 2500:
        return f"a line of {len(lines[0])} characters: {lines[0][:300]}"
    return ""
