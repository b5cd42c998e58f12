"""Heads that predict later tokens: against the same layers called one by one, and without effect on the first head."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import CONTEXT, MODEL, RUN, VOCABULARY, Patch, blocks, decoder, noisy, tokens
from messages import Refused
from small_runs import train_cell
from torch import Tensor
from torch.nn.functional import cross_entropy, rms_norm

from lm.config.tree import override
from lm.data.batch import Batch
from lm.model.attention import Mask
from lm.model.flops import flops_per_row
from lm.model.transformer import Decoder
from lm.training.cell import check
from lm.training.module import LanguageModel
from lm.training.objective import CrossEntropy

KINDS = ("ParallelHeads", "SequentialHeads")


def with_heads(kind: str, heads: int = 2, **options: Any) -> dict[str, Any]:
    return {"prediction": {"class_path": kind, "init_args": {"heads": heads, **options}}}


def loss_of(model: Decoder, tokens_bt: Tensor, targets_bt: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
    """What training minimises, and the losses of the heads with their weights."""
    optim: Any = SimpleNamespace(objective=CrossEntropy())
    module = LanguageModel(model.train(), optim, torch.ones(VOCABULARY), 0)
    module._trainer = SimpleNamespace(strategy=None)  # type: ignore[assignment]
    batch = Batch((tokens_bt,), targets_bt, torch.arange(len(tokens_bt)))
    return module.loss(batch), module.loss_and_extras(batch)[1]


def losses_by_hand(model: Decoder, kind: str, tokens_bt: Tensor, targets_bt: Tensor) -> list[Tensor]:
    """The loss of each head, the first one's included, from the layers."""
    prediction: Any = model.prediction
    run = lambda block, x_btd: block(x_btd, model.position, Mask(True, None))  # noqa: E731
    embedded_btd = x_btd = model.embedding.tokens(tokens_bt)
    for block in model.blocks[:-1]:
        x_btd = run(block, x_btd)
    states = [run(model.blocks[-1], x_btd)]
    for head, block in enumerate(prediction.blocks):
        if kind == "ParallelHeads":
            states.append(run(block, x_btd))
            continue
        later_btd = torch.zeros_like(embedded_btd)
        later_btd[:, : -1 - head] = embedded_btd[:, 1 + head :]
        normed = [
            rms_norm(y_btd, y_btd.shape[-1:], norms[head].weight)
            for y_btd, norms in ((states[-1], prediction.state_norms), (later_btd, prediction.token_norms))
        ]
        states.append(run(block, torch.cat(normed, dim=-1) @ prediction.joins[head].weight.t()))
    losses = []
    for ahead, state_btd in enumerate(states):
        logits_btv = model.final_norm(state_btd) @ model.embedding.tokens.weight.t()
        if (cap := model.logit_softcap) is not None:
            logits_btv = cap * (logits_btv / cap).tanh()
        time = CONTEXT - ahead
        losses.append(cross_entropy(logits_btv[:, :time].flatten(0, 1), targets_bt[:, ahead:].flatten()))
    return losses


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(("kind", "each"), [("ParallelHeads", 0.7), ("SequentialHeads", 0.35)])
def test_losses_and_gradients_are_those_of_layers_called_separately(
    kind: str, each: float, softcap: float | None, chunked: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lm.training.module.max_logits", lambda device: 0 if chunked else 2**24)
    monkeypatch.setattr("lm.training.module.has_full_parameters", lambda _: True)
    model = noisy(decoder({**with_heads(kind, weight=0.7), "embedding.softcap": softcap}))
    tokens_bt, targets_bt = tokens(), tokens(seed=1)
    total, extras = loss_of(model, tokens_bt, targets_bt)
    first, *later = losses_by_hand(model, kind, tokens_bt, targets_bt)
    assert [(name, weight) for name, (_, weight) in extras.items()] == [("token_2", each), ("token_3", each)]
    for (loss, _), expected in zip(extras.values(), later, strict=True):
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(total, first + each * sum(later), rtol=1e-10, atol=0)
    parameters = list(model.parameters())
    pairs = zip(*(torch.autograd.grad(x, parameters) for x in (total, first + each * sum(later))), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_head_is_the_model_without_others(kind: str) -> None:
    plain, model = decoder(), decoder(with_heads(kind))
    own = dict(model.named_parameters())
    assert all(torch.equal(value, own[name]) for name, value in plain.named_parameters())
    assert torch.equal(model.eval()(tokens()), plain.eval()(tokens()))
    assert torch.equal(model.train()(tokens()), plain.train()(tokens()))
    assert "token_2" not in loss_of(plain, tokens(), tokens(seed=1))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_ignored_targets_and_evaluation_have_no_extra_loss(kind: str) -> None:
    model = noisy(decoder(with_heads(kind)))
    targets_bt = tokens(seed=1)
    targets_bt[:, 1:] = -100
    assert [float(loss.detach()) for loss, _ in loss_of(model, tokens(), targets_bt)[1].values()] == [0, 0]
    prediction: Any = model.prediction
    model.eval()(tokens())
    assert prediction.states == []


def test_parameters_and_flops_of_heads_are_counted() -> None:
    plain, width = decoder(), MODEL["init_args"]["width"]
    block = sum(p.numel() for p in blocks(plain)[-1].parameters())
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    joined = 2 * width + 2 * width * width  # the gains of two norms, and the matrix that joins what they give
    for kind, more in (("ParallelHeads", 0), ("SequentialHeads", joined)):
        model = decoder(with_heads(kind))
        assert count(model) - count(plain) == 2 * (block + more)
        matrices = [m for m in blocks(plain)[-1].modules() if isinstance(m, torch.nn.Linear)]
        linear = sum(2 * m.weight.numel() for m in matrices) + 2 * width * VOCABULARY
        linear += 4 * width * width if more else 0
        before, after = flops_per_row(plain, CONTEXT), flops_per_row(model, CONTEXT)
        assert after.linear - before.linear == 2 * CONTEXT * linear
        assert after.attention == before.attention * 4 / 2


@pytest.mark.parametrize("changes", [{"heads": 0}, {"heads": 16}, {"weight": -1.0}], ids=str)
def test_options_beyond_their_domain_are_refused(changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        check(override(RUN, {"model.prediction": {"class_path": "ParallelHeads", "init_args": changes}}))


def test_a_model_without_heads_keeps_its_id() -> None:
    assert check(override(RUN, {"model.prediction": None})).id == check(RUN).id
    assert "prediction" not in check(RUN).config["model"]["init_args"]


def test_heads_need_whole_weights(refused: Refused) -> None:
    changes = {"model.prediction": "ParallelHeads", "trainer.devices": 2, "trainer.strategy": "fsdp2"}
    with refused():
        check(override(RUN, changes))


def test_the_plan_knows_the_losses_of_heads(refused: Refused) -> None:
    heads = {"model.prediction": "ParallelHeads"}
    check(override(RUN, {**heads, "optim.objective.extra": {"token_2": 0.5}}))
    with refused():
        check(override(RUN, {**heads, "optim.objective.extra": {"token_9": 0.5}}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_records_the_losses_of_heads(tmp_path: Path, kind: str) -> None:
    changes = {"model.prediction": {"class_path": kind, "init_args": {"heads": 2}}, "trainer.log_every_n_steps": 1}
    _, whole, folder = train_cell(tmp_path / "whole", changes)
    rows = list(csv.DictReader((folder / "history.csv").open()))
    assert float(rows[-1]["extra_token_3"]) < float(rows[1]["extra_token_3"])
    assert whole["metrics"]["extra_token_2"] == float(rows[-1]["extra_token_2"])
