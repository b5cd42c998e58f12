"""The coordinate check: what it measures, and how its figure and table are made."""

import json
import math
from pathlib import Path

import pytest
import yaml
from helpers import RUN, Capture
from messages import RefusedCommand

from lm.cli import main
from lm.config.tree import override
from lm.inference.coordinates import coordinates, draw_coordinates, exponents, slope


def test_the_power_of_the_width_is_a_slope_of_logarithms() -> None:
    assert slope({"8": 3.0, "16": 6.0, "32": 12.0}) == pytest.approx(1.0)
    assert slope({"8": 3.0, "16": 3.0}) == pytest.approx(0.0)
    assert math.isnan(slope({"8": 3.0, "16": 0.0}))


@pytest.mark.slow
def test_activations_are_measured_by_layer_width_and_step() -> None:
    small = override(RUN, {"model.initializer": "FanIn", "optim.lr": 0.03})
    found = coordinates(small, [16, 64], [1, 3])
    assert found["parametrization"]["init_args"] == {"base_width": 16, "base_heads": 2}
    layers = found["activations"]["scaled"]["3"]
    assert set(layers) == {
        "embedding", "logits", *(f"blocks.{n}{part}" for n in (0, 1) for part in ("", ".attention", ".mlp"))
    }  # fmt: skip
    assert all(set(by_width) == {"16", "64"} for by_width in layers.values())
    at_base = [found["activations"][name]["3"]["blocks.1"]["16"] for name in ("standard", "scaled")]
    assert at_base[0] == at_base[1], "at its base width it is the standard model"
    powers = {(name, layer): power for name, step, layer, power in exponents(found) if step == "3"}
    assert powers["standard", "blocks.1.mlp"] > powers["scaled", "blocks.1.mlp"] + 0.3
    assert draw_coordinates(json.loads(json.dumps(found))).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "given",
    [
        ["--widths", "16"],
        ["--widths", "16,x"],
        ["--steps", "0"],
        ["--widths", "15,16", "--steps", "1"],
        ["--out", "check.txt"],
        ["--widths", "8,16", "--steps", "1", "optim.optimizer=SGD"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_checked_is_one_line(tmp_path: Path, given: list[str], refused_command: RefusedCommand) -> None:
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(RUN))
    refused_command(["coordinates", path, *given])


@pytest.mark.extra
def test_command_prints_a_table_and_writes_a_figure(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(RUN))
    out = tmp_path / "check.json"
    assert main(["coordinates", str(path), "--widths", "8,16", "--steps", "1", "--out", str(out)]) == 0
    assert "blocks.1.mlp" in capsys.readouterr().out
    assert json.loads(out.read_text())["activations"]["standard"]["1"]
    assert out.with_suffix(".png").is_file()
