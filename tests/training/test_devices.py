"""Several processes compute what one computes."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import RUN

from lm.cli import main
from lm.store.documents import KEPT, Documents, read_documents

pytestmark = pytest.mark.slow


Run = tuple[dict[str, Any], list[str], dict[str, torch.Tensor], dict[str, Documents]]


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of one process, which all others are held against."""
    folder = tmp_path_factory.mktemp("one") / "out"
    assert main(command(folder)) == 0
    return result(folder)


def command(folder: Path, *more: str) -> list[str]:
    config = folder.parent / "run.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(yaml.safe_dump(RUN))
    return ["fit", str(config), "--out", str(folder), *more]


def fit(folder: Path, *more: str) -> Run:
    """The result of a process of its own, and of those that it starts."""
    words = [sys.executable, "-m", "lm", *command(folder, *more)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return result(folder)


def result(folder: Path) -> Run:
    """Record, learning curve, weights and losses by document of one run of the command line."""
    (path,) = folder.glob("cells/[0-9a-f]*/record.json")
    record, checkpoint = json.loads(path.read_text()), torch.load(path.with_name("last.ckpt"), weights_only=True)
    return (
        record,
        path.with_name("history.csv").read_text().splitlines(),
        checkpoint["state_dict"],
        {loss: read_documents(path.with_name(file), record, loss) for loss, (_, file) in KEPT.items()},
    )


def columns_of(curve: list[str]) -> dict[str, list[float]]:
    """The columns of a learning curve by name, 0 where a row says nothing."""
    rows = list(csv.DictReader(curve))
    return {name: [float(row[name] or 0.0) for row in rows] for name in rows[0]}


@pytest.mark.parametrize(
    "strategy",
    ["ddp", *(pytest.param(name, marks=pytest.mark.extra) for name in ("fsdp2", "ddp_fork", "tensor_parallel"))],
)
def test_two_processes_give_the_losses_weights_and_metrics_of_one(tmp_path: Path, of_one: Run, strategy: str) -> None:
    one, curve, weights, kept = of_one
    two, other_curve, other_weights, other_kept = fit(
        tmp_path / "two", "--trainer.devices", "2", "--trainer.strategy", strategy, "--trainer.accelerator", "cpu"
    )
    assert two["cost"]["world_size"] == 2
    assert two["id"] == one["id"]
    assert two["pairing"] == one["pairing"]
    assert two["evaluated"] == one["evaluated"]
    assert two["reliability"]["count"] == one["reliability"]["count"]
    noise = strategy in ("fsdp2", "tensor_parallel")  # which is measured where a process holds all weights
    for name, value in one["metrics"].items():
        if noise and name == "noise_scale":
            assert two["metrics"][name] is None
            continue
        assert two["metrics"][name] == pytest.approx(value, rel=1e-9), name
    for name in ("parameters", "tokens"):
        assert two["cost"][name] == one["cost"][name]
    columns, others = columns_of(curve), columns_of(other_curve)
    assert columns.keys() - others.keys() == ({"noise_trace", "noise_signal"} if noise else set())
    for name, values in others.items():
        assert values == pytest.approx(columns[name], rel=1e-9), name
    assert other_weights.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(other_weights[name], value, rtol=1e-9, atol=1e-12)
    for loss, documents in kept.items():
        assert np.count_nonzero(documents.tokens_d) > 20
        assert other_kept[loss].tokens_d.tolist() == documents.tokens_d.tolist()
        np.testing.assert_allclose(other_kept[loss].nll_d, documents.nll_d, rtol=1e-6)  # sums are kept as float32


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_cuda_devices_under_fsdp2_equal_the_cpu(tmp_path: Path, of_one: Run) -> None:
    cpu, *_ = of_one
    more = ("--trainer.accelerator", "cuda", "--trainer.devices", "2", "--trainer.strategy", "fsdp2")
    cuda, *_ = fit(tmp_path / "cuda", *more)
    assert cuda["pairing"] == cpu["pairing"]
    for name in ("nll", "ece", "gradient_norm"):
        assert cuda["metrics"][name] == pytest.approx(cpu["metrics"][name], rel=1e-6), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_gives_the_losses_of_the_cpu(tmp_path: Path, of_one: Run) -> None:
    cpu, *_ = of_one
    cuda, *_ = fit(tmp_path / "cuda", "--trainer.accelerator", "cuda")
    assert cuda["pairing"] == cpu["pairing"]
    assert cuda["metrics"]["nll"] == pytest.approx(cpu["metrics"]["nll"], rel=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("attention", ["MultiHead", "LinearAttention", "GatedLinear"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_a_cuda_device_trains_to_the_same_bits_again(tmp_path: Path, attention: str, precision: str) -> None:
    of = {"accelerator": "cuda", "precision": precision}
    more = [f"--trainer.{name}={value}" for name, value in of.items()]
    more += ["--data.context=256", f"--model.attention={attention}"]
    record, curve, weights, _ = fit(tmp_path / "first" / "out", *more)
    again, curve_again, weights_again, _ = fit(tmp_path / "second" / "out", *more)
    assert again["metrics"] == record["metrics"]
    assert curve_again == curve
    assert weights.keys() == weights_again.keys()
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_whole_compilation_on_cuda_keeps_the_losses_of_the_cpu(tmp_path: Path, of_one: Run) -> None:
    cpu, *_ = of_one
    cuda, *_ = fit(tmp_path / "cuda", "--trainer.accelerator", "cuda", "--trainer.compile", "true")
    assert cuda["flags"] == []
    assert cuda["cost"]["compile_seconds"] > 0
    assert cuda["metrics"]["nll"] == pytest.approx(cpu["metrics"]["nll"], rel=1e-5)
