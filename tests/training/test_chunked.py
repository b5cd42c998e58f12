"""The loss without all logits at once: value and gradients of the plain one, in a part of its memory."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import RUN, VOCABULARY, Patch, decoder, tokens
from torch import Tensor, nn

from lm.config.tree import override
from lm.data import IGNORED
from lm.model.transformer import Decoder, Embedding
from lm.training import module, objective
from lm.training.cell import check
from lm.training.objective import CrossEntropy, Objective, add_at, chunked_cross_entropy, max_logits

N, V, D = 37, 50, 8


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x_nd, weight_vd = torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    targets_n = torch.randint(V, (N,))
    targets_n[[3, 20]] = IGNORED
    return x_nd.requires_grad_(), weight_vd.requires_grad_(), targets_n


@pytest.fixture(params=[1, 7, 10**6], ids=["a row", "seven rows", "all rows"])
def parts(request: pytest.FixtureRequest, monkeypatch: Patch) -> None:
    monkeypatch.setattr(objective, "max_logits", lambda device: 4 * request.param * V)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize(("a", "z"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.2, 0.05)])
def test_value_and_gradients_are_those_of_the_plain_loss(parts: None, a: float, z: float, cap: float | None) -> None:
    x_nd, weight_vd, targets_n = problem()
    losses = (
        Objective.of_product(CrossEntropy(a, z), x_nd, weight_vd, targets_n, cap),
        chunked_cross_entropy(x_nd, weight_vd, targets_n, a, z, cap),
    )
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    wanted, actual = (torch.autograd.grad(3 * loss, (x_nd, weight_vd)) for loss in losses)
    for left, right in zip(actual, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-14)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gives_the_value_and_gradients_of_the_cpu(parts: None) -> None:
    x_nd, weight_vd, targets_n = problem()
    wanted = torch.autograd.grad(chunked_cross_entropy(x_nd, weight_vd, targets_n, 0.1, 0.01), (x_nd, weight_vd))
    x_nd, weight_vd = (x.detach().cuda().requires_grad_() for x in (x_nd, weight_vd))
    loss = chunked_cross_entropy(x_nd, weight_vd, targets_n.cuda(), 0.1, 0.01)
    for left, right in zip(torch.autograd.grad(loss, (x_nd, weight_vd)), wanted, strict=True):
        torch.testing.assert_close(left.cpu(), right, rtol=1e-10, atol=1e-14)


def test_entries_are_added_to_by_a_mask_as_by_scattering() -> None:
    x_rv, index_r1, value_r1 = torch.rand(9, 50), torch.randint(50, (9, 1)), torch.randn(9, 1)
    actual = []
    for by_mask in (False, True):
        actual.append(x_rv.clone())
        add_at(actual[-1], index_r1, value_r1, by_mask)
    assert torch.equal(*actual)
    assert torch.equal((actual[0] != x_rv).nonzero()[:, 1], index_r1[:, 0])


def test_a_large_device_takes_whole_batches(monkeypatch: Patch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=140 * 2**30))
    assert max_logits(torch.device("cpu")) == 2**24
    assert max_logits(torch.device("cuda", 0)) > 12 * 1024 * 50_304


def test_the_gradient_is_that_of_finite_differences() -> None:
    x_nd, weight_vd = (x[:9].detach().requires_grad_() for x in problem()[:2])
    targets_n = torch.tensor([0, 3, IGNORED, 8, 1, 1, 5, 7, 2])
    assert torch.autograd.gradcheck(lambda x, w: chunked_cross_entropy(x, w, targets_n, 0.1, 0.01), (x_nd, weight_vd))


def test_large_logits_and_nothing_to_predict_are_no_trouble() -> None:
    x_nd, weight_vd, targets_n = problem()
    loss = chunked_cross_entropy(1e4 * x_nd, weight_vd, targets_n)
    torch.testing.assert_close(loss, CrossEntropy().loss(1e4 * x_nd @ weight_vd.t(), targets_n), rtol=1e-12, atol=0)
    none = chunked_cross_entropy(x_nd, weight_vd, torch.full((N,), IGNORED), 0.1, 0.1)
    assert none.item() == 0
    assert all((grad == 0).all() for grad in torch.autograd.grad(none, (x_nd, weight_vd)))


def test_one_factor_may_be_fixed() -> None:
    x_nd, weight_vd, targets_n = problem()
    (wanted,) = torch.autograd.grad(CrossEntropy().loss(x_nd @ weight_vd.t(), targets_n), x_nd)
    (actual,) = torch.autograd.grad(chunked_cross_entropy(x_nd, weight_vd.detach(), targets_n), x_nd)
    torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-14)
    assert not chunked_cross_entropy(x_nd.detach(), weight_vd.detach(), targets_n).requires_grad


def test_under_autocast_the_error_is_that_of_the_plain_loss() -> None:
    x_nd, weight_vd, targets_n = problem(torch.float32)
    exact = CrossEntropy().loss(x_nd @ weight_vd.t(), targets_n)
    wanted = torch.autograd.grad(exact, (x_nd, weight_vd))
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_cross_entropy(x_nd, weight_vd, targets_n)
    actual = torch.autograd.grad(loss, (x_nd, weight_vd))
    assert loss.dtype == torch.float32
    assert abs(loss - exact) < 1e-2 * exact
    for left, right in zip(actual, wanted, strict=True):
        assert left.dtype == torch.float32
        assert (left - right).norm() < 1e-2 * right.norm()


@pytest.mark.slow
def test_float16_takes_small_slopes_with_the_scale_of_the_loss() -> None:
    """As a gradient scaler multiplies the loss: slopes of a mean over many tokens are below the smallest float16."""
    torch.manual_seed(0)
    x_nd, weight_vd = (torch.randn(n, 16).requires_grad_() for n in (512, 20_000))
    targets_n, scale = torch.randint(20_000, (512,)), 65536.0
    wanted = torch.autograd.grad(CrossEntropy().loss(x_nd @ weight_vd.t(), targets_n), (x_nd, weight_vd))
    with torch.autocast("cpu", torch.float16):
        loss = chunked_cross_entropy(x_nd, weight_vd, targets_n)
    for left, right in zip(torch.autograd.grad(scale * loss, (x_nd, weight_vd)), wanted, strict=True):
        assert (left / scale - right).norm() < 2e-3 * right.norm()


def test_memory_is_a_part_of_the_plain_losss() -> None:
    """Counted by what autograd keeps between the two passes, which hangs on no machine."""
    x_nd, weight_vd, targets_n = problem()
    kept: list[int] = []

    def noted(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
        chunked_cross_entropy(x_nd, weight_vd, targets_n)
    assert sum(kept) == x_nd.numel() + weight_vd.numel()


# in a model ----------------------------------------------------------------------------------------------------------


class Shifted(Embedding):
    def logits(self, x_btd: Tensor) -> Tensor:
        return super().logits(x_btd) + 1


class Doubled(Decoder):
    def forward(self, *inputs: Any) -> Tensor:
        return 2 * super().forward(*inputs)


@torch.no_grad()
def test_logits_are_the_product_of_their_factors_or_have_none() -> None:
    raw = decoder({})(tokens())
    for scale in (1.0, 0.25):
        model = decoder({"embedding.logit_scale": scale})
        actual = model.hidden_and_weight(tokens())
        assert actual is not None
        torch.testing.assert_close(actual[0] @ actual[1].t(), scale * raw)
        torch.testing.assert_close(model(tokens()), scale * raw)
        assert actual[1].shape[0] == VOCABULARY
    capped = decoder({"embedding.softcap": 0.1})
    actual = capped.hidden_and_weight(tokens())
    assert actual is not None
    torch.testing.assert_close(actual[0] @ actual[1].t(), raw)
    torch.testing.assert_close(capped(tokens()), 0.1 * (10 * raw).tanh())
    model.__class__ = Doubled
    assert model.hidden_and_weight(tokens()) is None
    model = decoder({})
    model.embedding.__class__ = Shifted
    assert model.hidden_and_weight(tokens()) is None
    model = decoder({})
    model.embedding.head.register_forward_hook(lambda *_: None)
    assert model.hidden_and_weight(tokens()) is None


@pytest.mark.parametrize("softcap", [None, 0.5])
def test_training_computes_the_loss_of_many_logits_in_chunks(monkeypatch: Patch, softcap: float | None) -> None:
    built = check(override(RUN, {"model.dropout": 0.0, "model.embedding.softcap": softcap})).open()
    actual = []
    for many in (1, 10**12):
        monkeypatch.setattr(module, "max_logits", lambda device, many=many: many)
        monkeypatch.setattr(module, "has_full_parameters", lambda trainer: True)
        one = module.LanguageModel(built.model(), built.run.optim, built.data.bytes_per_token(), 0)
        one._trainer = object()  # type: ignore[assignment]
        loss = one.loss(next(iter(built.data.training_batches(0, 1))))
        names = [type(node).__name__ for node in (loss.grad_fn,)]
        actual.append((names[0], loss.item(), torch.autograd.grad(loss, list(one.model.parameters()))))
    assert (actual[0][0], actual[1][0] == actual[0][0]) == ("_ChunkedBackward", False)
    assert actual[0][1] == pytest.approx(actual[1][1], rel=1e-6)
    for left, right in zip(actual[0][2], actual[1][2], strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
    assert isinstance(one.model, nn.Module)
