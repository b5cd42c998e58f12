"""Gradient norms against torch's own, over parts that are a partition of the parameters."""

import math
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from helpers import blocks, decoder, known
from torch import nn
from torch.nn.utils import clip_grad_norm_

from lm.config.components import build, resolve
from lm.config.tree import load_yaml
from lm.metrics.gradients import (
    ParameterGroups,
    estimate_noise,
    gradient_norm,
    measure_noise,
    parameter_kinds,
    parameters_by_part,
)
from lm.training.run import RunConfig

M = TypeVar("M", bound=nn.Module)
MATRICES = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "attention_output": "attention.output",
    "mlp_in": "mlp.up",
    "mlp_out": "mlp.down",
}
"""Kinds of matrices, and where in a block each is."""


class Parts(nn.Module):
    """An embedding tied to the head, a list of blocks, a frozen part and one without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3)])
        self.dropout = nn.Dropout(0.1)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight


def with_gradients(model: M, seed: int = 0) -> M:
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=random, dtype=torch.float64).to(parameter.dtype)
    return model


def test_norms_are_torchs_and_change_no_gradient() -> None:
    model = with_gradients(Parts().double())
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    found, largest = gradient_norm(model.parameters()), gradient_norm(model.parameters(), torch.inf)
    assert all(map(torch.equal, before, [p.grad for p in model.parameters() if p.grad is not None]))
    assert float(largest) == max(float(gradient.abs().max()) for gradient in before)
    torch.testing.assert_close(found, clip_grad_norm_(model.parameters(), math.inf), rtol=1e-13, atol=0)


def test_parameters_without_gradients_count_for_nothing() -> None:
    with_none = nn.Parameter(torch.ones(3))
    with_one = nn.Parameter(torch.zeros(2))
    with_one.grad = torch.tensor([3.0, 4.0])
    assert float(gradient_norm([with_none, with_one])) == 5.0
    assert float(gradient_norm([with_none])) == 0.0
    assert float(gradient_norm([])) == float(gradient_norm([], torch.inf)) == 0.0


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, math.nan])
    assert math.isnan(gradient_norm([parameter]))


def test_parts_are_children_and_list_members_without_shared_duplicates() -> None:
    model = Parts()
    parts = parameters_by_part(model)
    assert list(parts) == ["embedding", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert parts["embedding"] == [model.embedding.weight]
    assert parts["head"] == [model.head.bias]


def char_tiny() -> nn.Module:
    path = Path(__file__).resolve().parents[2] / "experiments" / "bases" / "char_tiny.yaml"
    model: nn.Module = build(resolve(load_yaml(path), RunConfig), RunConfig).model(13, 8)
    return model


def with_skips() -> nn.Module:
    """A model with a parameter of its own."""
    return decoder({"layers": 4, "skips": True})


@pytest.mark.parametrize("make", [Parts, char_tiny, with_skips])
def test_parts_hold_every_trainable_parameter_once(make: type[nn.Module]) -> None:
    model = make()
    found = [p for part in parameters_by_part(model).values() for p in part]
    assert len(found) == len(set(found))
    assert set(found) == {p for p in model.parameters() if p.requires_grad}


def test_kinds_name_the_matrices_and_set_vectors_apart() -> None:
    model = decoder({"mlp": "SwiGLU", "embedding": {"tied": False}, "position": "Learned"})
    kinds = {name: parameter_kinds(model)[parameter] for name, parameter in model.named_parameters()}
    assert kinds["embedding.tokens.weight"] == "embedding"
    assert kinds["embedding.head.weight"] == "head"
    assert kinds["blocks.1.attention.query.weight"] == "query"
    assert kinds["blocks.1.attention.output.weight"] == "attention_output"
    assert kinds["blocks.0.mlp.up.weight"] == kinds["blocks.0.mlp.gate.weight"] == "mlp_in"
    assert kinds["blocks.0.mlp.down.weight"] == "mlp_out"
    assert kinds["blocks.0.mlp.down.bias"] == kinds["final_norm.bias"] == "bias"
    assert kinds["final_norm.weight"] == kinds["blocks.0.mlp_residual.norm.weight"] == "norm"
    assert kinds["position.table.weight"] == "position"


@pytest.mark.parametrize("make", [Parts, char_tiny])
def test_groups_are_sums_over_their_parameters(make: type[nn.Module]) -> None:
    model = with_gradients(make().double())
    groups, kinds = ParameterGroups(model), parameter_kinds(model)
    found = groups.summed(groups.gradients())
    for part, members in parameters_by_part(model).items():
        name = f"{part}.all" if part in ("embedding", "head") else part
        assert found[name] == pytest.approx(float(gradient_norm(members)), rel=1e-12)
        for kind in {kinds[p] for p in members}:
            alike = [p for p in members if kinds[p] == kind]
            assert found[f"{part}.{kind}"] == pytest.approx(float(gradient_norm(alike)), rel=1e-12)
    everything = float(groups.gradients().sum().sqrt())
    assert everything == pytest.approx(float(gradient_norm(model.parameters())), rel=1e-12)


def test_norms_of_untied_model_match_named_parameters() -> None:
    """The part `embedding` holds the matrix of that name and the head."""
    model = with_gradients(decoder({"embedding": {"tied": False}, "position": "Learned"}).double())
    groups, named = ParameterGroups(model), dict(model.named_parameters())
    assert all(parameter.grad is not None for parameter in named.values())
    norm = {name: float(known(parameter.grad).norm()) for name, parameter in named.items()}
    tokens, head, table = (norm[f"{name}.weight"] for name in ("embedding.tokens", "embedding.head", "position.table"))
    found = groups.summed(groups.gradients())
    expected = {
        "embedding": tokens,
        "head": head,
        "embedding.all": math.hypot(tokens, head),
        "embedding.embedding": tokens,
        "embedding.head": head,
        **dict.fromkeys(("position", "position.all", "position.position"), table),
        "final_norm.norm": norm["final_norm.weight"],
        "final_norm.bias": norm["final_norm.bias"],
        "final_norm": math.hypot(norm["final_norm.weight"], norm["final_norm.bias"]),
    }
    for layer in range(2):
        block = f"blocks.{layer}"
        expected[block] = math.hypot(*(norm[name] for name in norm if name.startswith(f"{block}.")))
        for kind, place in MATRICES.items():
            expected[f"{block}.{kind}"] = norm[f"{block}.{place}.weight"]
        for kind, ending in (("norm", "norm.weight"), ("bias", ".bias")):
            expected[f"{block}.{kind}"] = math.hypot(
                *(norm[name] for name in norm if name.startswith(block) and name.endswith(ending))
            )
    for kind in (*MATRICES, "norm", "bias"):
        parts = ("blocks.0", "blocks.1", "final_norm")
        expected[kind] = math.hypot(*(expected[f"{part}.{kind}"] for part in parts if f"{part}.{kind}" in expected))
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-12)
    assert groups.by_layer(groups.gradients())["embedding"] == pytest.approx([tokens], rel=1e-12)


def test_layers_come_in_order_and_one_kind_a_list() -> None:
    model = with_gradients(decoder({}).double())
    groups = ParameterGroups(model)
    found = groups.by_layer(groups.gradients())["mlp_out"]
    expected = [float(known(block.mlp.down.weight.grad).norm()) for block in blocks(model)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert len(set(found)) == 2


def test_updates_are_what_the_optimiser_changed() -> None:
    model = with_gradients(decoder({}).double())
    groups = ParameterGroups(model)
    before = [p.detach().clone() for p in groups.parameters]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert groups.updates(before) == pytest.approx((0.01 * groups.gradients()).tolist(), rel=1e-9)


def test_bfloat16_norms_are_summed_in_float32() -> None:
    parameter = nn.Parameter(torch.ones(5000, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    holder = nn.ParameterDict({"p": parameter})
    groups = ParameterGroups(nn.ModuleDict({"part": nn.Linear(1, 1)}))
    groups.parameters, groups.names, groups.group_p = list(holder.values()), [("part", "p")], torch.tensor([0])
    assert float(groups.gradients().sqrt()[0]) == pytest.approx(5000**0.5, rel=1e-6)


# noise ---------------------------------------------------------------------------------------------------------------


@pytest.mark.extra
@pytest.mark.parametrize(
    "sizes", [pytest.param([5, 5, 5, 5], marks=pytest.mark.extra), [2, 12, 3, 3]], ids=["equal", "unequal"]
)
def test_estimates_are_unbiased_for_gradients_of_known_mean_and_covariance(sizes: list[int]) -> None:
    # The loss (w - x)^2 / 2 has the gradient w - x: mean w, covariance that of x.
    random = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    spread = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    traces, signals = [], []
    for _ in range(4000):
        pieces = [torch.randn(n, 3, generator=random, dtype=torch.float64) * spread for n in sizes]
        losses = [lambda x=piece: ((weight - x) ** 2).sum(-1).mean() / 2 for piece in pieces]
        trace, signal = measure_noise([weight], losses, sizes)
        traces.append(trace)
        signals.append(signal)
    squares = spread.square().sum(), weight.detach().square().sum()
    for values, truth in zip((torch.tensor(traces), torch.tensor(signals)), map(float, squares), strict=True):
        assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / len(values) ** 0.5
        assert float(values.std()) / len(values) ** 0.5 < 0.02 * truth, "the test must be sharp"


def test_equal_pieces_have_no_noise() -> None:
    trace, signal = estimate_noise(small=2.0, big=2.0, small_tokens=3, big_tokens=12)
    assert trace == 0
    assert signal == pytest.approx(2.0)


def test_no_gradient_is_left_behind() -> None:
    weight, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    measure_noise([weight, unused], [lambda: weight.sum(), lambda: (2 * weight).sum()], [1, 1])
    assert weight.grad is None
    assert unused.grad is None
