"""Import paths that components outside of this package go by, such as those of `lm init` and docs/extending.md."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from lm.ablation.project import STARTER

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
    "lm.model.flops": ("attention_flops",),
    "lm.training.schedule": ("Schedule",),
    "lm.training.objective": ("Objective",),
    "lm.data.corpus": ("Corpus",),
    "lm.data.tokenizer": ("Tokenizer",),
    "lm.config.domain": ("require_positive",),
}
"""Names by the module that they are imported from."""


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
