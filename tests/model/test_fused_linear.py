"""Several linear maps in one product: the numbers and gradients of one after the other, or one after the other."""

from typing import Any

import pytest
import torch
from helpers import Patch, decoder, example, tokens
from torch import Tensor, nn

from lm.model import fused_linear as module
from lm.model import mlp
from lm.model.fused_linear import MIN_ROWS_TO_FUSE, TENSOR_CORE_MULTIPLE, fused_linear, should_fuse
from lm.model.shape import Shape

CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _joined(monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "should_fuse", lambda x: True)


def maps(bias: bool = True) -> list[nn.Linear]:
    return [nn.Linear(6, outputs, bias).double() for outputs in (6, 2, 3)]


def gradients(outputs: Any, weights: list[nn.Linear]) -> list[Tensor]:
    """Of a sum in which every output counts differently."""
    loss = sum((y * torch.arange(1.0, y.numel() + 1).view_as(y)).sum() for y in outputs)
    return list(torch.autograd.grad(loss, [p for one in weights for p in one.parameters()]))


@pytest.mark.parametrize("bias", [True, False])
def test_fused_layers_give_outputs_and_gradients_of_each(bias: bool, monkeypatch: Patch) -> None:
    weights, x = maps(bias), example(4, MIN_ROWS_TO_FUSE, 6)
    apart = [one(x) for one in weights]
    wanted = gradients(apart, weights)
    called: list[nn.Module] = []
    monkeypatch.setattr(nn.Linear, "__call__", lambda self, _: called.append(self))
    together = fused_linear(x, *weights).split([one.out_features for one in weights], dim=-1)
    assert not called
    for left, right in zip(together, apart, strict=True):
        torch.testing.assert_close(left, right, **CLOSE)
    for left, right in zip(gradients(together, weights), wanted, strict=True):
        torch.testing.assert_close(left, right, **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["SwiGLU", "GLU", "ReGLU"])
def test_zero_units_for_tensor_cores_change_nothing(kind: str, bias: bool, monkeypatch: Patch) -> None:
    layer = getattr(mlp, kind)(Shape(width=10, heads=2, layers=1, vocabulary=9, context=MIN_ROWS_TO_FUSE), bias=bias)
    layer, x = layer.double(), example(4, MIN_ROWS_TO_FUSE, 10).requires_grad_()
    assert layer.up.out_features % TENSOR_CORE_MULTIPLE
    leaves = [x, *layer.parameters()]
    wanted = layer(x), *torch.autograd.grad(layer(x).sin().sum(), leaves)
    monkeypatch.setattr(module, "TENSOR_CORES", ("cpu",))
    sizes: list[int] = []
    layer.dropout.register_forward_hook(lambda module, given, y: sizes.append(y.shape[-1]))
    actual = layer(x), *torch.autograd.grad(layer(x).sin().sum(), leaves)
    assert {size % TENSOR_CORE_MULTIPLE for size in sizes} == {0}
    for left, right in zip(actual, wanted, strict=True):
        torch.testing.assert_close(left, right, **CLOSE)
    layer.down.register_forward_pre_hook(lambda module, given: sizes.append(given[0].shape[-1]))
    layer(x)
    assert sizes[-1] == layer.down.in_features, "who watches the layer sees the zeros"


def test_a_shard_of_hidden_units_is_not_taken_for_padded() -> None:
    """Under tensor parallelism a layer has a part of the inputs that `in_features` says."""
    layer = mlp.SwiGLU(Shape(width=10, heads=2, layers=1, vocabulary=9, context=8)).double()
    x = example(1, 8, 10)
    expected = layer(x)
    layer.down.in_features *= 2
    assert torch.equal(layer(x), expected)


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def watched() -> list[nn.Linear]:
    found = maps()
    found[1].register_forward_hook(lambda module, given, y: 3 * y)
    return found


def replaced() -> list[nn.Linear]:
    found: list[nn.Linear] = [*maps()[:2], Doubled(6, 3).double()]
    return found


def normed() -> list[nn.Linear]:
    found = maps()
    nn.utils.parametrizations.weight_norm(found[2])
    return found


@pytest.mark.parametrize("make", [watched, replaced, normed])
def test_what_is_watched_or_replaced_is_called_by_itself(make: Any) -> None:
    weights, x = make(), example(4, MIN_ROWS_TO_FUSE, 6)
    assert torch.equal(fused_linear(x, *weights), torch.cat([one(x) for one in weights], dim=-1))


@pytest.mark.parametrize("mlp", ["GELU", "SwiGLU"])
def test_model_learns_same_with_layers_fused_or_apart(mlp: str, monkeypatch: Patch) -> None:
    found = []
    for few in (1, 10**9):
        monkeypatch.setattr(module, "MIN_ROWS_TO_FUSE", few)
        model = decoder({"mlp": mlp}).double()
        model(tokens()).logsumexp(-1).sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    assert list(found[0]) == list(found[1])
    for name, grad in found[0].items():
        torch.testing.assert_close(grad, found[1][name], **CLOSE, msg=name)


def test_compiled_code_fuses_and_is_not_asked_about_autocast(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(module, "autocasting", lambda device: pytest.fail("older torch cannot compile this"))
    assert should_fuse(torch.zeros(1))
