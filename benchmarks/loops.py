"""A training loop of PyTorch alone, and the program's own, over the same batches."""

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.peers import Contender, Loss, loss_of_logits
from benchmarks.sizes import Size
from lm.store.store import Store
from lm.training.identified import Cell
from lm.training.optim import decay_groups
from lm.training.process import Execution
from lm.training.train import train

RATE, CLIP = 1e-3, 1.0
CPU = torch.device("cpu")


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
) -> float:
    """Seconds of a step, the mean over the steps of a fresh model: forward, loss, backward, clipping, fused AdamW.

    Batches are gathered as the program gathers them, within the time; nothing is recorded. Compiling falls into the
    first step of the first model.
    """
    opened = cell.open()
    model = contender.make(size, cell.facts.vocabulary).train().to(device)
    optimizer = torch.optim.AdamW(decay_groups(model.parameters()), lr=RATE, weight_decay=0.1, fused=True)
    torch.use_deterministic_algorithms(False)  # a run of ours before it may have asked for that
    called: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
    begun = time.perf_counter()
    for batch in opened.data.training_batches(0, size.steps):
        tokens_bt, targets_bt = (part.to(device, non_blocking=True) for part in (batch.inputs[0], batch.targets_bt))
        loss = loss_in(contender.loss, called, tokens_bt, targets_bt, bfloat)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) / size.steps


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
