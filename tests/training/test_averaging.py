"""The moving average of the weights: its closed form, its evaluation, and its place in checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN, decoder, known
from messages import Refused
from small_runs import curve, train_cell

from lm.config.components import build
from lm.config.tree import override
from lm.data.text import TextData
from lm.model.transformer import build_and_initialize
from lm.store.metrics import describe
from lm.training.averaging import WeightAverage, average_decay
from lm.training.cell import check
from lm.training.run import RunConfig

EMA = {"trainer.ema": {"decay": 0.6}}


def test_weights_of_the_average_add_up_to_one() -> None:
    model, average, history = decoder().double(), WeightAverage(0.7), list[torch.Tensor]()
    parameter = model.embedding.tokens.weight
    for step in range(6):
        with torch.no_grad():
            parameter.add_(torch.full_like(parameter, float(step)))
        history.append(parameter.detach().clone())
        average.update(model)
    weights = torch.tensor([0.7**age for age in range(6)][::-1], dtype=torch.float64)
    expected = torch.einsum("t,tvd->vd", weights / weights.sum(), torch.stack(history))
    torch.testing.assert_close(average.values["embedding.tokens.weight"], expected, rtol=1e-12, atol=1e-12)
    with average.applied(model):
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(parameter.detach(), history[-1])


def test_averages_of_half_precision_are_single() -> None:
    model, average = decoder().bfloat16(), WeightAverage(0.999)
    average.update(model)
    assert {value.dtype for value in average.values.values()} == {torch.float32}


def test_a_half_life_is_the_steps_to_half_the_weight() -> None:
    assert known(average_decay({"half_life": 10})) ** 10 == pytest.approx(0.5, rel=1e-12)
    assert average_decay({"decay": 0.9}) == 0.9
    assert average_decay(None) is None


@pytest.mark.parametrize(
    "options", [{"decay": 1.0}, {"half_life": 0.0}, {"rate": 0.9}, {"decay": 0.9, "half_life": 3}, {}], ids=str
)
def test_other_options_are_refused(options: dict[str, float], refused: Refused) -> None:
    with refused():
        check(override(RUN, {"trainer.ema": options}))


def test_an_average_changes_the_id_and_none_does_not() -> None:
    assert check(override(RUN, {"trainer.ema": None})).id == check(RUN).id != check(override(RUN, EMA)).id
    assert "ema" not in check(RUN).config["trainer"]
    assert describe("nll_ema").better == "lower"


@pytest.mark.slow
def test_the_average_is_evaluated_and_leaves_training_as_it_is(tmp_path: Path) -> None:
    _, plain, _ = train_cell(tmp_path / "plain")
    cell, record, folder = train_cell(tmp_path / "ema", EMA)
    for name in ("nll", "test_nll", "train_loss"):
        assert record["metrics"][name] == plain["metrics"][name]
    rows = [row for row in curve(folder) if row["validation_nll_ema"]]
    assert [row["step"] for row in rows] == ["4", "8", "12"]
    checkpoint: Any = torch.load(folder / "last.ckpt", weights_only=True)
    (state,) = (value for name, value in checkpoint["callbacks"].items() if name.startswith("Recorder"))
    assert state["average"]["updates"] == 12
    built: RunConfig = build(cell.config, RunConfig)
    data = built.data(0)
    assert isinstance(data, TextData)
    data.setup("fit")
    model = build_and_initialize(built.model, cell.facts.vocabulary, data.context, 0).double().eval()
    model.load_state_dict(state["average"]["values"], strict=False)
    with torch.no_grad():
        batches = list(data.evaluation_batches("validation"))
        logits_nv = torch.cat([model(*batch.inputs).flatten(0, 1) for batch in batches])
    nll = torch.nn.functional.cross_entropy(logits_nv, torch.cat([batch.targets_bt.flatten() for batch in batches]))
    assert record["metrics"]["nll_ema"] == pytest.approx(nll.item(), rel=1e-12)
    assert record["metrics"]["nll_ema"] != record["metrics"]["nll"]
