"""Strategies of `trainer.strategy`: those that are refused, `fsdp2` and `tensor_parallel` under Lightning."""

from typing import Any, Literal, NamedTuple

from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop

from lm.config.tree import InputError
from lm.model.attention import Attention, SoftmaxAttention
from lm.model.block import Block
from lm.model.experts import Experts
from lm.model.fused_linear import is_plain_linear
from lm.model.mlp import MLP, GatedMLP
from lm.model.position import Position
from lm.model.transformer import Decoder
from lm.training.adapter import uses_batch_statistics

FSDP2, TENSOR_PARALLEL = "fsdp2", "tensor_parallel"

# precisions in which gradients need no scaling by a number that is adapted during training
PRECISIONS = ("32-true", "64-true", "bf16-true", "bf16-mixed")

# beginnings of the names of strategies that no run can use, each with the reason
REFUSED = {
    "fsdp": "flattens weights, which decay, are measured and are clipped by their shape",
    "deepspeed": "keeps weights, gradients or optimiser to itself, which a run reads",
}


class ModelParallel(ModelParallelStrategy):
    """Divides weights, gradients and optimiser states among processes (FSDP2), or the layers (tensor parallelism)."""

    def __init__(self, layers: bool = False) -> None:
        super().__init__(save_distributed_checkpoint=False)  # one file, which every strategy can read
        self.layers = layers

    def sizes(self) -> tuple[int, int]:
        """Return the processes that divide the rows of a batch, and those that divide the layers. Raises InputError."""
        if not self.layers:
            return self.num_nodes * self.num_processes, 1
        if self.num_nodes > 1:
            what = f"strategy {TENSOR_PARALLEL} divides layers among the devices of one machine"
            raise InputError(f"trainer.num_nodes: {what}; expected 1, or strategy {FSDP2}")
        return 1, self.num_processes

    def setup_environment(self) -> None:
        """Divide the devices between data and tensor parallelism."""
        self._data_parallel_size, self._tensor_parallel_size = self.sizes()
        super().setup_environment()


# by a name, as Lightning refuses float64 to a strategy that is given as an object
StrategyRegistry.register(FSDP2, ModelParallel, description="Fully sharded data parallel training", override=True)
StrategyRegistry.register(
    TENSOR_PARALLEL, ModelParallel, description="Layers divided among devices", override=True, layers=True
)


class Processes(NamedTuple):
    """Numbers of processes that divide the rows of each batch and the layers, and whether they divide the model."""

    rows: int
    layers: int
    model_is_shared: bool


def processes(trainer: Any) -> Processes:
    """Return the processes of a trainer, started or not. Raises InputError where they cannot be."""
    if isinstance(trainer.strategy, ModelParallel):
        return Processes(*trainer.strategy.sizes(), True)
    return Processes(trainer.world_size, 1, False)


def shard(trainer: Any, model: nn.Module) -> None:
    """Divide a model among processes if the strategy does so; initial parameters keep their values."""
    if not isinstance(trainer.strategy, ModelParallel):
        return
    if trainer.strategy.sizes()[1] > 1:
        parallelize(model, trainer.strategy.device_mesh["tensor_parallel"])
        return
    mesh = trainer.strategy.device_mesh["data_parallel"]
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def check_sharded(settings: Any) -> None:
    """Refuse strategies that compute something else, or settings that one does not carry out. Raises InputError."""
    name, precision = settings["strategy"], settings["precision"] or "32-true"
    if name not in (FSDP2, TENSOR_PARALLEL):
        for beginning, reason in REFUSED.items():
            if name.lower().startswith(beginning):
                raise InputError(f"trainer.strategy: {name!r} {reason}; expected another, such as ddp or {FSDP2}")
        return
    if precision not in PRECISIONS:
        expected = f"expected one of {', '.join(PRECISIONS)}"
        raise InputError(f"trainer.precision: strategy {name} does not support {precision!r}; {expected}")
    if settings["sync_batchnorm"]:
        raise InputError(f"trainer.sync_batchnorm: strategy {name} does not carry it out; expected strategy ddp")


def check_strategy(settings: Any) -> None:
    """Refuse strategies that fork, which hang beside threads, and cells of several machines. Raises InputError."""
    if any(part in settings["strategy"] for part in ("fork", "spawn", "notebook")):
        hint = f"{settings['strategy']!r} forks its processes, which works in `lm fit` alone; use 'ddp' here"
        raise InputError(f"trainer.strategy: {hint}")
    if settings["num_nodes"] > 1:
        machines = f"{settings['num_nodes']} machines train one cell in `lm fit` alone"
        raise InputError(f"trainer.num_nodes: {machines}, which torchrun or srun starts on each; expected 1")


def check_model(model: nn.Module, optimizer: Any, sharing: Processes) -> None:
    """Refuse a model or optimiser that processes cannot divide, or compute otherwise. Raises InputError."""
    if sharing.model_is_shared and getattr(model, "prediction", None) is not None:
        hint = "model.prediction needs all weights in each process; expected one device or ddp"
        raise InputError(f"trainer.strategy: {hint}")
    if sharing.layers > 1:
        plan(model, sharing.layers)
        check_optimizer(optimizer)
    elif sharing.model_is_shared:
        for name, parameter in model.named_parameters():
            if parameter.ndim == 0:
                hint = f"and {name} is a single number; expected strategy ddp, or a model without it"
                raise InputError(f"trainer.strategy: {FSDP2} shares out parameters by their rows, {hint}")
    if sharing.rows > 1 and any(map(uses_batch_statistics, model.modules())):
        hint = "and compute something else than in one; expected one device, or sync_batchnorm"
        alone = f"batch norm would see the rows of each of {sharing.rows} processes alone"
        raise InputError(f"trainer.devices: {alone}, {hint}")


# Tensor parallelism: processes divide the heads of every attention layer and the hidden units of every MLP. Each
# computes its own for all rows of a batch, so that they exchange two sums a layer and pass (Shoeybi et al. 2019,
# section 3, https://arxiv.org/abs/1909.08053). All else between the linear layers is computed by every process.

Split = Literal["columns", "rows"]  # the features by which a linear layer is divided: of its output, or of its input
STYLES: dict[Split, type[ParallelStyle]] = {"columns": ColwiseParallel, "rows": RowwiseParallel}
ATTENTION: dict[str, Split] = {"query": "columns", "key": "columns", "value": "columns", "output": "rows"}
PLAIN: dict[str, Split] = {"up": "columns", "down": "rows"}
GATED: dict[str, Split] = {"gate": "columns", **PLAIN}

# optimisers that update each entry of a matrix by itself
ENTRY_BY_ENTRY = (Adam, AdamW, SGD, RMSprop, Adagrad, Adamax, NAdam, RAdam, Adadelta)


def parallelize(model: nn.Module, mesh: Any) -> None:
    """Divide a model's layers, in place, among the processes of a mesh; parameters keep names, values and order."""
    split = plan(model, mesh.size())
    assert isinstance(model, Decoder)
    for name, how in split.items():
        parallelize_module(model.get_submodule(name), mesh, STYLES[how]())
    heads = model.shape.heads // mesh.size()
    model.local_heads = slice(mesh.get_local_rank() * heads, (mesh.get_local_rank() + 1) * heads)


def plan(model: nn.Module, world: int) -> dict[str, Split]:
    """Return the split of each divided linear layer among `world` processes, by its name. Raises InputError."""
    kind: Any = type(model)
    if not isinstance(model, Decoder) or (kind.forward, kind._stream) != (Decoder.forward, Decoder._stream):
        raise _refusal(f"a model of class {type(model).__name__}", "is not the decoder that it knows")
    splits: dict[str, Split] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            splits |= _attention(name, module, world)
        elif isinstance(module, Experts):
            raise _refusal(f"{name} (Experts)", "sends each token to experts of its own")
        elif isinstance(module, MLP):
            gated = isinstance(module, GatedMLP)
            if type(module).forward is not (GatedMLP.forward if gated else MLP.forward):
                raise _refusal(f"{name} ({type(module).__name__})", "computes something of its own")
            if module.up.out_features % world:
                raise _undivided(name, module.up.out_features, "hidden units", world)
            if module.dropout.p:
                raise _refusal(f"{name}.dropout", "would be drawn for each share of the hidden units alike; expected 0")
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
    """Refuse an optimiser that needs whole matrices, or all parameters divided alike. Raises InputError."""
    cls, options = getattr(optimizer, "func", optimizer), getattr(optimizer, "keywords", {})
    if cls not in ENTRY_BY_ENTRY:
        names = ", ".join(usable.__name__ for usable in ENTRY_BY_ENTRY)
        hint = f"which no process has under tensor parallelism; expected one of {names}"
        raise InputError(f"optim.optimizer: {cls.__name__} may look at whole matrices, {hint}")
    for name in ("foreach", "fused"):
        if options.get(name):
            hint = "some parameters are shared out and some whole, which cannot be updated in one call; expected false"
            raise InputError(f"optim.optimizer.{name}: under tensor parallelism {hint}")


def _attention(name: str, module: Attention, world: int) -> dict[str, Split]:
    kind: Any = type(module)
    standard = SoftmaxAttention
    methods = ("forward", "projected", "attend")
    if not isinstance(module, standard) or any(getattr(kind, name) != getattr(standard, name) for name in methods):
        raise _refusal(f"{name} ({type(module).__name__})", "mixes positions in a way of its own")
    for what, features in (("heads", module.query.out_features), ("key-value heads", module.key.out_features)):
        if (heads := features // module.head_size) % world:
            raise _undivided(name, heads, what, world)
    if module.dropout:
        raise _refusal(f"{name}.dropout", "would be drawn for each share of the heads alike; expected 0")
    return _maps(name, module, ATTENTION if module.gate is None else {"gate": "columns", **ATTENTION})


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
    expected = f"expected a number that divides {count}, or strategy fsdp2 or ddp"
    return InputError(f"trainer.strategy: {world} processes cannot share out {count} {what} of {name}; {expected}")


def _refusal(what: str, why: str) -> InputError:
    reason = f"cannot share out {what}, which {why}; expected strategy fsdp2 or ddp"
    return InputError(f"trainer.strategy: tensor parallelism {reason}")
