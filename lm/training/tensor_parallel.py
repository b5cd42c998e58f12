"""Tensor parallelism: processes divide the heads of every attention layer and the hidden units of every MLP.

Each computes its own for all rows of a batch, so that they exchange two sums a layer and pass (Shoeybi et al. 2019,
section 3, https://arxiv.org/abs/1909.08053). Embeddings, norms and all else between the linear layers are computed by
every process.
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

TENSOR_PARALLEL = "tensor_parallel"

Split = Literal["columns", "rows"]  # the features by which a linear layer is divided: of its output, or of its input
STYLES: dict[Split, type[ParallelStyle]] = {"columns": ColwiseParallel, "rows": RowwiseParallel}
ATTENTION: dict[str, Split] = {"query": "columns", "key": "columns", "value": "columns", "output": "rows"}
PLAIN: dict[str, Split] = {"up": "columns", "down": "rows"}
GATED: dict[str, Split] = {"gate": "columns", **PLAIN}

# optimisers that update each entry of a matrix by itself
ENTRY_BY_ENTRY = (Adam, AdamW, SGD, RMSprop, Adagrad, Adamax, NAdam, RAdam, Adadelta)


def parallelize(model: nn.Module, mesh: Any) -> None:
    """Divide the layers of a model, in place, among the processes of a mesh of one dimension.

    Names, initial values and order of the parameters stay the same.
    """
    split = plan(model, mesh.size())
    assert isinstance(model, Decoder)
    for name, how in split.items():
        parallelize_module(model.get_submodule(name), mesh, STYLES[how]())
    heads = model.shape.heads // mesh.size()
    model.local_heads = slice(mesh.get_local_rank() * heads, (mesh.get_local_rank() + 1) * heads)


def plan(model: nn.Module, world: int) -> dict[str, Split]:
    """Return the split of each linear layer of a model among `world` processes, by its name; undivided ones left out.

    Raises InputError with the first part that cannot be divided, and the reason.
    """
    if (
        not isinstance(model, Decoder)
        or type(model).forward is not Decoder.forward
        or type(model)._stream is not Decoder._stream
    ):
        raise _refusal(f"a model of class {type(model).__name__}", "is not the decoder that it knows")
    splits: dict[str, Split] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            splits |= _attention(name, module, world)
        elif isinstance(module, MLP):
            gated = isinstance(module, GatedMLP)
            if type(module).forward is not (GatedMLP.forward if gated else MLP.forward):
                raise _refusal(f"{name} ({type(module).__name__})", "computes something of its own")
            if module.up.out_features % world:
                raise _undivided(name, module.up.out_features, "hidden units", world)
            if module.dropout.p:
                reason = "would be drawn for each share of the hidden units alike; expected 0"
                raise _refusal(f"{name}.dropout", reason)
            splits |= _maps(name, module, GATED if gated else PLAIN)
        elif isinstance(module, Position):
            kind, bias = type(module), module.bias(1, 1)
            turns = kind.apply_rotary is not Position.apply_rotary
            if turns and (not module.head_independent or next(module.parameters(), None) is not None):
                raise _refusal(f"position {kind.__name__}", "may turn each head in its own way")
            if bias is not None and (bias.requires_grad or bias.shape[0] != model.shape.heads):
                reason = "has a bias that is learnt from all heads, or is not one a head"
                raise _refusal(f"position {kind.__name__}", reason)
    return splits


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimiser, a class or a partial of one, that needs whole matrices, or all parameters divided alike.

    Raises InputError with the optimisers that can be used.
    """
    cls, options = getattr(optimizer, "func", optimizer), getattr(optimizer, "keywords", {})
    if cls not in ENTRY_BY_ENTRY:
        names = ", ".join(usable.__name__ for usable in ENTRY_BY_ENTRY)
        raise InputError(
            f"optim.optimizer: {cls.__name__} may look at whole matrices, which no process has under tensor "
            f"parallelism; expected one of {names}"
        )
    for name in ("foreach", "fused"):
        if options.get(name):
            raise InputError(
                f"optim.optimizer.{name}: under tensor parallelism some parameters are shared out and some whole, "
                "which cannot be updated in one call; expected false"
            )


def _attention(name: str, module: Attention, world: int) -> dict[str, Split]:
    if (
        not isinstance(module, SoftmaxAttention)
        or type(module).forward is not SoftmaxAttention.forward
        or type(module).projected is not SoftmaxAttention.projected
    ):
        raise _refusal(f"{name} ({type(module).__name__})", "mixes positions in a way of its own")
    for what, features in (("heads", module.query.out_features), ("key-value heads", module.key.out_features)):
        if (heads := features // module.head_size) % world:
            raise _undivided(name, heads, what, world)
    if module.dropout:
        raise _refusal(f"{name}.dropout", "would be drawn for each share of the heads alike; expected 0")
    return _maps(name, module, ATTENTION)


def _maps(name: str, module: nn.Module, how: dict[str, Split]) -> dict[str, Split]:
    """Return the linear layers of a module by their full names, refusing other parameters, which would diverge."""
    for part, _ in module.named_parameters():
        if part.rpartition(".")[0] not in how:
            raise _refusal(f"{name}.{part}", "is learnt from all heads or hidden units together")
    for part in how:
        if not is_plain_linear(module.get_submodule(part)):  # type: ignore[arg-type]
            raise _refusal(f"{name}.{part}", "is more than a linear map")
    return {f"{name}.{part}": split for part, split in how.items()}


def _undivided(name: str, count: int, what: str, world: int) -> InputError:
    return InputError(
        f"trainer.strategy: {world} processes cannot share out {count} {what} of {name}; expected a "
        f"number that divides {count}, or strategy fsdp2 or ddp"
    )


def _refusal(what: str, why: str) -> InputError:
    return InputError(
        f"trainer.strategy: tensor parallelism cannot share out {what}, which {why}; expected strategy fsdp2 or ddp"
    )
