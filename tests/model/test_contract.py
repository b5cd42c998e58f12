"""What every part of a decoder must keep, for every class that may stand in its place."""

import copy
from typing import Any

import pytest
import torch
from helpers import CONTEXT, VOCABULARY, assert_gradients, decoder, parts, tokens
from messages import Refused

from lm.model.initializers import ResidualLinear
from lm.model.transformer import checkpoint_activations

PARTS: list[tuple[str, Any]] = [
    *parts(),
    ("embedding.norm", "LayerNorm"),
    ("position", {"class_path": "Rope", "init_args": {"share": 0.5, "interleaved": True}}),
]


@pytest.fixture(params=PARTS, ids=[f"{kind}={name}" for kind, name in PARTS])
def change(request: pytest.FixtureRequest) -> dict[str, Any]:
    kind, name = request.param
    return {kind: name}


@torch.no_grad()
def test_output_before_a_token_does_not_depend_on_it(change: dict[str, Any]) -> None:
    model, before = decoder(change).double().eval(), tokens(batch=1)
    after = before.repeat(CONTEXT, 1)  # in row t token t is another
    after.diagonal().add_(1).remainder_(VOCABULARY)
    left, right = model(before.repeat(CONTEXT, 1)), model(after)
    rounding = 1e-14 if change.get("mlp") == "Experts" else 0  # its products are over the tokens of an expert
    for time in range(CONTEXT):
        torch.testing.assert_close(left[time, :time], right[time, :time], rtol=0, atol=rounding)
        assert (left[time, time] != right[time, time]).any(), "a token must change its own output"


def test_every_parameter_gets_a_gradient(change: dict[str, Any]) -> None:
    model = decoder({"initializer.std": 0.3, **change}).double().eval()  # a training BatchNorm takes offsets out
    with torch.no_grad():  # ReZero starts where no sublayer has any effect
        for parameter in model.parameters():
            parameter.add_((parameter.abs().max() == 0) * 0.1)
    model(tokens()).square().sum().backward()
    # Softmax ignores what is added to all scores of a row, so an offset of the keys changes nothing unless turned.
    assert_gradients(model, ignored="attention.key.bias")


def test_shapes_and_dtypes_are_kept_and_autocast_is_finite(change: dict[str, Any]) -> None:
    model = decoder(change)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens())
    logits.float().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits = model.to(dtype)(tokens(batch=2))
        assert logits.shape == (2, CONTEXT, VOCABULARY)
        assert logits.dtype == dtype


def test_recomputed_activations_give_the_same_gradients(change: dict[str, Any], refused: Refused) -> None:
    gradients, forward_passes = [], []
    for recompute in (False, True):
        model = decoder({"dropout": 0.1, **change}).double().train()
        if recompute and change in ({"mlp": "Experts"}, {"norm": "BatchNorm"}):
            with refused(ValueError):
                checkpoint_activations(model)
            return
        if recompute:
            checkpoint_activations(model)
        calls: list[None] = []
        for block in model.blocks:
            block.register_forward_pre_hook(lambda *_, calls=calls: calls.append(None))
        torch.manual_seed(1)
        logits = model(tokens())
        later = [] if model.prediction is None else [state.square().sum() for state in model.prediction.states]
        (logits.square().sum() + sum(later)).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        forward_passes.append(len(calls))
    assert forward_passes[1] == 2 * forward_passes[0]
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


def test_activations_are_computed_again_wherever_there_are_gradients() -> None:
    model, calls = decoder().double().eval(), list[None]()
    checkpoint_activations(model)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: calls.append(None))
    model(tokens()).sum().backward()
    assert len(calls) == 2 * len(model.blocks), "as in the measurement of gradient noise"
    with torch.no_grad():
        model(tokens())
    assert len(calls) == 3 * len(model.blocks)


@torch.no_grad()
def test_state_dict_round_trip_gives_the_same_outputs(change: dict[str, Any]) -> None:
    model, other = decoder(change, seed=0).eval(), decoder(change, seed=1).eval()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(model(tokens()), other(tokens()), rtol=0, atol=0)


def test_values_depend_on_the_seed_and_the_name_alone(change: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = decoder(change)
    torch.manual_seed(2)
    again, base = dict(decoder(change).named_parameters()), dict(decoder().named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again[name]), name
    if "parametrization" in change or change == {"block": "DeepNorm"}:  # first values are what these are about
        return
    shared = [name for name in base if name in again and base[name].shape == again[name].shape]
    assert len(shared) > len(base) / 2
    for name in shared:
        assert torch.equal(base[name], again[name]), name


@pytest.mark.parametrize("other", [{"mlp": "SwiGLU"}, {"attention.bias": False}], ids=str)
def test_vectors_of_an_attention_do_not_depend_on_other_parts(other: dict[str, Any]) -> None:
    base = dict(decoder({"attention": "Differential"}).named_parameters())
    changed = dict(decoder({"attention": "Differential", **other}).named_parameters())
    vectors = [name for name in base if "share_vectors" in name]
    assert len(vectors) >= 4
    for name in vectors:
        assert torch.equal(base[name], changed[name]), name
        assert 0 < base[name].std() < 0.3


def test_another_seed_gives_other_values() -> None:
    left, right = decoder(seed=0), decoder(seed=1)
    maps = (torch.nn.Linear, torch.nn.Embedding)
    for (name, module), other in zip(left.named_modules(), right.modules(), strict=True):
        if isinstance(module, maps) and isinstance(other, maps):
            assert not torch.equal(module.weight, other.weight), name


def test_maps_into_the_residual_stream_are_scaled_by_depth() -> None:
    model = decoder({"width": 128, "layers": 8})
    for module in model.modules():
        if isinstance(module, ResidualLinear):
            assert module.weight.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05)
        elif isinstance(module, torch.nn.Linear) and module.in_features == 128:
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.slow
def test_a_tiny_model_learns_one_batch_by_heart() -> None:
    model, batch = decoder({"width": 32}), tokens(batch=4, time=9)
    batch[:, 0] = torch.arange(4)  # rows that begin alike could not be told apart
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01
