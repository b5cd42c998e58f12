"""The LightningModule: loss, optimiser, gradient clipping, and buffers of what each step measured.

Nothing is logged through Lightning: a step appends tensors to a list, and the recorder empties the lists every so many
steps, so that no step waits for a device.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor, nn

from lm.config.plain import clipped
from lm.data import IGNORED
from lm.data.batch import Batch, Clusters, rank_and_world_size
from lm.data.order import derive_seed
from lm.metrics.gradients import ParameterGroups, clip_by_norm, clip_by_value, gradient_norm
from lm.metrics.probe import first_rows
from lm.metrics.tokens import TokenStatistics
from lm.model.block import Block
from lm.model.experts import Experts, update_biases
from lm.model.transformer import Decoder, Model
from lm.training.adapter import (
    data_group,
    has_full_parameters,
    reduce_over_processes,
    runs_compiled,
    to_device,
    uncompile,
)
from lm.training.objective import Objective, max_logits, require_extra_losses, take_extra_losses
from lm.training.optim import Optim, switches_weights, tables
from lm.training.process import beat
from lm.training.strategies import shard

Logits = list[tuple[Tensor, Tensor]]  # those of each batch (n, v), and its targets (n,)

CACHED_LOGITS_MAX_BYTES = 2**28  # size up to which the logits of a split are cached


class LanguageModel(LightningModule):
    """A model with its objective, optimiser and measurements."""

    def __init__(
        self,
        model: Model,  # gives logits (b, t, v) for tokens (b, t)
        optim: Optim,  # objective, optimiser and schedule
        bytes_per_token: Tensor,  # UTF-8 bytes behind each token, (v,)
        seed: int,  # of the randomness in training, which is a pure function of (seed, batch, process)
        classes: Tensor | None = None,  # the tokens whose class-wise calibration is measured
        compiled: str | None = None,  # a key for cells that share compiled code; None if nothing is compiled
        halved: bool = False,  # True to run each batch as two halves, one after the other, in one process
        # of the validation split, whose losses are reported separately at the end of training; None for none
        clusters: Clusters | None = None,
    ) -> None:
        super().__init__()
        self.model, self.optim, self.seed_value = model, optim, seed
        self.vocabulary, self.compiled, self.halved = len(bytes_per_token), compiled, halved
        self.compile_seconds = 0.0
        self.compiled_loss: Callable[[Tensor, Tensor], Tensor] | None = None
        self.notes: list[str] = []  # settings that could not be carried out, for the record
        self.clusters = clusters
        count = 0 if clusters is None else clusters.count
        self.validation = TokenStatistics(bytes_per_token, classes=classes, clusters=count)
        self.num_validated_batches = 0  # that `validation` holds
        self.last_logits: Logits = []  # and targets of the last validation's batches; none where they are large
        self.losses, self.rows, self.tokens, self.norms = (list[Tensor]() for _ in range(4))
        self.extras: list[dict[str, Tensor]] = []  # the extra losses of each batch by name, without their weights
        self.extras_checked = False
        self.largest: list[Tensor] = []  # entry of each step's gradient by size, if gradients are clipped by value
        self.groups: ParameterGroups | None = None
        # sums of squares of gradients, weights and updates over `groups`, of the last step measured
        self.squares: dict[str, Tensor] = {}
        self.weights_before: list[Tensor] | None = None

    # Each walk through a model takes .1 to .2 ms; parts are replaced in configure_model alone.
    @functools.cached_property
    def parts(self) -> list[nn.Module]:
        """All modules of the model."""
        return list(self.model.modules())

    @functools.cached_property
    def weights(self) -> list[nn.Parameter]:
        """All parameters of the model."""
        return list(self.model.parameters())

    def configure_model(self) -> None:
        """Divide the model among processes if the strategy does so."""
        shard(self.trainer, self.model)
        self.validation.process_group = data_group(self.trainer)

    def on_fit_start(self) -> None:
        """Compile the model or its blocks, if that is configured, before any step is timed."""
        if self.compiled is None:
            return
        start, trainer = time.perf_counter(), self.trainer
        if not has_full_parameters(trainer):
            self.notes.append("not compiled: the strategy shards the weights")
            return

        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if getattr(data, "plan", None) is not None:
            self.notes.append("not compiled: batches of several sizes would each be compiled anew")
            return

        def warm_up() -> None:
            batch = next(iter(data.training_batches(0, 1, *rank_and_world_size(trainer))))
            batch = halves(batch)[0] if self.halved else batch
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            self.model.train()
            context = trainer.precision_plugin.train_step_context()
            with preserve_buffers_and_rng(self.model), context, torch.enable_grad():
                torch.autograd.grad(self.loss(to_device(trainer, batch)), parameters, allow_unused=True)

        beat()
        if is_compiled_whole(self.model):  # the loss too, over as many logits as the targets are
            self.compiled_loss = torch.compile(self.optim.objective.loss, dynamic=False)
        reason = compile_in_place(self.model, self.compiled, warm_up)
        beat()
        self.compile_seconds = time.perf_counter() - start
        if reason is not None:
            self.compiled_loss = None
            self.notes.append(reason)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout by the number of the batch."""
        # Dropout of a step does not depend on how the process came to that step, which makes resuming exact.
        seed = derive_seed("batch", self.seed_value, batch_idx, rank_and_world_size(self.trainer)[0])
        torch.default_generator.manual_seed(seed)  # torch.manual_seed costs half a millisecond where CUDA is asleep
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the weighted loss of a batch and count its tokens."""
        self.tokens.append((batch.targets_bt != IGNORED).sum())
        self.rows.append(batch.rows_b)
        if not self.halved:
            weight: Any = 1.0
            if rank_and_world_size(self.trainer)[1] > 1:  # the mean over processes is then the mean over tokens
                tokens = (batch.targets_bt != IGNORED).sum().double()
                weight = tokens / reduce_over_processes(self.trainer, tokens.clone(), "mean")
            loss, extras = self.loss_and_extras(batch)
            self.losses.append(loss.detach() * weight)
            self.extras.append({name: extra.detach() * weight for name, (extra, _) in extras.items()})
            return with_extras(loss, extras) * weight

        def backward_one_at_a_time(scale: Tensor) -> None:
            losses, sums = [], dict[str, Any]()
            for half, share in weighted_halves(batch):
                with self.trainer.precision_plugin.train_step_context():
                    loss, extras = self.loss_and_extras(half)
                weight = share.to(loss.dtype)
                losses.append(loss.detach() * weight)
                sums |= {name: sums.get(name, 0.0) + extra.detach() * weight for name, (extra, _) in extras.items()}
                torch.autograd.backward(with_extras(loss, extras) * weight * scale)
            self.losses.append(torch.stack(losses).sum())
            self.extras.append(sums)

        return deferred_backward(backward_one_at_a_time, self.device)

    def loss(self, batch: Batch) -> Tensor:
        """Return what training minimises: the objective's mean over the targets, and extra losses while training."""
        return with_extras(*self.loss_and_extras(batch))

    def loss_and_extras(self, batch: Batch) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
        """Return the objective's mean over the targets of a batch, and extra losses with their weights by name."""
        loss, weights = self._objective(batch), self.optim.objective.extra
        score_predictions(self.model, self.optim.objective, batch.targets_bt)
        extras = take_extra_losses(self.parts, weights) if self.model.training else {}
        if self.model.training and not self.extras_checked:
            require_extra_losses(weights, extras)
            self.extras_checked = True
        return loss, extras

    def _objective(self, batch: Batch) -> Tensor:
        targets_n = batch.targets_bt.flatten()
        many = len(targets_n) * self.vocabulary >= max_logits(targets_n.device) and has_full_parameters(self.trainer)
        if many and (factors := self.model.hidden_and_weight(*batch.inputs)) is not None:
            return of_product(self.model, self.optim.objective, factors[0].flatten(0, 1), factors[1], targets_n)
        loss = self.compiled_loss or self.optim.objective.loss
        return loss(self.model(*batch.inputs).flatten(0, 1), targets_n)

    def switch_weights(self, training: bool) -> None:
        """Put the weights for training or for evaluation in place, where an optimiser has both."""
        optimizers: Any = self.trainer.optimizers
        for optimizer in filter(switches_weights, optimizers):
            optimizer.train() if training else optimizer.eval()

    def on_validation_epoch_start(self) -> None:
        """Reset the measurements of the validation."""
        self.validation.reset()
        self.num_validated_batches = 0
        self.last_logits = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Measure a batch of the validation split."""
        self.num_validated_batches += 1
        is_last = self.trainer.global_step == self.trainer.max_steps
        collected = self.last_logits if is_last and self.keeps_logits(batch) else None
        self.measure(batch, self.validation, self.clusters if is_last else None, collected)

    def keeps_logits(self, batch: Batch) -> bool:
        """Return True if the logits of all batches of validation are small, and the evaluation computes the same."""
        trainer: Any = self.trainer
        logits = batch.targets_bt.numel() * self.vocabulary * len(trainer.datamodule.evaluation_batches("validation"))
        return 4 * logits <= CACHED_LOGITS_MAX_BYTES and trainer.world_size == 1 and not self.halved

    def measure(
        self,
        batch: Batch,
        statistics: TokenStatistics,
        clusters: Clusters | None = None,
        collected: Logits | None = None,
    ) -> None:
        """Add the tokens of a batch to statistics, those of `clusters` separately too, its logits to `collected`."""
        beat()
        for part in halves(batch) if self.halved else (batch,):
            with uncompiled(self.model):
                logits_nv = self.model(*part.inputs).flatten(0, 1)
            if collected is not None:
                collected.append((logits_nv, part.targets_bt.flatten()))
            cluster_n = None if clusters is None else clusters.of(part.rows_b).expand_as(part.targets_bt).flatten()
            statistics.update(logits_nv, part.targets_bt.flatten(), cluster_n)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedule."""
        model, steps = self.model, self.trainer.max_steps
        optimizer, schedule = self.optim.build(model.parameters(), steps, tables(model), model.map_rate)
        if experts := [part for part in model.modules() if isinstance(part, Experts)]:
            optimizer.register_step_post_hook(lambda *_: update_biases(experts))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Measure the gradients, here unscaled and complete, then clip them by global norm or by value."""
        parameters = [p for p in self.weights if p.grad is not None]
        norm = gradient_norm(parameters)
        self.norms.append(norm)
        if self.is_measured(self.global_step + 1):
            self.groups = self.groups or ParameterGroups(self.model)
            self.squares = {"gradient": self.groups.gradients(), "weight": self.groups.weights()}
            self.weights_before = [p.detach().clone() for p in self.groups.parameters]
        if gradient_clip_val and gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
            self.largest.append(gradient_norm(parameters, torch.inf))
            clip_by_value(parameters, gradient_clip_val)
        elif gradient_clip_val:
            clip_by_norm(parameters, gradient_clip_val, norm)

    def is_measured(self, step: int) -> bool:
        """Return True for an optimiser step whose matrices are measured: the first, and each that is logged."""
        trainer: Any = self.trainer
        return step == 1 or step % trainer.log_every_n_steps == 0

    def measure_update(self) -> None:
        """Complete the measurement of a step after its update."""
        if self.groups is not None and self.weights_before is not None:
            self.squares["update"] = self.groups.updates(self.weights_before)
            self.weights_before = None


def of_product(model: Model, objective: Objective, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor) -> Tensor:
    """Return an objective of a model's logits, whose factors are given, without having all of them at once."""
    softcap = () if model.logit_softcap is None else (model.logit_softcap,)
    return objective.of_product(x_nd, weight_vd, targets_n, *softcap)


def score_predictions(model: Model, objective: Objective, targets_bt: Tensor) -> None:
    """Make the losses of the heads that predict later tokens, if a model has any, extra losses of theirs."""
    prediction = getattr(model, "prediction", None)
    if prediction is None or not model.training:
        return
    assert isinstance(model, Decoder)
    matrix, states = model.embedding.output_weight, prediction.states
    prediction.states, prediction.extra_losses = [], {}
    for ahead, x_btd in enumerate(states, start=1):
        x_nd, targets_n = x_btd[:, :-ahead].flatten(0, 1), targets_bt[:, ahead:].flatten()
        if matrix is not None and len(targets_n) * model.shape.vocabulary >= max_logits(targets_n.device):
            loss = of_product(model, objective, model.embedding.scale_for_output(x_nd), matrix, targets_n)
        else:
            loss = objective.loss(model.embedding.logits(x_nd), targets_n)
        prediction.extra_losses[f"token_{ahead + 1}"] = loss


def with_extras(loss: Tensor, extras: dict[str, tuple[Tensor, float]]) -> Tensor:
    """Add weighted extra losses to a loss."""
    for extra, weight in extras.values():
        loss = loss + weight * extra
    return loss


def to_floats(scalars: list[Tensor]) -> list[float]:
    """Return the values of tensors of one number, fetched at once."""
    return torch.stack(scalars).double().tolist() if scalars else []


def gather_rows(module: LanguageModel, rows: list[Tensor]) -> list[np.ndarray]:
    """Gather the row numbers of each batch from all processes, in their global order; batches may differ in size."""
    longest = torch.tensor(max(map(len, rows)), device=rows[0].device)
    size = int(reduce_over_processes(module.trainer, longest, "max"))
    padded = torch.stack([torch.nn.functional.pad(rows_b, (0, size - len(rows_b)), value=-1) for rows_b in rows])
    everywhere: Any = module.all_gather(padded, group=data_group(module.trainer))
    if everywhere.ndim == 3:  # (world, batches, b), not (batches, b)
        everywhere = everywhere.transpose(0, 1).flatten(1)
    return [rows_b[rows_b >= 0] for rows_b in everywhere.cpu().numpy()]


# The gradient of a mean over tokens is the sum of those of its halves, each weighted by its part of the tokens: the
# step is the same up to rounding. Dropout draws other numbers.
def halves(batch: Batch) -> list[Batch]:
    """Split a batch into its first rows and the others; one of a single row stays whole."""
    rows = (len(batch.rows_b) + 1) // 2
    return [first_rows(batch, rows, start) for start in range(0, len(batch.rows_b), rows)]


def weighted_halves(batch: Batch) -> list[tuple[Batch, Tensor]]:
    """Return the halves of a batch, each with its part of the targets, a float64."""
    total = (batch.targets_bt != IGNORED).sum().double().clamp(min=1)
    return [(half, (half.targets_bt != IGNORED).sum() / total) for half in halves(batch)]


def deferred_backward(run: Callable[[Tensor], None], device: torch.device) -> Tensor:
    """Return a loss of value 0 whose backward pass calls `run` with the scale of the loss, to add all gradients."""
    handle = torch.zeros((), device=device, requires_grad=True)
    handle.register_hook(torch.enable_grad()(run))
    return handle.clone()


_in_memory = ""  # key of the code that this process holds; code for other keys would count against the compiler's limit


def is_compiled_whole(model: Model) -> bool:
    """Return True for a model on CUDA whose layers leave nothing behind but their output: its code is one.

    At 124M a step by blocks takes a seventh longer there. A processor gains little, and waits longer for the compiler.
    """
    if not isinstance(model, Decoder) or model.prediction is not None or not model.keeps_activations:
        return False
    leaves_losses = any(hasattr(part, "extra_losses") for part in model.modules())
    return next(model.parameters()).device.type == "cuda" and not leaves_losses


def compile_in_place(model: Model, key: str, warm_up: Callable[[], object]) -> str | None:
    """Compile a model whole or by blocks; layers and later cells of the same shape share the code.

    Cells of equal `key` share code, which `warm_up` makes by a step that changes nothing. Blocks that cannot be
    compiled stay: the same numbers up to rounding, at another cost. Returns the reason, in one line; None without.
    """
    global _in_memory
    if not isinstance(model, Decoder):
        return f"not compiled: {type(model).__name__} sees batches of many shapes, each of which would take a minute"
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    parts: list[nn.Module] = [model] if is_compiled_whole(model) else [*blocks]
    if _in_memory != key:
        torch.compiler.reset()
        _in_memory = key
    for part in parts:
        part.compile(dynamic=False)  # which leaves the names of its parameters alone
    try:
        with torch._dynamo.config.patch(recompile_limit=max(8, 2 * len(blocks))):  # layers that differ have code each
            warm_up()
    except Exception as error:  # whatever a compiler, a user's part or a missing header may raise
        for part in parts:
            uncompile(part)
        _in_memory = ""
        first = (str(error).strip() or "no reason given").splitlines()[0]
        return clipped(f"not compiled: {type(error).__name__}: {first}", 300)
    return None


def uncompiled(model: nn.Module) -> AbstractContextManager[object]:
    """Run no compiled code within a block: hooks are called, and batches may have any shape."""
    compiled = any(map(runs_compiled, model.modules()))
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


@contextlib.contextmanager
def preserve_buffers_and_rng(model: nn.Module) -> Iterator[None]:
    """Restore, after a block, the buffers of a model and the random state of the processor."""
    before = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
