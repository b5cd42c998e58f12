"""The real command line: what it prints, and one line with exit code 2 for everything it cannot use."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
import pytest
import yaml
from helpers import RUN, Capture, Patch

from lm.cli import main
from lm.cli.commands import commands


@pytest.fixture
def base(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The tests' small configuration as run.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    return tmp_path


def refused(arguments: list[str], capsys: Capture, *words: str) -> None:
    """Runs a command line that must be answered with one line, exit code 2 and nothing written."""
    before = sorted(Path.cwd().rglob("*"))
    helpers.refused(capsys, arguments, *words)
    assert sorted(Path.cwd().rglob("*")) == before


def write_spec(folder: Path, seeds: int = 1) -> None:
    """Write an experiment of two arms over run.yaml as spec.yaml."""
    arms = {"a": {}, "b": {"model.norm": "RMSNorm"}}
    spec = {"base": "run.yaml", "baseline": "a", "arms": arms, "seeds": [*range(seeds)]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))


LOCAL = "{class_path: LocalText, init_args: {path: none.txt}}"
BAD_SETTINGS: list[tuple[list[str], list[str]]] = [
    (["--model.position", "Rpoe"], ["model.position", "'Rpoe'", "Did you mean Rope?", "Choose from Alibi"]),
    (["--optim.lr", "0"], ["optim", "lr=0", "above 0"]),
    (["--optim.lr", ".nan"], ["optim", "nan"]),
    (["--model.width", "-4"], ["width=-4", "at least 1"]),
    (["--model.heads", "3"], ["heads=3 must divide width=16"]),
    (["--trainer.max_steps", "0"], ["trainer.max_steps", "1 or more"]),
    (["--trainer.precision", "bf17"], ["trainer.precision", "bf16"]),
    (["--trainer.max_epochs", "3"], ["trainer.max_epochs", "Did you mean max_steps?"]),
    (["--trainer.devices", "3", "--trainer.strategy", "ddp"], ["data.batch_size", "3 devices"]),
    (["--trainer.accelerator", "gpuu"], ["trainer.accelerator", "'gpuu'. Did you mean gpu?", "Choose from auto, gpu"]),
    (["--trainer.strategy", "dpp"], ["trainer", "dpp"]),
    (["--data.corpus", LOCAL], ["data.corpus.path", "'none.txt'"]),
    (["--data.corpus", "LocalText"], ["data.corpus.path", "needs this setting"]),
    (["--data.corpus.size", "100"], ["data:", "context + 1 = 17"]),
    (["--data.context", "100000"], ["data:", "100001"]),
    (["--data.split", "[0.9, 0.9, 0.1]"], ["data:", "split=[0.9, 0.9, 0.1]"]),
    (["--data.tokenizer", LOCAL.replace("LocalText", "GPT2")], ["data.tokenizer.path", "GPT2 has no setting"]),
    (["--seed", "-1"], ["seed=-1"]),
    (["--set", "optim.lr"], ["--set optim.lr", "KEY=VALUE"]),
    (["--optim.lr"], ["--optim.lr", "needs a value"]),
    (["--opt"], ["--opt"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_SETTINGS, ids=[" ".join(a) for a, _ in BAD_SETTINGS])
def test_a_setting_that_cannot_be_used_is_one_line(
    base: Path, capsys: Capture, arguments: list[str], words: list[str]
) -> None:
    refused(["fit", "run.yaml", *arguments], capsys, *words)


@pytest.mark.parametrize("command", ["fit", "ablate", "sweep"])
def test_a_command_that_trains_has_a_place_for_compiled_code(
    base: Path, capsys: Capture, monkeypatch: Patch, command: str
) -> None:
    called: list[bool] = []
    monkeypatch.setattr("lm.data.cache.keep_compiled_code", lambda: called.append(True))
    refused([command, "none.yaml"], capsys, "none.yaml")
    assert called


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("runn.yaml", None, ["runn.yaml", "cannot be read", "Did you mean run.yaml?"]),
        ("broken.yaml", b"model: [1, 2", ["broken.yaml:1", "not valid YAML"]),
        ("bare.yaml", b"seed: 1\n", ["4 settings are missing", "data: ", "model: ", "optim: Optim, with", "max_steps"]),
        ("named.yaml", b"base: char_tinny\n", ["named.yaml: base", "'char_tinny'", "Did you mean char_tiny?"]),
        ("itself.yaml", b"base: itself.yaml\n", ["itself.yaml: base: names itself"]),
        ("number.yaml", b"base: 3\n", ["number.yaml: base: expected the path", "3"]),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    base: Path, capsys: Capture, name: str, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (base / name).write_bytes(content)
    refused(["fit", name], capsys, *words)


@pytest.mark.parametrize("name", ["gpu", "cuda", "mps"])
def test_a_missing_gpu_is_one_line_with_a_remedy(base: Path, capsys: Capture, monkeypatch: Patch, name: str) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    refused(["fit", "run.yaml", "--trainer.accelerator", name], capsys, f"accelerator={name}", "accelerator: auto")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["abalte"], ["abalte", "Did you mean ablate?"]),
        (["report", "nowhere"], ["nowhere", "no such folder"]),
        (["report", "."], ["experiment.json"]),
        (["report", ".", "--optim.lr", "1"], ["unrecognized arguments: --optim.lr 1 (see lm report --help)"]),
        (["ablate", "run.yaml"], ["lm: run.yaml: is a configuration: lm fit run.yaml; expected an experiment"]),
        (["sweep", "run.yaml"], ["lm: run.yaml: is a configuration: lm fit run.yaml; expected a sweep"]),
        (["sweep", "spec.yaml"], ["lm: spec.yaml: is an experiment: lm ablate spec.yaml"]),
        (["fit", "spec.yaml"], ["lm: spec.yaml: is an experiment: lm ablate spec.yaml; expected a configuration"]),
        (["count", "spec.yaml"], ["lm: spec.yaml: is an experiment: lm ablate spec.yaml"]),
        (["diff", "spec.yaml", "run.yaml"], ["lm: spec.yaml: is an experiment: lm ablate spec.yaml"]),
        (["fit", "quickstart"], ["lm: quickstart: is an experiment: lm ablate quickstart; expected a configuration"]),
        (["fit", "learning_rate"], ["lm: learning_rate: is a sweep: lm sweep learning_rate"]),
        (
            ["ablate", "char_tiny"],
            ["is a sweep: lm sweep char_tiny and a configuration: lm fit char_tiny; expected an exp"],
        ),
        (["fit", "run.yaml", "--max_steps", "3"], ["unrecognized", "Did you mean --trainer.max_steps? (see lm fit"]),
        (["fit", "run.yaml", "other.yaml", "--max-steps=3"], ["Did you mean --trainer.max_steps?"]),
        (["fit", "run.yaml", "max_steps=3"], ["Did you mean trainer.max_steps?"]),
        (["ablate", "spec.yaml", "--lr", "1e-3"], ["Did you mean --optim.lr?"]),
        (["ablate", "spec.yaml", "--heads", "3"], ["Did you mean --model.heads?"]),
        (["fit", "run.yaml", "--accumulate_grad_batch", "2"], ["Did you mean --trainer.accumulate_grad_batches?"]),
        (["ablate", "spec.yaml", "--resume", "--workers", "2"], ["--resume. The same command resumes"]),
        (["fit"], ["config"]),
        (["fit", "run.yaml", "--wrokers", "2"], ["--wrokers"]),
        (["dashboard", "--port", "web"], ["argument --port: invalid int value: 'web'"]),
        (["dashboard", "--port", "65536"], ["argument --port: expected 0 to 65535, found 65536"]),
        (["count", "run.yaml", "--batch", "0"], ["argument --batch: expected 1 or more, found 0"]),
        (["coordinates", "run.yaml", "--steps", "1,0"], ["--steps: expected whole numbers from 1", "'1,0'"]),
        (["coordinates", "run.yaml", "--widths", "8"], ["--widths: expected 2 or more", "found 8 alone"]),
        (["ablate", "spec.yaml", "--seeds", "0,a"], ["--seeds", "0,1,2", "0-5", "'0,a'"]),
        (["ablate", "spec.yaml", "--seeds", "1,1"], ["--seeds", "twice"]),
        (["ablate", "spec.yaml", "--seeds", "0"], ["--seeds", "a number of seeds (6 for 0 to 5)", "[6]"]),
        (["ablate", "spec.yaml", "--seeds", ""], ["--seeds", "a range (0-5)"]),
        (["ablate", "spec.yaml", "--set", "seeds=6"], ["seeds", "--seeds 0,1,2"]),
        (["ablate", "spec.yaml", "--workers", "0"], ["--workers", "1 or more"]),
        (["ablate", "spec.yaml", "--seed", "1"], ["--seeds"]),
        (["ablate", "spec.yaml", "--set", "model.blok=PreNorm"], ["model.blok", "Did you mean block?"]),
        (["fit", "run.yaml", "--out", "run.yaml"], ["--out", "run.yaml"]),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_one_line(base: Path, capsys: Capture, arguments: list[str], words: list[str]) -> None:
    write_spec(base)
    refused(arguments, capsys, *words)


def test_results_of_another_version_are_refused(base: Path, capsys: Capture) -> None:
    manifest = {"format": 0, "baseline": "a", "arms": {}, "seeds": []}
    (base / "old").mkdir()
    (base / "old/experiment.json").write_text(json.dumps(manifest))
    refused(["report", "old"], capsys, "old/experiment.json", "format 0", "expected 1 to", "damaged")
    (base / "old/experiment.json").write_text("[]")
    refused(["report", "old"], capsys, "old/experiment.json", "format None", "expected 1 to")
    refused(["report", "old/experiment.json"], capsys, "old/experiment.json: is a file", "such as old")
    (base / "old/experiment.json").write_text("{")
    refused(["report", "old"], capsys, "old/experiment.json", "not valid JSON")


def lm(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "lm", *arguments], capture_output=True, text=True, **options)


@pytest.mark.slow
def test_help_lists_the_commands_and_loads_nothing_that_takes_long() -> None:
    done = lm("--help")
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("    ") and line[4] != " "]
    assert set(listed) == set(commands())
    for arguments in (["--help"], ["fit", "--help"], ["ablate", "--help"], []):
        loaded = lm_modules(
            f"import contextlib, lm.cli\nwith contextlib.suppress(SystemExit): lm.cli.main({arguments})"
        )
        assert "argparse" in loaded
        assert not {"torch", "lightning", "numpy", "pandas", "matplotlib", "scipy", "jsonargparse", "rich"} & loaded


def unread(*arguments: str, cwd: Path, errors: int = subprocess.PIPE) -> tuple[int, str]:
    """Runs a command whose standard output is a pipe that nobody reads: its exit code, and what it told."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lm", *arguments]
    try:
        done = subprocess.run(command, stdout=writing, stderr=writing if errors != subprocess.PIPE else errors, cwd=cwd)
    finally:
        os.close(writing)
    return done.returncode, (done.stderr or b"").decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["--help", "trace", *(pytest.param(name, marks=pytest.mark.extra) for name in ("list", "report"))]
)
@pytest.mark.parametrize("errors", [subprocess.PIPE, subprocess.STDOUT])
def test_output_that_nobody_reads_is_no_error(
    tmp_path: Path, experiment: Callable[..., Path], command: str, errors: int
) -> None:
    folder = experiment({"base": [2.0, 2.1], "better": [1.7, 1.85]})
    arguments = {"trace": [str(folder), "better", "nll"], "report": [str(folder)]}.get(command, [])
    assert unread(command, *arguments, cwd=tmp_path, errors=errors) == (0, "")
    assert command != "report" or (folder / "table.md").is_file()


@pytest.mark.slow
@pytest.mark.extra
def test_training_stopped_by_a_closed_pipe_fails(base: Path) -> None:
    write_spec(base)
    code, _ = unread("ablate", "spec.yaml", "--underpowered", cwd=base, errors=subprocess.STDOUT)
    assert code == 128 + signal.SIGPIPE


def lm_modules(code: str) -> set[str]:
    """Top-level modules loaded after running `code` in a fresh process."""
    script = f"{code}\nimport sys; print('loaded', *{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_list_names_every_component_with_options_and_doc(capsys: Capture) -> None:
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    positions = {member["name"]: member for member in found["model.position"]}
    assert {"Alibi", "Rope", "Sinusoidal", "Learned", "NoPosition"} <= set(positions)
    assert positions["Rope"]["options"]["base"] == {"accepts": "a number", "default": 10000.0}
    assert all(member["doc"] for members in found.values() for member in members if "torch" not in member["doc"])
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(kind in text for kind in found)


@pytest.mark.slow
def test_fit_saves_the_resolved_configuration_and_does_not_train_twice(base: Path, capsys: Capture) -> None:
    assert main(["fit", "run.yaml", "--optim.lr", "3e-3", "--out", "out"]) == 0
    first = capsys.readouterr()
    assert "validation NLL" in first.out
    (config,) = base.glob("out/cells/*/config.yaml")
    saved = yaml.safe_load(config.read_text())
    assert saved["optim"]["lr"] == 0.003
    assert saved["model"]["init_args"]["mlp"] == {
        "class_path": "GELU",
        "init_args": {"approximate": "none", "bias": True, "dropout": 0.0, "expansion": 4.0},
    }
    assert main(["fit", str(config), "--out", "out"]) == 0
    again = capsys.readouterr()
    assert "already trained" in again.err
    assert again.out == first.out


@pytest.mark.extra
@pytest.mark.slow
def test_report_needs_no_torch_and_gives_the_same_table(base: Path, capsys: Capture) -> None:
    write_spec(base, 2)
    assert main(["ablate", "spec.yaml", "--underpowered", "--out", "out"]) == 0
    said = capsys.readouterr().out
    assert "too few for significance (6 could)" in said
    table = (base / "out/spec/table.md").read_text()
    for name in ("table.md", "table.csv", "learning_curve.png", "difference_curve.svg", "differences.png"):
        (base / "out/spec" / name).unlink()
    (base / "torch").mkdir()
    (base / "torch/__init__.py").write_text("raise ImportError('no torch here')")
    again = lm("report", "out/spec", cwd=base, env={**os.environ, "PYTHONPATH": str(base)})
    assert again.returncode == 0, again.stderr
    assert again.stdout == said
    assert (base / "out/spec/table.md").read_text() == table
    assert (base / "out/spec/learning_curve.png").is_file()
    assert "**" not in table


SHIPPED = sorted(Path(__file__).parents[2].glob("experiments/*.yaml"))
PAIRS = {
    f"data.corpus.{split}_{side}": f"multi30k/{file}.{language}.gz"
    for split, file in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr"))
    for side, language in (("source", "en"), ("target", "de"))
}
GPT2 = {"data.tokenizer.vocab": "gpt2/encoder.json", "data.tokenizer.merges": "gpt2/vocab.bpe"}
TEXTS = {
    **dict.fromkeys(("multi30k", "translation_multi30k"), PAIRS),
    **{name: {"data.corpus.path": "tinyshakespeare/input.txt"} for name in ("nanogpt_char", "ways")},
    "mini_transformer": {"data.corpus.path": "wikitext2/valid.txt", **GPT2},
}
"""Files that an experiment is told on the command line, under the folder of shared data."""
TRAINS_A_BPE = ("weight_tying", "translation_multi30k")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.extra] * (path.stem in TRAINS_A_BPE)) for path in SHIPPED],
    ids=[path.stem for path in SHIPPED],
)
def test_every_shipped_experiment_can_be_planned(path: Path, request: pytest.FixtureRequest) -> None:
    from lm.ablation.experiment import load_experiment
    from lm.ablation.plan import make_plan

    named = TEXTS.get(path.stem, {})
    settings = {key: str(request.getfixturevalue("shared") / file) for key, file in named.items()}
    plan = make_plan(load_experiment(path, settings))
    for arm in plan.experiment.arms:
        assert arm == plan.experiment.baseline or plan.changes[arm], "an arm that is the baseline under another name"
    assert len(plan.cells) == len(plan.experiment.arms) * len(plan.experiment.seeds)


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENOSPC, 1, "make room; the same command starts again"),
        (errno.EDQUOT, 1, "make room"),
        (errno.EIO, 1, "the same command starts again"),
        (errno.EACCES, 2, "Permission denied"),
        (errno.ENOTDIR, 2, "Not a directory"),
    ],
)
def test_a_disk_that_refuses_is_one_line(
    number: int, code: int, words: str, monkeypatch: Patch, capsys: Capture
) -> None:
    def writes(*_: object) -> int:
        raise OSError(number, os.strerror(number), "results/cells")

    monkeypatch.setattr(commands()["list"], "run", writes)
    assert main(["list"]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(f"lm: results/cells: {os.strerror(number)}")
    assert words in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("number", [errno.EBADF, errno.EPIPE], ids=["unexpected", "a pipe of our own"])
def test_another_error_of_the_system_keeps_its_traceback(number: int, monkeypatch: Patch) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, "fails")

    monkeypatch.setattr(commands()["list"], "run", fails)
    with pytest.raises(OSError, match="fails"):
        main(["list"])
