"""Models of `transformers` in float64 with random weights, compared with ours; `make parity` writes the table of all.

Where `transformers` casts to float32 whatever the model's precision (norms, rotary tables, softmax), `exactly` turns
the cast into one to float64, so that a tolerance need not hide it. Weights are loaded strictly: a parameter of either
side without a partner is an error.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import MODEL
from torch import Tensor, nn

from lm.config.components import build, resolve
from lm.config.plain import shown
from lm.config.reading import load_config, shipped_files
from lm.config.tree import Tree, is_component, override
from lm.inference.conversion import ModelOnly, settings_of, to_ours, write_config
from lm.inference.families import FAMILIES, Family
from lm.model.transformer import EncoderDecoder, build_and_initialize

EXAMPLES = {name: name for name in FAMILIES} | {"llama": "llama3", "gpt_neox": "pythia"}
"""The shipped configuration of each family."""

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 37, 24, 64, 4, 3
SIZES: Tree = {"width": WIDTH, "heads": HEADS, "layers": LAYERS}
TOLERANCE = 1e-9
PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"


@contextmanager
def exactly() -> Iterator[None]:
    """What is written in float32 is computed in float64."""
    default = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def randomized(model: nn.Module) -> Any:
    """The model in float64 with noise added to every parameter, gains and offsets of norms too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    for module in model.modules():
        if hasattr(module, "gelu_impl"):  # BLOOM writes GELU's constant with nine digits
            module.gelu_impl = nn.GELU("tanh")
    return model.double().eval()


def built(tree: Tree, context: int = CONTEXT) -> Any:
    """Our model as users configure it, in float64 and in evaluation."""
    model = build_and_initialize(build(resolve(tree, ModelOnly), ModelOnly).model, VOCABULARY, context, seed=0)
    return model.double().eval()


def configured(changes: Tree) -> Any:
    """A model of the tests' parts with changes, in float64 and in evaluation."""
    base = {"model": {**MODEL, "class_path": changes.get("class_path", "Decoder")}}
    return built(override(base, {f"model.{key}": value for key, value in changes.items() if key != "class_path"}))


def loaded(changes: Tree, state: dict[str, Tensor]) -> Any:
    """The same with these weights."""
    model = configured(changes)
    model.load_state_dict(state, strict=True)
    return model


def parameters(model: nn.Module) -> dict[str, Any]:
    """Parameters by name, those that are shared under each of their names."""
    return dict(model.named_parameters(remove_duplicate=False))


@dataclass
class Pair:
    """Our model of a family and that of `transformers`, with the same weights."""

    ours: Any
    theirs: Any
    family: Family
    tree: Tree
    time: int

    def difference(self) -> tuple[float, float]:
        """Largest absolute differences of logits and of gradients of a scalar, over all parameters."""
        if isinstance(self.ours, EncoderDecoder):
            source, hidden, target = padded(self.time)
            inputs, mask = [target, source, hidden], (~hidden).long()
            other = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
        else:
            inputs = [sample(self.time)]
            other = {"input_ids": inputs[0]}
        ours = self.ours(*inputs)
        weights = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(2))
        weights /= math.sqrt(weights.numel())
        (ours * weights).sum().backward()
        with exactly():
            expected = self.theirs(**other).logits
            (expected * weights).sum().backward()
        assert expected.dtype == ours.dtype == torch.float64
        assert expected.std() > 0.5
        shape = self.ours.shape
        known = {name: value.grad for name, value in parameters(self.theirs).items()}
        gradients = to_ours(known, self.family, shape.heads, shape.head_size)
        own = {name: value.grad for name, value in parameters(self.ours).items()}
        assert own.keys() == gradients.keys()
        flat = [name for name, gradient in gradients.items() if gradient.abs().max() < 1e-4]
        assert all(name.endswith("key.bias") for name in flat), flat  # a softmax cannot tell it from none
        largest = max((own[name] - gradients[name]).abs().max().item() for name in own)
        return (ours - expected).abs().max().item(), largest


def pair(name: str, changes: Tree | None = None, settings: Tree | None = None, context: int = 0, time: int = 0) -> Pair:
    """Both models of a family as shipped, or with changes to our configuration and settings of theirs.

    `context` is that of training, by default the file's, and `time` the length of rows, by default the context.
    """
    transformers = pytest.importorskip("transformers", reason="parity needs transformers: pip install transformers")
    family, loaded = FAMILIES[name], load_config(shipped_files("configuration")[EXAMPLES[name]])
    context = context or loaded["data"]["init_args"]["context"]
    tree = override({"model": loaded["model"]}, {f"model.{key}": value for key, value in (changes or {}).items()})
    ours = built(tree, context)
    described = write_config(name, settings_of(resolve(tree, ModelOnly)["model"], context), VOCABULARY)
    described |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, **(settings or {})}
    cls = getattr(transformers, family.model)
    config = cls.config_class(**{key: value for key, value in described.items() if key != "model_type"})
    config._attn_implementation = "eager"
    with exactly():
        theirs = randomized(cls(config))
    with torch.no_grad():
        state = to_ours(parameters(theirs), family, ours.shape.heads, ours.shape.head_size)
        ours.load_state_dict(state, strict=True)
    return Pair(ours, theirs, family, tree, time or context)


def agree(*described: Any) -> None:
    """Both models of a family, described as for `pair`, give the same logits and gradients."""
    logits, gradients = pair(*described).difference()
    assert logits <= TOLERANCE, logits
    assert gradients <= TOLERANCE, gradients


def sample(time: int = CONTEXT, seed: int = 1) -> Tensor:
    """Random token ids of two texts; 0, which may be padding, is not among them."""
    return torch.randint(1, VOCABULARY, (2, time), generator=torch.Generator().manual_seed(seed))


def padded(context: int = CONTEXT) -> tuple[Tensor, Tensor, Tensor]:
    """A source with padding, where it is hidden, and a target of another length."""
    source_bs, hidden_bs = sample(context, seed=2), torch.zeros(2, context, dtype=torch.bool)
    hidden_bs[0, 17:] = True
    return source_bs.masked_fill(hidden_bs, 0), hidden_bs, sample(context - 5, seed=3)


def parts(model: Tree) -> str:
    """What a model is made of, as its file writes it."""
    names = ("embedding", "position", "block", "norm", "attention", "cross", "mlp")
    nodes = [model["init_args"][name] for name in names if name in model["init_args"]]
    texts = []
    for node in nodes:
        component = node if is_component(node) else {"class_path": node, "init_args": {}}
        if not isinstance(node, str) and not is_component(node):  # a section, whose class is always the same
            component = {"class_path": "Embedding", "init_args": node}
        arguments = ", ".join(f"{key} {shown(value)}" for key, value in component.get("init_args", {}).items())
        texts.append(f"`{component['class_path']}`" + (f" ({arguments})" if arguments else ""))
    return ", ".join(texts)


def row(name: str) -> list[str]:
    """The family's row of the table in docs/families.md."""
    both = pair(name)
    bounds = [f"1e{math.ceil(math.log10(value))}" for value in both.difference()]
    size = sum(parameter.numel() for parameter in both.ours.parameters())
    return [f"`{EXAMPLES[name]}`", both.family.model, parts(both.tree["model"]), f"{size:,}", *bounds]


def table(rows: list[list[str]]) -> str:
    """A table of Markdown."""
    head = ["family", "in transformers", "made of", "parameters", "logits within", "gradients within"]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ["---"] * len(head), *rows])


def main() -> None:
    """Compare all families, and print and write their table."""
    made = table([row(name) for name in FAMILIES])
    print(made, end="")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(r"(?m)(^\|.*\n)+", lambda match: made, text), encoding="utf-8")


if __name__ == "__main__":
    main()
