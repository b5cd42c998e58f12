"""A plain torch module as the model of a run: trained, resumed, compared and continued without further measurements."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN
from messages import CheckMessage, Refused
from small_runs import own_module, resume_cell, train_cell

from lm.cli import main
from lm.config.tree import InputError, override
from lm.store.store import Store
from lm.training.cell import check

SOURCE = """
from torch import Tensor, nn


class Recurrent(nn.Module):
    def __init__(self, vocabulary: int, context: int, hidden: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.cells = nn.LSTM(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.head(self.cells(self.tokens(tokens_bt))[0])


class ByName(Recurrent):
    def __init__(self, hidden: int, vocabulary: int, context: int) -> None:
        super().__init__(vocabulary, context, hidden)


class Alone(Recurrent):
    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary, 8)


class Hidden(Recurrent):
    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.tokens(tokens_bt)


class State(Recurrent):
    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.cells(self.tokens(tokens_bt))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with a user's own classes."""
    return own_module(tmp_path, monkeypatch, SOURCE)


def test_a_constructor_that_takes_too_little_is_refused(own: str, refused: Refused) -> None:
    with refused():
        check(override(RUN, {"model": f"{own}.Alone"}))


@pytest.mark.extra
def test_a_module_is_an_arm_beside_the_decoder(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    out, spec = tmp_path / "out", tmp_path / "spec.yaml"
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(RUN))
    arms = {"decoder": {}, "recurrent": {"model": {"class_path": f"{own}.Recurrent", "init_args": {"hidden": 12}}}}
    spec.write_text(yaml.safe_dump({"base": "base.yaml", "baseline": "decoder", "arms": arms, "seeds": 1}))
    assert main(["ablate", str(spec), "--out", str(out), "--underpowered", "--workers", "1"]) == 0
    manifest = json.loads((out / "spec" / "experiment.json").read_text())["arms"]["recurrent"]
    assert (manifest["changes"]["model"], manifest["flops_per_token"]) == (["Decoder", f"{own}.Recurrent"], None)
    record: Any = Store(out).record(manifest["cells"]["0"])
    assert record["status"] == "ok"
    assert record["metrics"]["nll"] < 6
    assert not {"entropy", "residual_norm", "block_share"} & record["final"].keys()
    assert "recurrent" in (out / "spec" / "report.html").read_text()
    capsys.readouterr()
    assert main(["generate", manifest["cells"]["0"], "--out", str(out), "--prompt", "ab", "--tokens", "3"]) == 0
    check_message(re.sub(r"\d[\d,.]*", "N", capsys.readouterr().err).splitlines())


@pytest.mark.slow
def test_a_module_resumes_where_it_stopped(own: str, tmp_path: Path) -> None:
    changes = {"model": f"{own}.ByName", "model.hidden": 8}
    _, whole, _ = train_cell(tmp_path / "whole", changes)
    _, resumed, _ = resume_cell(tmp_path / "halted", changes, 9)
    assert resumed["provenance"]["resumed"] == 1
    assert resumed["metrics"] == whole["metrics"]


@pytest.mark.parametrize("cls", ["Hidden", "State"])
def test_a_module_that_gives_no_logits_is_refused(own: str, check_message: CheckMessage, cls: str) -> None:
    with pytest.raises(InputError) as caught:
        check(override(RUN, {"model": f"{own}.{cls}"}))
    check_message(str(caught.value).replace(own, "own"))


def test_initial_weights_are_a_function_of_the_seed(own: str) -> None:
    def weights(seed: int) -> list[Any]:
        built = check(override(RUN, {"model": f"{own}.Recurrent", "seed": seed})).open()
        return [p.tolist() for p in built.model().parameters()]

    assert weights(0) == weights(0) != weights(1)
