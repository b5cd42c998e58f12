"""Clipping of gradients as Lightning asks for it, against clipping by hand."""

from types import SimpleNamespace

import pytest
import torch
from helpers import decoder, example
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor

from lm.training.module import LanguageModel
from lm.training.optim import Optim

LIMIT = 1.5


def clipped(algorithm: str | None, scale: float = 1.0) -> tuple[list[Tensor], list[Tensor], LanguageModel]:
    """Gradients before and after clipping at LIMIT, and the module that did it."""
    optim: Optim = object.__new__(Optim)  # has no part in it
    module = LanguageModel(decoder().double(), optim, torch.ones(11), 0)
    module._trainer = SimpleNamespace(global_step=1, log_every_n_steps=50, strategy=None)  # type: ignore[assignment]
    for index, parameter in enumerate(module.model.parameters()):
        parameter.grad = scale * example(*parameter.shape, seed=index)
    before = [p.grad.clone() for p in module.model.parameters() if p.grad is not None]
    module.configure_gradient_clipping(None, LIMIT, algorithm)
    return before, [p.grad for p in module.model.parameters() if p.grad is not None], module


@pytest.mark.parametrize("algorithm", ["value", GradClipAlgorithmType.VALUE])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_clipping_by_value_bounds_every_entry_and_notes_the_largest(algorithm: str, scale: float) -> None:
    before, after, module = clipped(algorithm, scale)
    assert all(torch.equal(new, old.clamp(-LIMIT, LIMIT)) for new, old in zip(after, before, strict=True))
    largest = max(float(gradient.abs().max()) for gradient in before)
    assert [float(x) for x in module.largest] == [largest]
    assert (largest > LIMIT) == (scale == 1)
    assert float(module.norms[0]) == pytest.approx(float(torch.cat([g.flatten() for g in before]).norm()), rel=1e-12)


@pytest.mark.parametrize("algorithm", [None, "norm", GradClipAlgorithmType.NORM])
def test_clipping_by_norm_scales_all_entries_alike(algorithm: str | None) -> None:
    before, after, module = clipped(algorithm)
    norm = float(torch.cat([gradient.flatten() for gradient in before]).norm())
    for new, old in zip(after, before, strict=True):
        torch.testing.assert_close(new, old * LIMIT / norm, rtol=1e-6, atol=0)
    assert not module.largest, "steps are compared by the norm"
