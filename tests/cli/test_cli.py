"""The real command line: what it prints, and one line with exit code 2 for everything it cannot use."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN, Capture, Patch, refused
from messages import CheckMessage, RefusedCommand

from lm.cli import main
from lm.cli.commands import commands


@pytest.fixture
def base(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The tests' small configuration as run.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    return tmp_path


@pytest.fixture
def refused_command(refused_command: RefusedCommand) -> RefusedCommand:
    """Expect of a refused command that nothing is written in the current folder, too."""

    def expect(arguments: Sequence[object], run: Callable[[list[str]], int] = main) -> None:
        before = sorted(Path.cwd().rglob("*"))
        refused_command(arguments, run)
        assert sorted(Path.cwd().rglob("*")) == before

    return expect


def write_spec(folder: Path, seeds: int = 1) -> None:
    """Write an experiment of two arms over run.yaml as spec.yaml."""
    arms = {"a": {}, "b": {"model.norm": "RMSNorm"}}
    spec = {"base": "run.yaml", "baseline": "a", "arms": arms, "seeds": [*range(seeds)]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))


LOCAL = "{class_path: LocalText, init_args: {path: none.txt}}"
BAD_SETTINGS = [
    ["--model.position", "Rpoe"],
    ["--optim.lr", "0"],
    ["--optim.lr", ".nan"],
    ["--model.width", "-4"],
    ["--model.heads", "3"],
    ["--trainer.max_steps", "0"],
    ["--trainer.devices", "3", "--trainer.strategy", "ddp"],
    ["--trainer.accelerator", "gpuu"],
    ["--data.corpus", LOCAL],
    ["--data.corpus", "LocalText"],
    ["--data.split", "[0.9, 0.9, 0.1]"],
    ["--data.tokenizer", LOCAL.replace("LocalText", "GPT2")],
    ["--seed", "-1"],
    ["--set", "optim.lr"],
    ["--optim.lr"],
    ["--opt"],
]


BAD_FOR_OTHERS: list[tuple[list[str], list[str]]] = [
    (["--trainer.precision", "bf17"], ["trainer.precision", "bf16"]),
    (["--trainer.max_epochs", "3"], ["trainer.max_epochs", "max_steps"]),
    (["--trainer.strategy", "dpp"], ["trainer", "dpp"]),
    (["--data.corpus.size", "100"], ["data:", "context + 1 = 17"]),
    (["--data.context", "100000"], ["data:", "100001"]),
]
"""Settings whose messages hold what Lightning says or takes, or the size of the texts of this Python."""


@pytest.mark.parametrize(("arguments", "words"), BAD_FOR_OTHERS, ids=[" ".join(a) for a, _ in BAD_FOR_OTHERS])
@pytest.mark.usefixtures("base")
def test_settings_that_lightning_or_the_text_refuses_are_one_line(
    arguments: list[str], words: list[str], capsys: Capture
) -> None:
    refused(capsys, ["fit", "run.yaml", *arguments], *words)


@pytest.mark.parametrize("arguments", BAD_SETTINGS, ids=" ".join)
def test_a_setting_that_cannot_be_used_is_one_line(
    base: Path, arguments: list[str], refused_command: RefusedCommand
) -> None:
    refused_command(["fit", "run.yaml", *arguments])


@pytest.mark.parametrize("command", ["fit", "ablate", "sweep"])
def test_a_command_that_trains_has_a_place_for_compiled_code(
    base: Path, monkeypatch: Patch, command: str, refused_command: RefusedCommand
) -> None:
    called: list[bool] = []
    monkeypatch.setattr("lm.data.cache.keep_compiled_code", lambda: called.append(True))
    refused_command([command, "none.yaml"])
    assert called


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("runn.yaml", None),
        ("bare.yaml", b"seed: 1\n"),
        ("named.yaml", b"base: char_tinny\n"),
        ("itself.yaml", b"base: itself.yaml\n"),
        ("number.yaml", b"base: 3\n"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    base: Path, name: str, content: bytes | None, refused_command: RefusedCommand
) -> None:
    if content is not None:
        (base / name).write_bytes(content)
    refused_command(["fit", name])


@pytest.mark.parametrize("name", ["gpu", "cuda", "mps"])
def test_a_missing_gpu_is_one_line_with_a_remedy(
    base: Path, monkeypatch: Patch, name: str, refused_command: RefusedCommand
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    refused_command(["fit", "run.yaml", "--trainer.accelerator", name])


@pytest.mark.parametrize(
    "arguments",
    [
        ["abalte"],
        ["report", "nowhere"],
        ["report", "."],
        ["report", ".", "--optim.lr", "1"],
        ["ablate", "run.yaml"],
        ["sweep", "run.yaml"],
        ["sweep", "spec.yaml"],
        ["fit", "spec.yaml"],
        ["count", "spec.yaml"],
        ["diff", "spec.yaml", "run.yaml"],
        ["fit", "quickstart"],
        ["fit", "learning_rate"],
        ["ablate", "char_tiny"],
        ["fit", "run.yaml", "--max_steps", "3"],
        ["fit", "run.yaml", "other.yaml", "--max-steps=3"],
        ["fit", "run.yaml", "max_steps=3"],
        ["fit", "run.yaml", "logger"],
        ["ablate", "spec.yaml", "--lr", "1e-3"],
        ["ablate", "spec.yaml", "--heads", "3"],
        ["fit", "run.yaml", "--accumulate_grad_batch", "2"],
        ["ablate", "spec.yaml", "--resume", "--workers", "2"],
        ["fit", "--config", "run.yaml"],
        ["fit"],
        ["fit", "run.yaml", "--wrokers", "2"],
        ["dashboard", "--port", "web"],
        ["dashboard", "--port", "65536"],
        ["count", "run.yaml", "--batch", "0"],
        ["coordinates", "run.yaml", "--steps", "1,0"],
        ["coordinates", "run.yaml", "--widths", "8"],
        ["ablate", "spec.yaml", "--seeds", "0,a"],
        ["ablate", "spec.yaml", "--seeds", "1,1"],
        ["ablate", "spec.yaml", "--seeds", "0"],
        ["ablate", "spec.yaml", "--seeds", ""],
        ["ablate", "spec.yaml", "--set", "seeds=6"],
        ["ablate", "spec.yaml", "--workers", "0"],
        ["ablate", "spec.yaml", "--seed", "1"],
        ["ablate", "spec.yaml", "--set", "model.blok=PreNorm"],
        ["fit", "run.yaml", "--out", "run.yaml"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_one_line(base: Path, arguments: list[str], refused_command: RefusedCommand) -> None:
    write_spec(base)
    refused_command(arguments)


def test_results_of_another_version_are_refused(base: Path, refused_command: RefusedCommand) -> None:
    manifest = {"format": 0, "baseline": "a", "arms": {}, "seeds": []}
    (base / "old").mkdir()
    (base / "old/experiment.json").write_text(json.dumps(manifest))
    refused_command(["report", "old"])
    (base / "old/experiment.json").write_text("[]")
    refused_command(["report", "old"])
    refused_command(["report", "old/experiment.json"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["fit", "broken.yaml"], "broken.yaml:1"), (["report", "old"], "old/experiment.json: ")],
    ids=["YAML", "JSON"],
)
def test_files_that_cannot_be_parsed_are_one_line(
    base: Path, arguments: list[str], words: str, capsys: Capture
) -> None:
    (base / "broken.yaml").write_text("model: [1, 2")
    (base / "old").mkdir()
    (base / "old/experiment.json").write_text("{")
    refused(capsys, arguments, words)


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
def test_report_needs_no_torch_and_gives_the_same_table(
    base: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    write_spec(base, 2)
    assert main(["ablate", "spec.yaml", "--underpowered", "--out", "out"]) == 0
    said = capsys.readouterr().out
    check_message([line for line in said.splitlines() if line.startswith("n = ")])
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
    ("number", "code"),
    [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 1), (errno.EACCES, 2), (errno.ENOTDIR, 2)],
    ids=["ENOSPC", "EDQUOT", "EIO", "EACCES", "ENOTDIR"],
)
def test_a_disk_that_refuses_is_one_line(
    number: int, code: int, monkeypatch: Patch, capsys: Capture, check_message: CheckMessage
) -> None:
    def writes(*_: object) -> int:
        raise OSError(number, os.strerror(number), "results/cells")

    monkeypatch.setattr(commands()["list"], "run", writes)
    assert main(["list"]) == code
    check_message(capsys.readouterr().err.replace(os.strerror(number), "REASON"))


@pytest.mark.parametrize("number", [errno.EBADF, errno.EPIPE], ids=["unexpected", "a pipe of our own"])
def test_another_error_of_the_system_keeps_its_traceback(number: int, monkeypatch: Patch) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, "fails")

    monkeypatch.setattr(commands()["list"], "run", fails)
    with pytest.raises(OSError, match="fails"):
        main(["list"])
