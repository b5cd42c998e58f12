"""A training loop of PyTorch alone, and the program's own, over the same batches."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn

from benchmarks.peers import Contender, Loss, loss_of_logits
from benchmarks.sizes import Size
from lm.config.tree import override
from lm.store.store import Store
from lm.training.cell import check
from lm.training.identified import Cell
from lm.training.optim import decay_groups
from lm.training.process import Execution, keep_freed_memory
from lm.training.train import train

RATE, CLIP = 1e-3, 1.0
CPU = torch.device("cpu")
SKIPPED = 10
"""Steps that `steady` leaves out, as many as from one logged step to the next: of 21 or 31 it times 10 or 20."""


def ours(cell: Cell) -> Contender:
    """Our own model as a contender."""
    return Contender(lambda size, vocabulary: cell.open().model(), loss_of_logits, "tied")


def bare(
    contender: Contender,
    size: Size,
    cell: Cell,
    bfloat: bool = False,
    device: torch.device = CPU,
    compiled: bool = False,
    skipped: int = 0,
) -> float:
    """Seconds of a step, the mean over those of a fresh model: forward, loss, backward, clipping, fused AdamW.

    Batches are gathered as the program gathers them, within the time; nothing is recorded. The first `skipped` steps
    and then the last do not count, as in `steady`. Compiling falls into the first step of the first model. The process
    keeps freed memory as that of `lm fit` does, which would otherwise do it for the later ones of a run alone.
    """
    keep_freed_memory()
    opened = cell.open()
    model = contender.make(size, cell.facts.vocabulary).train().to(device)
    optimizer = torch.optim.AdamW(decay_groups(model.parameters()), lr=RATE, weight_decay=0.1, fused=True)
    torch.use_deterministic_algorithms(False)  # a run of ours before it may have asked for that
    called: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
    begun, last = time.perf_counter(), size.steps - (skipped > 0)
    for step, batch in enumerate(opened.data.training_batches(0, last)):
        if skipped and step == skipped:
            begun = _after_all(device)
        parts = [batch.inputs[0], batch.targets_bt]
        if device.type == "cuda":
            parts = [part.pin_memory() for part in parts]  # as for `lm fit`
        tokens_bt, targets_bt = (part.to(device, non_blocking=True) for part in parts)
        loss = loss_in(contender.loss, called, tokens_bt, targets_bt, bfloat)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return (_after_all(device) - begun) / (last - skipped)


def loss_in(
    loss: Loss, model: nn.Module, tokens_bt: torch.Tensor, targets_bt: torch.Tensor, bfloat: bool
) -> torch.Tensor:
    """The loss in float32, or under autocast to bfloat16."""
    with torch.autocast(tokens_bt.device.type, dtype=torch.bfloat16, enabled=bfloat):
        return loss(model, tokens_bt, targets_bt)


def fitted(cell: Cell, threads: int) -> float:
    """Seconds of a step in `lm fit`, as the run's record has them: all but evaluation and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        train(cell, store, lambda *_: None, Execution(threads=threads))
        record = store.record(cell.id)
        seconds = record["cost"].get("train_seconds")
        if seconds is None:
            raise RuntimeError(f"a run of the benchmark did not end well: {record['error']}")
        return float(seconds) / int(cell.config["trainer"]["max_steps"])


class SteadySteps(Callback):
    """Times steps of a run from step SKIPPED to the one before the last, when the device has done all of each."""

    begun, seconds = 0.0, 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start the clock, or stop it."""
        if batch_idx == SKIPPED:
            SteadySteps.begun = _after_all(pl_module.device)
        elif batch_idx == trainer.max_steps - 1:
            SteadySteps.seconds = (_after_all(pl_module.device) - SteadySteps.begun) / (batch_idx - SKIPPED)


def steady(cell: Cell, threads: int) -> float:
    """Seconds of a step in `lm fit` once it runs: without the first SKIPPED steps, in which a device wakes up."""
    path = f"{SteadySteps.__module__}.{SteadySteps.__qualname__}"
    fitted(check(override(cell.config, {"trainer.callbacks": [path]})), threads)
    return SteadySteps.seconds


def _after_all(device: torch.device) -> float:
    """The time when a device has done everything that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
