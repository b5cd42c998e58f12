"""Tensor parallelism: processes share out the heads of every attention layer and the hidden units of every MLP.

Each computes its own for all rows of a batch, so that two sums over processes a layer and pass are all that they tell
each other (Shoeybi et al. 2019, section 3, https://arxiv.org/abs/1909.08053). Embeddings, norms and what else stands
between the maps each process has whole, and computes as all others do.
"""

from typing import Any, Literal

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop

from lm.config.tree import InputError
from lm.model.attention import Attention, SoftmaxAttention
from lm.model.fused_linear import is_plain_linear
from lm.model.mlp import MLP, GatedMLP
from lm.model.position import Position
from lm.model.transformer import Decoder

NAME = "tensor_parallel"

Split = Literal["columns", "rows"]
"""How a linear map is shared out: by what it gives, as the heads of queries are, or by what it reads."""

STYLES: dict[Split, type[ParallelStyle]] = {"columns": ColwiseParallel, "rows": RowwiseParallel}

ATTENTION: dict[str, Split] = {"query": "columns", "key": "columns", "value": "columns", "output": "rows"}
PLAIN: dict[str, Split] = {"up": "columns", "down": "rows"}
GATED: dict[str, Split] = {"gate": "columns", **PLAIN}

ENTRY_BY_ENTRY = (Adam, AdamW, SGD, RMSprop, Adagrad, Adamax, NAdam, RAdam, Adadelta)
"""Optimisers that treat each number of a matrix by itself."""


def parallelize(model: nn.Module, mesh: Any) -> None:
    """Shares out the layers of a model, in place, among the processes of a mesh of one dimension.

    Names, first values and order of the parameters stay what they are.
    """
    split = plan(model, mesh.size())
    assert isinstance(model, Decoder)
    for name, how in split.items():
        parallelize_module(model.get_submodule(name), mesh, STYLES[how]())
    heads = model.shape.heads // mesh.size()
    model.local_heads = slice(mesh.get_local_rank() * heads, (mesh.get_local_rank() + 1) * heads)


def plan(model: nn.Module, among: int) -> dict[str, Split]:
    """How each linear map of a model is split `among` so many processes, by its name; whole ones are left out.

    Raises:
        InputError: with the first part that cannot be shared out, and why.
    """
    if (
        not isinstance(model, Decoder)
        or type(model).forward is not Decoder.forward
        or type(model)._stream is not Decoder._stream
    ):
        raise _refusal(f"a model of class {type(model).__name__}", "is not the decoder that it knows")
    found: dict[str, Split] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            found |= _attention(name, module, among)
        elif isinstance(module, MLP):
            found |= _mlp(name, module, among)
        elif isinstance(module, Position):
            _check_position(module, model.shape.heads)
    return found


def check_optimizer(optimizer: Any) -> None:
    """Refuses an optimiser, a class or a partial of one, that needs whole matrices, or all parameters held alike.

    Raises:
        InputError: with those that are taken.
    """
    cls, given = getattr(optimizer, "func", optimizer), getattr(optimizer, "keywords", {})
    if cls not in ENTRY_BY_ENTRY:
        names = ", ".join(known.__name__ for known in ENTRY_BY_ENTRY)
        raise InputError(
            f"optim.optimizer: {cls.__name__} may look at whole matrices, which no process has under tensor "
            f"parallelism; expected one of {names}"
        )
    for name in ("foreach", "fused"):
        if given.get(name):
            raise InputError(
                f"optim.optimizer.{name}: under tensor parallelism some parameters are shared out and some whole, "
                "which cannot be updated in one call; expected false"
            )


# layer by layer ------------------------------------------------------------------------------------------------------


def _attention(name: str, module: Attention, among: int) -> dict[str, Split]:
    if (
        not isinstance(module, SoftmaxAttention)
        or type(module).forward is not SoftmaxAttention.forward
        or type(module).projected is not SoftmaxAttention.projected
    ):
        raise _refusal(f"{name} ({type(module).__name__})", "mixes positions in a way of its own")
    for what, features in (("heads", module.query.out_features), ("key-value heads", module.key.out_features)):
        if (heads := features // module.head_size) % among:
            raise _undivided(name, heads, what, among)
    if module.dropout:
        raise _refusal(f"{name}.dropout", "would be drawn for each share of the heads alike; expected 0")
    return _maps(name, module, ATTENTION)


def _mlp(name: str, module: MLP, among: int) -> dict[str, Split]:
    gated = isinstance(module, GatedMLP)
    if type(module).forward is not (GatedMLP.forward if gated else MLP.forward):
        raise _refusal(f"{name} ({type(module).__name__})", "computes something of its own")
    if module.up.out_features % among:
        raise _undivided(name, module.up.out_features, "hidden units", among)
    if module.dropout.p:
        raise _refusal(f"{name}.dropout", "would be drawn for each share of the hidden units alike; expected 0")
    return _maps(name, module, GATED if gated else PLAIN)


def _maps(name: str, module: nn.Module, how: dict[str, Split]) -> dict[str, Split]:
    """The maps of a layer by their full names; what else it learns would learn from a share alone."""
    for part, _ in module.named_parameters():
        if part.rpartition(".")[0] not in how:
            raise _refusal(f"{name}.{part}", "is learnt from all heads or hidden units together")
    for part in how:
        if not is_plain_linear(module.get_submodule(part)):  # type: ignore[arg-type]
            raise _refusal(f"{name}.{part}", "is more than a linear map")
    return {f"{name}.{part}": split for part, split in how.items()}


def _check_position(position: Position, heads: int) -> None:
    """Refuses encodings that treat heads in a way that a share of them would not show, or learn from them."""
    kind = type(position)
    turns = kind.apply_rotary is not Position.apply_rotary
    if turns and (not position.head_independent or next(position.parameters(), None) is not None):
        raise _refusal(f"position {kind.__name__}", "may turn each head in its own way")
    bias = position.bias(1, 1)
    if bias is not None and (bias.requires_grad or bias.shape[0] != heads):
        raise _refusal(f"position {kind.__name__}", "has a bias that is learnt from all heads, or is not one a head")


def _undivided(name: str, count: int, what: str, among: int) -> InputError:
    return InputError(
        f"trainer.strategy: {among} processes cannot share out {count} {what} of {name}; expected a "
        f"number that divides {count}, or strategy fsdp2 or ddp"
    )


def _refusal(what: str, why: str) -> InputError:
    return InputError(
        f"trainer.strategy: tensor parallelism cannot share out {what}, which {why}; expected strategy fsdp2 or ddp"
    )
