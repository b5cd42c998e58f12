"""Import paths that components outside of this package go by, such as those of `lm init` and docs/extending.md."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lm.ablation.project import STARTER
from lm.model.position import NoPosition, Rope
from lm.model.shape import Shape
from lm.model.transformer import Embedding, Model

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "lm.model.norm": ("Norm", "LayerNorm", "RMSNorm", "NoNorm", "BatchNorm"),
    "lm.model.shape": ("Shape",),
    "lm.model.mlp": ("FeedForward", "MLP", "ReLU", "GELU", "SiLU", "GatedMLP", "GLU", "ReGLU", "GEGLU", "SwiGLU"),
    "lm.model.position": ("Position", "NoPosition", "Sinusoidal", "Learned", "Alibi", "T5Bias"),
    "lm.model.block": (
        *("BlockLayout", "ResidualConnection", "Block"),
        *("PostNorm", "PreNorm", "Sandwich", "ReZero", "ScaledResidual"),
    ),
    "lm.model.attention": ("Attention", "SoftmaxAttention", "Mask", "scale_factor", "refuse_scores"),
    "lm.model.initializers": (
        *("Initializer", "Normal", "Xavier", "FanIn"),
        *("ResidualLinear", "QueryKeyLinear", "OutputLinear", "PositionTable"),
    ),
    "lm.model.transformer": ("Decoder", "EncoderDecoder", "Model", "Embedding"),
    "lm.model.flops": ("activation_numel", "attention_flops"),
    "lm.training.schedule": ("Schedule",),
    "lm.training.objective": ("Objective",),
    "lm.data.corpus": ("Corpus",),
    "lm.data.tokenizer": ("Tokenizer",),
    "lm.config.domain": ("require_positive",),
}
"""Names by the module that they are imported from. One that moves stays there for a release, with a warning."""

MOVED = [
    *(("lm.model.initial", name, f"lm.model.initializers.{name}") for name in PUBLIC["lm.model.initializers"]),
    ("lm.model.count", "saved", "lm.model.flops.activation_numel"),
    ("lm.model.count", "attention_flops", "lm.model.flops.attention_flops"),
    ("lm.model.block", "Arrangement", "lm.model.block.ResidualConnection"),
    ("lm.model.position", "relative", "lm.model.position.relative_positions"),
]
"""Module, old name and new dotted path."""


@pytest.mark.parametrize(("module", "name", "new"), MOVED)
def test_moved_name_is_importable_with_a_warning(module: str, name: str, new: str) -> None:
    owner, _, new_name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(owner), new_name)


def test_module_has_no_names_that_it_never_had() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(importlib.import_module("lm.model.initial"), "nothing")  # noqa: B009


SHAPE = Shape(vocabulary=5, context=4, width=8, heads=2, layers=1)


def test_overridden_old_name_is_called_with_a_warning() -> None:
    x_bhtk = torch.ones(1, 2, 4, 4)
    with pytest.warns(DeprecationWarning, match="rotate is called apply_rotary"):

        class Doubled(Rope):
            alike = False

            def rotate(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
                with pytest.warns(DeprecationWarning, match="Rope.rotate"):
                    return 2 * super().rotate(x_bhtk, start)  # type: ignore[misc]

    assert torch.equal(Doubled(SHAPE).apply_rotary(x_bhtk, 1), 2 * Rope(SHAPE).apply_rotary(x_bhtk, 1))
    assert not Doubled.head_independent


@pytest.mark.parametrize(
    ("component", "old", "new"),
    [
        (Rope(SHAPE), "alike", "head_independent"),
        (NoPosition(SHAPE), "rotate", "apply_rotary"),
        (Embedding(SHAPE), "read", "scale_for_output"),
        (Embedding(SHAPE), "matrix", "output_weight"),
        (SHAPE, "at_base", "base_shape"),
    ],
)
def test_old_attribute_reads_the_new_one(component: object, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        value = getattr(component, old)
    assert value is getattr(component, new) or value == getattr(component, new)


def test_overridden_old_factors_of_a_model_are_used() -> None:
    with pytest.warns(DeprecationWarning, match="hidden_and_weight"):

        class Own(Model):
            def factors(self, *inputs: Tensor) -> tuple[Tensor, Tensor] | None:
                return inputs[0], inputs[0]

    assert Own.hidden_and_weight is Own.factors


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_importable(module: str) -> None:
    missing = [name for name in PUBLIC[module] if not hasattr(importlib.import_module(module), name)]
    assert missing == []


def imported(code: str) -> set[tuple[str, str]]:
    """Return module and name of everything of lm that some code imports."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    modules = [(node.module or "", node.names) for node in nodes]
    return {(module, alias.name) for module, names in modules if module.startswith("lm") for alias in names}


def test_examples_import_public_names_alone() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    examples = [*re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]
    examples += [path.read_text(encoding="utf-8") for path in STARTER.rglob("*.py")]
    names = set().union(*map(imported, examples))
    assert ("lm.model.mlp", "MLP") in names
    assert names <= {(module, name) for module in PUBLIC for name in PUBLIC[module]}


def test_base_classes_that_the_page_names_are_public() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"base classes: (.*?)\. Nothing", page)
    named = re.findall(r"`(lm/\w+/\w+)\.py::(\w+)`", line)
    assert len(named) == 12
    assert all(name in PUBLIC[path.replace("/", ".")] for path, name in named)
