"""The LightningModule: loss, optimiser, gradient clipping, and buffers of what each step measured.

Nothing is logged through Lightning: a step leaves tensors in a list, and the recorder empties the lists every so many
steps, so that no step waits for a device.
"""

import functools
import time
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lm.data import IGNORED
from lm.data.batch import Batch, Clusters, rank_and_world_size
from lm.data.order import derive_seed
from lm.metrics.gradients import ParameterGroups, clip_by_norm, clip_by_value, gradient_norm, largest_gradient
from lm.metrics.tokens import TokenStatistics
from lm.model.transformer import Model
from lm.training.adapter import clips_by_value, data_group, gives_gradients, is_whole, over_processes, placed, stepping
from lm.training.compiled import as_written, compile_blocks, without_trace
from lm.training.halves import halves, later, shares
from lm.training.life import alive
from lm.training.optim import Optim, tables
from lm.training.sharded import shard

MANY = 2**24
"""Logits of a batch from which the loss is taken without having them all at once: 64 MiB, and twice that for their
gradient."""

KEPT_BYTES = 2**28
"""Logits of a split are kept up to this size, and computed anew beyond."""


class LanguageModel(LightningModule):
    """A model and how it is trained.

    Args:
        model: gives logits (b, t, v) for tokens (b, t).
        optim: objective, optimiser and schedule.
        bytes_per_token: UTF-8 bytes behind each token, (v,).
        seed: of the randomness in training, which is a pure function of (seed, batch, process).
        classes: the tokens whose class-wise calibration is measured.
        compiled: what cells that share compiled code have in common; None where nothing is compiled.
        halved: whether each batch is taken in two halves, one after the other, in one process.
        clusters: of the validation split, whose losses are told apart at the end of training; None for none.
    """

    def __init__(
        self,
        model: Model,
        optim: Optim,
        bytes_per_token: Tensor,
        seed: int,
        classes: Tensor | None = None,
        compiled: str | None = None,
        halved: bool = False,
        clusters: Clusters | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        self.seed_value = seed
        self.vocabulary = len(bytes_per_token)
        self.compiled = compiled
        self.halved = halved
        self.compile_seconds = 0.0
        self.notes: list[str] = []
        """What did not go as asked for, for the record."""
        self.clusters = clusters
        count = 0 if clusters is None else clusters.count
        self.validation = TokenStatistics(bytes_per_token, classes=classes, clusters=count)
        self.validated = 0
        """Batches that `validation` holds."""
        self.logits: list[tuple[Tensor, Tensor]] = []
        """Of these batches logits (n, v) and targets (n,), at the end of training and where they are small enough."""
        self.logits_bytes = 0
        """Of the logits of these batches, kept or not."""
        self.losses: list[Tensor] = []
        self.rows: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.largest: list[Tensor] = []
        """Of each step, what its gradient is clipped by, where that is not the norm: its largest absolute entry."""
        self.groups: ParameterGroups | None = None
        self.squares: dict[str, Tensor] = {}
        """Of the last step measured: sums of squares of gradients, weights and updates over `groups`."""
        self.weights_before: list[Tensor] | None = None

    def configure_model(self) -> None:
        """Shares out the model among processes, where the strategy asks for it."""
        shard(self.trainer, self.model)
        self.validation.process_group = data_group(self.trainer)

    def on_fit_start(self) -> None:
        """Compiles the model's blocks, where that is asked for, before any step is timed."""
        if self.compiled is None:
            return
        start, trainer = time.perf_counter(), self.trainer
        if not is_whole(trainer):
            self.notes.append("not compiled: the strategy shards the weights")
            return
        alive()
        reason = compile_blocks(self.model, self.compiled, self._try_out)
        alive()
        self.compile_seconds = time.perf_counter() - start
        self.notes += [] if reason is None else [reason]

    def _try_out(self) -> None:
        """A step that changes nothing."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        batch = next(iter(data.training_batches(0, 1, *rank_and_world_size(self.trainer))))
        batch = halves(batch)[0] if self.halved else batch
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.model.train()
        with without_trace(self.model), stepping(self.trainer), torch.enable_grad():
            torch.autograd.grad(self.loss(placed(self.trainer, batch)), parameters, allow_unused=True)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout of a step does not depend on how the process came to that step, which makes resuming exact.
        seed = derive_seed("batch", self.seed_value, batch_idx, rank_and_world_size(self.trainer)[0])
        torch.default_generator.manual_seed(seed)  # torch.manual_seed costs half a millisecond where CUDA is asleep
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.tokens.append((batch.targets_bt != IGNORED).sum())
        self.rows.append(batch.rows_b)
        if self.halved:
            return later(functools.partial(self._in_halves, batch), self.device)
        loss = self.loss(batch) * self.weight(batch)
        self.losses.append(loss.detach())
        return loss

    def _in_halves(self, batch: Batch, scale: Tensor) -> None:
        """Adds up the gradients of the halves of a batch, of which one at a time is in memory."""
        losses = []
        for half, share in shares(batch):
            with stepping(self.trainer):
                loss = self.loss(half)
            loss = loss * share.to(loss.dtype)
            losses.append(loss.detach())
            torch.autograd.backward(loss * scale)
        self.losses.append(torch.stack(losses).sum())

    def loss(self, batch: Batch) -> Tensor:
        """The objective's mean over the targets of a batch."""
        targets_n = batch.targets_bt.flatten()
        many = len(targets_n) * self.vocabulary >= MANY and is_whole(self.trainer)
        if many and (factors := self.model.hidden_and_weight(*batch.inputs)) is not None:
            return self.optim.objective.of_product(factors[0].flatten(0, 1), factors[1], targets_n)
        return self.optim.objective.loss(self.model(*batch.inputs).flatten(0, 1), targets_n)

    def weight(self, batch: Batch) -> Any:
        """Makes the mean over processes the mean over tokens, where they predict different numbers of them."""
        if rank_and_world_size(self.trainer)[1] == 1:
            return 1.0
        mine: Any = (batch.targets_bt != IGNORED).sum().double()
        return mine / over_processes(self.trainer, mine.clone(), "mean")

    def on_validation_epoch_start(self) -> None:
        self.validation.reset()
        self.validated = self.logits_bytes = 0
        self.logits = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        alive()
        self.validated += 1
        for part in halves(batch) if self.halved else (batch,):
            with as_written(self.model):
                found = self.model(*part.inputs).flatten(0, 1), part.targets_bt.flatten()
            self.validation.update(*found, self._cluster_n(part))
        if self.halved:
            return
        trainer = self.trainer
        if trainer.global_step == trainer.max_steps and trainer.world_size == 1:
            self.logits_bytes += found[0].nbytes
            if self.logits_bytes > KEPT_BYTES:
                self.logits = []
            else:
                self.logits.append(found)

    def _cluster_n(self, batch: Batch) -> Tensor | None:
        """The cluster of each target (n,), at the end of training."""
        if self.clusters is None or self.trainer.global_step != self.trainer.max_steps:
            return None
        return self.clusters.of(batch.rows_b).expand_as(batch.targets_bt).flatten()

    def configure_optimizers(self) -> Any:
        model = self.model
        optimizer, schedule = self.optim.build(
            model.parameters(), self.trainer.max_steps, tables(model), model.map_rate
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Measures the gradients, here unscaled and whole, then clips them by global norm or by value."""
        if not gives_gradients(self.trainer):  # it clips them itself, by norm
            return
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = gradient_norm(parameters)
        self.norms.append(norm)
        if self.is_measured(self.global_step + 1):
            self.groups = self.groups or ParameterGroups(self.model)
            self.squares = {"gradient": self.groups.gradients(), "weight": self.groups.weights()}
            self.weights_before = self.groups.copy_weights()
        if gradient_clip_val and clips_by_value(gradient_clip_algorithm):
            self.largest.append(largest_gradient(parameters))
            clip_by_value(parameters, gradient_clip_val)
        elif gradient_clip_val:
            clip_by_norm(parameters, gradient_clip_val, norm)

    def is_measured(self, step: int) -> bool:
        """Whether the matrices are measured one by one at optimiser step `step`: the first, and each that is logged."""
        trainer: Any = self.trainer
        return step == 1 or step % trainer.log_every_n_steps == 0

    def measure_update(self) -> None:
        """Completes the measurement of a step, once its update is made."""
        if self.groups is not None and self.weights_before is not None:
            self.squares["update"] = self.groups.updates(self.weights_before)
            self.weights_before = None


def numbers(scalars: list[Tensor]) -> list[float]:
    """What tensors of one number hold, fetched at once."""
    return torch.stack(scalars).double().tolist() if scalars else []


def gathered(module: LanguageModel, rows: list[Tensor]) -> list[np.ndarray]:
    """Row numbers of each batch over all processes that share it out, in their global order; batches may differ in
    size."""
    most = torch.tensor(max(map(len, rows)), device=rows[0].device)
    size = int(over_processes(module.trainer, most, "max"))
    padded = torch.stack([torch.nn.functional.pad(rows_b, (0, size - len(rows_b)), value=-1) for rows_b in rows])
    everywhere: Any = module.all_gather(
        padded, group=data_group(module.trainer)
    )  # (batches, b), or (world, batches, b)
    if everywhere.ndim == 3:
        everywhere = everywhere.transpose(0, 1).flatten(1)
    return [rows_b[rows_b >= 0] for rows_b in everywhere.cpu().numpy()]
