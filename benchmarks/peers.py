"""Other implementations of the same models: packages that may be installed, and a checkout of nanoGPT.

Each is built as its authors have it, with the sizes asked for and no dropout; what it does otherwise is its `about`.
Legend: b batch, t time.
"""

import contextlib
import importlib.util
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.machine import installed
from benchmarks.sizes import Size

Loss = Callable[[Any, Tensor, Tensor], Tensor]
"""The mean loss of a model on tokens (b, t) and targets (b, t)."""


@dataclass(frozen=True)
class Contender:
    """A model and how its loss is taken.

    Args:
        make: builds it for the sizes and the vocabulary.
        loss: its loss on a batch.
        about: what it is, and where it differs from ours.
    """

    make: Callable[[Size, int], nn.Module]
    loss: Loss
    about: str


def loss_of_logits(model: nn.Module, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
    """Cross-entropy where a model gives logits."""
    return cross_entropy(model(tokens_bt).flatten(0, 1), targets_bt.flatten())


# packages ------------------------------------------------------------------------------------------------------------


def _x_transformers(size: Size, vocabulary: int) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=size.width, depth=size.layers, heads=size.heads, attn_dim_head=size.width // size.heads, attn_flash=True
    )
    return TransformerWrapper(num_tokens=vocabulary, max_seq_len=size.context, attn_layers=layers, tie_embedding=True)


def _litgpt(size: Size, vocabulary: int) -> nn.Module:
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        name="bench",
        block_size=size.context,
        n_layer=size.layers,
        n_head=size.heads,
        n_embd=size.width,
        vocab_size=vocabulary,
        padded_vocab_size=vocabulary,
        parallel_residual=False,
        rotary_percentage=1.0,
    )
    return GPT(config)


def _transformers(size: Size, vocabulary: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    fused: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=size.context,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **fused,
    )
    return GPT2LMHeadModel(config)


def _loss_of_transformers(model: Any, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
    return cross_entropy(model(input_ids=tokens_bt).logits.flatten(0, 1), targets_bt.flatten())


PACKAGED: dict[str, Contender] = {
    "x-transformers": Contender(_x_transformers, loss_of_logits, "tied; learned positions, its fused attention"),
    "litgpt": Contender(_litgpt, loss_of_logits, "not tied, which it has no setting for; rotary positions"),
    "transformers": Contender(_transformers, _loss_of_transformers, "GPT-2: tied; learned positions, tanh GELU, SDPA"),
}

# nanoGPT -------------------------------------------------------------------------------------------------------------


def nanogpt(checkout: Path) -> Contender:
    """The model of a checkout of nanoGPT, whose `model.py` is run. Raises what that raises, SystemExit too."""
    spec = importlib.util.spec_from_file_location("model_of_nanogpt", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(size: Size, vocabulary: int) -> nn.Module:
        with contextlib.redirect_stdout(io.StringIO()):  # it tells how many parameters it has
            config = module.GPTConfig(
                block_size=size.context,
                vocab_size=vocabulary,
                n_layer=size.layers,
                n_head=size.heads,
                n_embd=size.width,
                dropout=0.0,
                bias=False,
            )
            return module.GPT(config)

    return Contender(make, lambda model, x_bt, y_bt: model(x_bt, y_bt)[1], "tied; learned positions, no offsets")


# all of them ---------------------------------------------------------------------------------------------------------


def contenders(checkout: Path | None) -> dict[str, Contender | str]:
    """Every peer by name; where one is not there, why.

    Nothing is looked for on the network, and nothing says that it was. Whatever a checkout's file raises becomes a row
    that says so: which errors a file of another's may raise, nobody can list.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found: dict[str, Contender | str] = {}
    for name, peer in PACKAGED.items():
        found[name] = peer if installed(name) else f"not installed: see docs/bench.md on {name}"
    try:
        found["nanoGPT"] = nanogpt(checkout) if checkout else "no checkout given: --nanogpt PATH"
    except (Exception, SystemExit) as error:
        found["nanoGPT"] = _in_words(error)
    return found


def tried(peer: Contender, size: Size, vocabulary: int) -> str:
    """Why a peer cannot be timed at a size, in a line; nothing where it can. It is tried on one row.

    Whatever it raises is the answer. Packages have errors of their own, each version others, and a peer that fails is
    no fault of the rest; an error of ours shows in the same line, which names its kind.
    """
    tokens_bt = torch.zeros(1, size.context, dtype=torch.long)
    try:
        peer.loss(peer.make(size, vocabulary), tokens_bt, tokens_bt).backward()
    except (Exception, SystemExit) as error:
        return _in_words(error)
    return ""


def _in_words(error: BaseException) -> str:
    first = str(error).splitlines()[:1] or [""]
    return f"failed: {type(error).__name__}: {first[0]}"
