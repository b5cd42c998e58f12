"""Mixtures of experts against `transformers` and against a loop over tokens; loads, and the bias that balances them."""

import functools
from typing import Any

import pytest
import torch
from helpers import VOCABULARY, decoder, example, noisy, tokens
from messages import Refused
from parity import exactly
from torch import Tensor

from lm.model.experts import Experts, update_biases
from lm.model.flops import active_parameters, flops_per_token
from lm.model.mlp import GELU, ReLU, SwiGLU
from lm.model.shape import Shape

SHAPE = Shape(VOCABULARY, context=6, width=16, heads=2, layers=1)
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def one_by_one(layer: Experts, x_btd: Tensor, bias_e: Tensor) -> Tensor:
    """The formula, token by token, with a sort for the choice."""
    rows = []
    for x_d in x_btd.flatten(0, 1):
        p_e = (layer.router.weight @ x_d).exp()
        p_e = p_e / p_e.sum()
        chosen = sorted(range(len(p_e)), key=lambda e: float(p_e.detach()[e] + bias_e[e]))[-layer.active :]
        total = sum(p_e[e] for e in chosen) if layer.normalized else 1.0
        y_d = sum(p_e[e] / total * layer.experts[e](x_d[None, None])[0, 0] for e in chosen)
        rows.append(y_d if layer.shared is None else y_d + layer.shared(x_d[None, None])[0, 0])
    return torch.stack(rows).view_as(x_btd)


@pytest.mark.parametrize(
    "options",
    [
        {"expert": GELU},
        {"experts": 5, "active": 3, "normalized": False},
        {"expert": ReLU, "shared": 2, "hidden": 7},
        {"balance": "bias", "rate": 0.02},
        {"experts": 4, "active": 1, "normalized": False},
        {"experts": 3, "active": 3},
    ],
    ids=str,
)
def test_a_mixture_is_its_formula(options: dict[str, Any]) -> None:
    layer, x_btd = noisy(Experts(SHAPE, **options)), example(2, 6, 16).requires_grad_()
    bias_e = torch.zeros(len(layer.experts))
    if layer.steps_e is not None:
        layer.steps_e += torch.arange(len(bias_e)) * 5 % 7
        bias_e = 0.02 * layer.steps_e
    inputs = (x_btd, *layer.parameters())
    ours, expected = layer(x_btd), one_by_one(layer, x_btd, bias_e)
    torch.testing.assert_close(ours, expected, **EXACT)
    gradients = [torch.autograd.grad(y.square().sum(), inputs, allow_unused=True) for y in (ours, expected)]
    for one, other in zip(*gradients, strict=True):  # by the loop an expert that nobody chose has none
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-10, atol=1e-10)


def test_the_block_and_the_loss_of_mixtral() -> None:
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral", reason="parity needs transformers")
    config = mixtral.MixtralConfig(hidden_size=16, intermediate_size=24, num_local_experts=8, num_experts_per_tok=2)
    layer, x_btd = noisy(Experts(SHAPE, functools.partial(SwiGLU, bias=False), hidden=24)), example(3, 6, 16)
    with exactly():
        block = mixtral.MixtralSparseMoeBlock(config).double()
    fused = torch.stack([torch.cat([expert.gate.weight, expert.up.weight]) for expert in layer.experts])
    down = torch.stack([expert.down.weight for expert in layer.experts])
    state = {"gate.weight": layer.router.weight, "experts.gate_up_proj": fused, "experts.down_proj": down}
    block.load_state_dict(state)
    x_btd.requires_grad_()
    with exactly():
        expected = block(x_btd.clone())
        logits = block.gate(x_btd)[0]
        loss = mixtral.load_balancing_loss_func((logits,), 8, 2)
    ours = layer.train()(x_btd)
    torch.testing.assert_close(ours, expected, **EXACT)
    gradients = [torch.autograd.grad(y.square().sum(), [x_btd, layer.router.weight][:1])[0] for y in (ours, expected)]
    torch.testing.assert_close(*gradients, **EXACT)
    torch.testing.assert_close(layer.extra_losses["load_balance"], loss / 2, **EXACT)  # theirs counts k choices a token


def test_loads_are_measured_in_training_alone() -> None:
    layer, x_btd = noisy(Experts(SHAPE, experts=4)), example(2, 6, 16)
    layer(x_btd)
    assert layer.extra_losses == {}
    layer.train()(x_btd)
    highest = int(layer.load_e.max())
    assert int(layer.load_e.sum()) == 2 * 12
    assert layer.extra_losses["expert_load"].item() == pytest.approx(highest / 6)
    assert layer.extra_weights == {"load_balance": 0.01, "expert_load": 0.0}
    layer.router.weight.data.zero_()  # the choice is then arbitrary, and p the same for all
    layer(x_btd)
    assert layer.extra_losses["load_balance"].item() == pytest.approx(1.0)


def test_a_bias_moves_once_a_step_towards_equal_loads() -> None:
    layer = noisy(Experts(SHAPE, experts=4, balance="bias", rate=0.004)).train()
    assert layer.extra_weights["load_balance"] == 0.0
    loads = []
    for _ in range(80):
        for half in (example(32, 6, 16) + 1).chunk(2):
            layer(half)
        load_e, before_e = layer.load_e.clone(), layer.steps_e.clone()
        loads.append(float(load_e.max() / load_e.double().mean()))
        update_biases([layer])
        assert torch.equal(layer.steps_e - before_e, (load_e.double().mean() - load_e).sign().long())
        assert not layer.load_e.any()
    assert max(loads[-20:]) < 1.1 < 1.25 < loads[0]
    other = Experts(SHAPE, experts=4, balance="bias", rate=0.002).double()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(example(1, 6, 16)), layer.eval()(example(1, 6, 16)))


def test_the_active_part_costs_what_the_expert_costs_alone() -> None:
    alone, mixture = (decoder({"width": 24, "mlp": mlp}) for mlp in ("SwiGLU", "Experts"))
    router = 2 * 24 * 8  # of each of two layers
    assert flops_per_token(mixture, 12).linear == flops_per_token(alone, 12).linear + 2 * router
    size = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    offsets = 2 * 24  # that the second active expert adds
    assert active_parameters(mixture) == size(alone) + router + offsets
    assert active_parameters(alone) == size(alone) < size(mixture) / 2


def test_experts_are_of_any_class() -> None:
    nodes = {"class_path": "Experts", "init_args": {"expert": {"class_path": "ReLU", "init_args": {"expansion": 2.0}}}}
    model = decoder({"mlp": {**nodes, "init_args": {**nodes["init_args"], "shared": 2}}})  # type: ignore[dict-item]
    layer: Any = model.blocks[0].mlp
    assert {type(expert) for expert in layer.experts} == {ReLU}
    assert (layer.experts[0].up.out_features, layer.shared.up.out_features) == (8, 16)
    assert model(tokens()).isfinite().all()


def test_a_router_without_a_gradient_is_refused(refused: Refused) -> None:
    with refused(ValueError):
        Experts(SHAPE, active=1)
