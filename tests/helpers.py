"""Small models and small runs that several tests build."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import pytest
import torch
from torch import Tensor

from lm.cli import main
from lm.config.choices import choices, slots
from lm.config.components import build, resolve
from lm.config.tree import InputError, Tree, override
from lm.data.corpus import SPLITS, Corpus, Splits
from lm.data.order import batch_rows, update_order_hash
from lm.data.splits import SplitText
from lm.model.attention import Mask, SoftmaxAttention
from lm.model.attention_impl import attention_weights, causal_bias, repeat_kv
from lm.model.block import Block
from lm.model.transformer import Decoder, build_and_initialize

T = TypeVar("T")
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
VOCABULARY, CONTEXT = 11, 12

MODEL: Tree = {
    "class_path": "Decoder",
    "init_args": {
        "width": 16,
        "heads": 2,
        "layers": 2,
        "embedding": {},
        "position": "Rope",
        "block": "PreNorm",
        "norm": "LayerNorm",
        "attention": "MultiHead",
        "mlp": "GELU",
        "initializer": "Normal",
    },
}

RUN: Tree = {
    "data": {
        "class_path": "TextData",
        "init_args": {
            "corpus": {"class_path": "StdlibText", "init_args": {"size": 60000, "longest": 3000}},
            "tokenizer": "Bytes",
            "context": 16,
            "batch_size": 8,
            "split": [0.8, 0.1, 0.1],
        },
    },
    "model": MODEL,
    "optim": {
        "lr": 0.01,
        "optimizer": {"class_path": "AdamW", "init_args": {"weight_decay": 0.1}},
        "schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 4}},
        "objective": "CrossEntropy",
    },
    "trainer": {
        "accelerator": "cpu",
        "max_steps": 12,
        "log_every_n_steps": 3,
        "val_check_interval": 4,
        "limit_val_batches": 2,
        "gradient_clip_val": 1.0,
        "precision": "64-true",
    },
    "seed": 0,
}


@dataclass
class ModelRoot:
    model: Callable[[int, int], Decoder]


def decoder(
    changes: dict[str, Any] | None = None, seed: int = 0, vocabulary: int = VOCABULARY, context: int = CONTEXT
) -> Decoder:
    """A tiny decoder with `changes` to the parts, keyed as under `model`."""
    tree = override({"model": MODEL}, {f"model.{key}": value for key, value in (changes or {}).items()})
    return build_and_initialize(build(resolve(tree, ModelRoot), ModelRoot).model, vocabulary, context, seed)


def blocks(model: Decoder) -> list[Block]:
    """The blocks of a decoder, in order."""
    return [cast(Block, block) for block in model.blocks]


def attentions(model: Decoder) -> list[SoftmaxAttention]:
    """The attention of each block of a decoder with softmax attention, in order."""
    found = [block.attention for block in blocks(model)]
    return [attention for attention in found if isinstance(attention, SoftmaxAttention)]


def known(found: T | None) -> T:
    """What a test knows to be there, where its type allows for nothing."""
    assert found is not None
    return found


def parts() -> list[tuple[str, str]]:
    """Every (kind, class name) that may stand in a decoder: new subclasses are found by themselves."""
    found = slots(Decoder, 2)
    kinds = [kind for kind in found if kind not in ("embedding", "initializer", "prediction")]
    return [(kind, name) for kind in kinds for name in choices(found[kind].base)]


def tokens(batch: int = 3, time: int = CONTEXT, seed: int = 0) -> torch.Tensor:
    """Random token ids, (batch, time)."""
    return torch.randint(VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(seed))


def example(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal random numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noisy(module: torch.nn.Module) -> Any:
    """The module in float64 and evaluation, every parameter a random number, offsets and gains too."""
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(0.5 * example(*parameter.shape, seed=index))
    return module.double().eval()


def assert_gradients(model: torch.nn.Module, ignored: str) -> None:
    """Every parameter in float64 has a gradient beyond what rounding gives, but for those whose name ends so."""
    found = {name: p.grad for name, p in model.named_parameters() if not name.endswith(ignored)}
    sizes = {name: 0.0 if grad is None else grad.abs().max().item() for name, grad in found.items()}
    largest = max(sizes.values())
    assert not [name for name, size in sizes.items() if size < 1e-9 * largest]


def weights_of(attention: SoftmaxAttention, q_bhqk: Tensor, k_bgsk: Tensor, mask: Mask) -> Tensor:
    """The weights of a layer, (b, h, q, s), for queries and keys as they enter the scores."""
    heads, queries, keys = *q_bhqk.shape[1:3], k_bgsk.shape[2]
    bias = mask.additive(queries, keys, attention.window, q_bhqk)
    if bias is None and mask.causal:
        bias = causal_bias(queries, keys, q_bhqk)
    keys_bhsk = repeat_kv(k_bgsk, heads)
    return attention_weights(q_bhqk, keys_bhsk, attention.scale, bias, attention.softcap, attention.sinks)


def order_hash(seed: int, steps: int, batch_size: int, rows: int) -> str:
    """Compute the hash that `steps` batches in the right order result in."""
    digest = ""
    for step in range(steps):
        digest = update_order_hash(digest, batch_rows(seed, step, batch_size, rows))
    return digest


@contextmanager
def refusal(*words: str) -> Iterator[None]:
    """Check that the block raises InputError with one line that holds these words."""
    with pytest.raises(InputError) as caught:
        yield
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def refused(
    capsys: Capture, arguments: Sequence[object], *words: str, longest: int = 10_000, run: Callable[..., int] = main
) -> None:
    """Check that a command ends with exit code 2, prints nothing and says one line that holds these words."""
    capsys.readouterr()
    assert run([*map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1, shown.err
    assert len(shown.err) < longest
    for word in words:
        assert word in shown.err


def cells_line(said: str) -> str:
    """What a command says of the number of cells, without how long they take and on what."""
    (line,) = [line for line in said.splitlines() if " cells: " in line]
    return re.sub(r" with \d+ at a time", "", line.partition(";")[0])


class Listed(Corpus):
    """Documents from a list."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def documents(self) -> Iterator[str]:
        yield from self.texts


def joined(text: SplitText) -> Splits:
    """The documents of each split of a text that is read in pieces."""
    documents: Splits = {name: [] for name in SPLITS}
    document = ""
    for name, part, last in text.parts():
        document += part
        if last:
            documents[name].append(document)
            document = ""
    assert document == ""
    return documents


def splits_of(corpus: Corpus, fractions: Sequence[float]) -> Splits:
    """The documents of each split of a corpus."""
    return joined(SplitText(corpus, fractions))
