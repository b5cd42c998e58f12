"""What the benchmarks compare, what they write, and that they run; no test looks at how long anything takes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Capture, Patch, refused
from messages import CheckMessage, Refused, RefusedCommand
from torch import nn

from benchmarks import loops, run
from benchmarks import machine as described
from benchmarks.__main__ import main
from benchmarks.asked import Asked
from benchmarks.cases import CASES, Case
from benchmarks.figure import compared, drawn
from benchmarks.memory import in_child
from benchmarks.parts import ATTENTION, LOSSES, QUICK, groups
from benchmarks.peers import PACKAGED, Contender, contenders, loss_of_logits, nanogpt, tried
from benchmarks.ratios import Spread
from benchmarks.rows import Measured, Result, Row, exactly, read_result, row
from benchmarks.scale import OVER
from benchmarks.scale import results as made_up
from benchmarks.show import machine_line, show
from benchmarks.sizes import BASE, SMALLEST
from lm.analysis.results import load
from lm.config.tree import load_yaml
from lm.execution import machine
from lm.training.provenance import processor

ROOT = Path(__file__).resolve().parents[2]

BENCH: Any = {
    "format": 1,
    "lm": "1",
    "quick": True,
    "machine": {"processor": "here", "cores": 2, "threads": 1, "flags": ["avx2"], "packages": {"torch": "2"}},
    "cases": {
        "start": {
            "about": "how long it takes to begin",
            "rows": [
                {
                    "group": "start",
                    "way": way,
                    "value": value,
                    "unit": "s",
                    "to": "torch",
                    "ratio": {"median": value, "low": value, "high": 2 * value, "rounds": 3},
                    "more": {"added_mib": 3.0},
                    "note": "",
                }
                for way, value in (("torch", 1.0), ("help", 0.5))
            ],
        }
    },
}

# what is compared ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ATTENTION)
def test_every_way_to_attend_computes_the_same(way: str) -> None:
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(3))
    first = next(iter(ATTENTION.values()))
    assert torch.allclose(ATTENTION[way](q, k, v), first(q, k, v), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", LOSSES)
def test_every_way_to_take_the_loss_computes_the_same(way: str) -> None:
    """Over more rows than a chunk holds, and not a whole number of chunks; gradients too."""
    made = (torch.randn(1100, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64))
    targets = torch.randint(11, (1100,))
    found = []
    for one in (next(iter(LOSSES.values())), LOSSES[way]):
        x, head = (tensor.clone().requires_grad_() for tensor in made)
        loss = one(x, head, targets)
        found.append([loss, *torch.autograd.grad(loss, [x, head])])
    for wanted, got in zip(*found, strict=True):
        assert torch.allclose(wanted, got, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("group", list(groups()), ids=lambda group: group.name)
def test_every_way_of_a_group_can_be_worked(group: Any) -> None:
    assert next(iter(group.makers)) == group.first
    for make in group.makers.values():
        make(QUICK)()


def test_the_timed_model_is_that_of_the_quickstart() -> None:
    shipped = load_yaml(ROOT / "experiments" / "bases" / "char_tiny.yaml")
    assert BASE["model"] == shipped["model"]
    assert {key: shipped["data"]["init_args"][key] for key in ("context", "batch_size")} == {
        key: BASE["data"]["init_args"][key] for key in ("context", "batch_size")
    }


# peers ---------------------------------------------------------------------------------------------------------------


def test_the_first_steps_and_the_last_can_be_left_out(monkeypatch: Patch) -> None:
    times, cell = iter([10.0, 20.0]), SMALLEST.cell()
    monkeypatch.setattr(loops, "_after_all", lambda device: next(times))
    assert loops.bare(loops.ours(cell), SMALLEST, cell, skipped=4) == 10.0 / 5  # steps 4 to 8 of 10


def test_a_peer_that_is_not_there_is_a_reason(monkeypatch: Patch, check_message: CheckMessage) -> None:
    monkeypatch.setattr("benchmarks.peers.installed", lambda name: None)
    found = contenders(None)
    assert set(found) == {*PACKAGED, "nanoGPT"}
    check_message([f"{name}: {reason}" for name, reason in found.items()])


def test_a_peer_of_another_version_that_fails_is_a_reason() -> None:
    def refuse(*_: Any) -> nn.Module:
        raise TypeError("no argument 'heads'\nof mine")

    assert tried(Contender(refuse, loss_of_logits, ""), SMALLEST, 9) == "failed: TypeError: no argument 'heads'"


def test_a_checkout_of_nanogpt_is_built_with_these_sizes(tmp_path: Path, capsys: Capture) -> None:
    """Its model prints how many parameters it has, gives logits and loss, and knows `bias` and `dropout`."""
    (tmp_path / "model.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "@dataclass\n"
        "class GPTConfig:\n"
        "    block_size: int; vocab_size: int; n_layer: int; n_head: int; n_embd: int; dropout: float; bias: bool\n"
        "class GPT(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        print('number of parameters')\n"
        "        self.config, self.table = config, nn.Embedding(config.vocab_size, config.vocab_size)\n"
        "    def forward(self, x, y):\n"
        "        logits = self.table(x)\n"
        "        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())\n"
    )
    peer = nanogpt(tmp_path)
    made: Any = peer.make(SMALLEST, 9)
    assert (made.config.n_embd, made.config.block_size, made.config.dropout) == (SMALLEST.width, SMALLEST.context, 0.0)
    assert tried(peer, SMALLEST, 9) == ""
    assert capsys.readouterr().out == ""


def test_a_wrong_checkout_of_nanogpt_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("raise SyntaxError('not this')")
    assert contenders(tmp_path)["nanoGPT"] == "failed: SyntaxError: not this"
    (tmp_path / "model.py").write_text("raise SystemExit(3)")
    assert contenders(tmp_path)["nanoGPT"] == "failed: SystemExit: 3"


# machine and memory --------------------------------------------------------------------------------------------------

CPUINFO = "processor\t: 0\nmodel name\t: Some Processor 3\nflags\t\t: fpu avx2 amx_bf16 amx_tile\n"


def test_the_machine_is_described_without_its_name() -> None:
    assert processor(CPUINFO) == "Some Processor 3"
    assert machine.flags(CPUINFO) == ["avx2", "amx_tile", "amx_bf16"]
    assert machine.flags("Features\t: fp asimd sve\n") == ["asimd", "sve"]
    assert machine.flags("") == []
    assert described.blas("BLAS_INFO=mkl, X=1, USE_MKLDNN=ON, ") == "mkl, oneDNN"
    assert described.blas("") == "unknown"
    found = described.describe_machine(threads=3)
    assert found["threads"] == 3
    assert found["packages"]["torch"] == described.installed("torch")
    assert described.installed("no-such-package-anywhere") is None
    assert not {"host", "hostname", "node"} & found.keys()
    amd = {"processor": "AMD EPYC 9R14", "flags": ["avx2", "avx512f", "avx512_bf16"]}
    intel = {"processor": "Intel(R) Xeon(R) Processor", "flags": [*amd["flags"], "amx_bf16"]}
    names = [described.kind(one) for one in (amd, intel, {**amd, "flags": ["avx2"]}, {**amd, "flags": []})]
    assert names == ["amd-avx512-bf16", "intel-amx-bf16", "amd-avx2", "amd"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's own mark of the peak")
def test_the_peak_of_a_process_excludes_its_parents() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks.memory import peak; print(peak())"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', {code!r}], check=True)"
    parent = f"held = b'x' * 800 * 2**20; {child}"
    done = subprocess.run([sys.executable, "-P", "-c", parent], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 400


@pytest.mark.slow
def test_a_measurement_that_fails_in_its_process_says_how() -> None:
    with pytest.raises(RuntimeError, match="KeyError"):
        in_child("no such kind")


# what is written -----------------------------------------------------------------------------------------------------


def result(rows: list[Row]) -> Result:
    machine = dict(BENCH["machine"])
    return {
        "format": 1,
        "lm": "1",
        "quick": False,
        "machine": machine,
        "cases": {"start": {"about": "so", "rows": rows}},
    }


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


ROWS = [
    row("g", "a", 1.0, to="a", ratio=exactly(1.0)),
    row("g", "b", 0.5, to="a", ratio=exactly(0.5)),
    row("g", "c", None),
]


def test_a_figure_draws_what_is_compared_with_something_else() -> None:
    assert [one["way"] for one in compared(ROWS)] == ["b"]
    first = drawn(result(ROWS))
    assert first is not None
    assert first.startswith(b"\x89PNG")
    assert first == drawn(result(ROWS))
    assert drawn(result(ROWS[::2])) is None


def test_what_is_not_there_is_a_row_all_the_same(capsys: Capture) -> None:
    from rich.console import Console

    show(result([*ROWS[:2], row("g", "peer", None, to="a", note="not installed")]), Console(width=120))
    said = capsys.readouterr().out
    assert "peer: not installed" in said
    assert "500 ms" in said


@pytest.mark.parametrize("rounds", [5, 1])
def test_a_ratio_of_several_rounds_is_called_a_median(
    rounds: int, capsys: Capture, check_message: CheckMessage
) -> None:
    from rich.console import Console

    ratio: Spread = {"median": 0.5, "low": 0.4, "high": 0.6, "rounds": rounds}
    show(result([ROWS[0], row("g", "b", 0.5, to="a", ratio=ratio)]), Console(width=160))
    check_message([" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if "way" in line])


def test_a_quick_look_says_that_its_figures_mean_nothing(check_message: CheckMessage) -> None:
    check_message([machine_line({**result([]), "quick": quick}) for quick in (True, False)])


def test_cases_are_shown_by_name(tmp_path: Path, capsys: Capture) -> None:
    from rich.console import Console

    path = written(tmp_path / "b.json", BENCH)
    run.show_again(path, ["scale"], Console(width=120))
    assert "start" not in capsys.readouterr().out
    run.show_again(path, [], Console(width=120))
    assert "start" in capsys.readouterr().out
    assert path.with_suffix(".png").is_file()


def drop(name: str) -> Callable[[Any], None]:
    return lambda found: found.pop(name)


@pytest.mark.parametrize(
    "damage",
    [
        drop("format"),
        drop("cases"),
        drop("machine"),
        lambda found: found["machine"].pop("flags"),
        lambda found: found["cases"]["start"]["rows"][0].pop("note"),
        lambda found: found["cases"]["start"]["rows"][0].update(value="1"),
        lambda found: found["cases"]["start"]["rows"][0]["ratio"].pop("low"),
        lambda found: found["cases"]["start"].update(rows={}),
    ],
    ids=["format", "cases", "machine", "flags", "note", "value", "low", "rows"],
)
def test_a_file_that_no_run_has_written_is_refused(
    tmp_path: Path, damage: Callable[[Any], None], refused: Refused
) -> None:
    content = json.loads(json.dumps(BENCH))
    path = written(tmp_path / "b.json", content)
    assert read_result(path) == content
    damage(content)
    with refused():
        read_result(written(path, content))


def test_each_case_is_written_as_it_ends(tmp_path: Path, monkeypatch: Patch) -> None:
    from rich.console import Console

    def measured(self: Case, asked: Asked) -> Measured:
        if self.name == "cells":
            raise RuntimeError("it failed")
        return {"about": self.about, "rows": [row("g", self.name, 1.0, note=OVER)]}

    monkeypatch.setattr(Case, "measured", measured)
    out, quiet = tmp_path / "b.json", Console(quiet=True)
    with pytest.raises(RuntimeError, match="it failed"):
        run.bench([CASES["start"], CASES["cells"]], Asked(), out, quiet)
    assert list(read_result(out)["cases"]) == ["start"]
    assert run.bench([CASES["scale"]], Asked(), None, quiet) == 1
    assert run.bench([CASES["scale"]], Asked(quick=True), None, quiet) == 0


def test_cases_stay_until_they_are_measured_again_on_the_same_machine(tmp_path: Path, monkeypatch: Patch) -> None:
    from rich.console import Console

    def times(name: str, seconds: float, threads: int = 1) -> dict[str, float | None]:
        """Measure a case, and return what the file has then."""
        rows = [row("g", name, seconds)]
        monkeypatch.setattr(Case, "measured", lambda self, asked: {"about": self.about, "rows": list(rows)})
        assert run.bench([CASES[name]], Asked(threads), out, Console(quiet=True)) == 0
        return {name: case["rows"][0]["value"] for name, case in read_result(out)["cases"].items()}

    out = tmp_path / "b.json"
    assert times("start", 1.0) == {"start": 1.0}
    assert times("step", 2.0) == {"step": 2.0, "start": 1.0}
    assert times("start", 3.0) == {"step": 2.0, "start": 3.0}
    assert all(case["date"] for case in read_result(out)["cases"].values())
    assert times("step", 4.0, threads=2) == {"step": 4.0}, "others have other threads"
    out.write_text("{}")
    assert times("step", 5.0) == {"step": 5.0}


# the command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["stp"],
        ["step", "--nanogpt", "nowhere"],
        ["--threads", "0"],
        ["--out", "here.txt"],
        ["--out", "file/b.json"],
        ["--show", "nowhere.json"],
        ["--show", "file", "--out", "other.json"],
        ["step", "--model.width", "8"],
    ],
)
def test_what_cannot_be_used_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no JSON")
    refused_command(arguments, main)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_no_json_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("no JSON")
    refused(capsys, ["--show", tmp_path / "file"], f"{tmp_path / 'file'}: ", run=main)


def test_cases_are_listed(capsys: Capture) -> None:
    assert main(["--list"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == list(CASES)


@pytest.mark.extra
@pytest.mark.timeout(0)
def test_a_quick_run_writes_a_file_of_the_declared_shape(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "deep" / "b.json"
    assert main(["--quick", "parts", "step", "--threads", "1", "--out", str(out)]) == 0
    found = read_result(out)
    assert found["quick"] is True
    assert list(found["cases"]) == ["step", "parts"]
    ways = {one["way"]: one for one in found["cases"]["step"]["rows"]}
    assert {"ours, bare loop, fp32", "lm fit, fp32", "lm fit, bf16"} <= ways.keys()
    assert ways["nanoGPT"]["note"] == contenders(None)["nanoGPT"]
    assert ways["lm fit, fp32"]["more"]["peak_mib"] is not None
    for case in found["cases"].values():
        assert all(one["value"] is None or one["value"] > 0 for one in case["rows"])
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "lm fit, bf16" in capsys.readouterr().out
    assert main(["--show", str(out)]) == 0


def test_made_up_records_all_enter_the_report(tmp_path: Path) -> None:
    results = load(made_up(tmp_path, 20))
    assert not results.harmed
    assert sum(record is not None for record in results.records.values()) == 20


@pytest.mark.extra
@pytest.mark.timeout(0)
def test_the_other_cases_run_at_their_smallest() -> None:
    for name in ("roofline", "losses", "text", "generation", "start", "cells", "scale"):
        measured = CASES[name].measured(Asked(quick=True))
        assert measured["rows"], name
        assert all(one["value"] is not None for one in measured["rows"]), name
