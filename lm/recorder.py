"""The callback that turns a training run into a record: learning curve, checkpoints, final evaluation."""

import csv
import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback
from torch import Tensor

from lm.data.batch import Data
from lm.data.order import chain
from lm.metrics.gradients import parameters_by_part
from lm.metrics.tokens import TokenStatistics
from lm.module import LanguageModel
from lm.provenance import peak_memory
from lm.results import to_json, write_atomic

Report = Callable[[int, int, float], None]
"""Told of progress: optimiser step, steps in all, training loss."""


def finite(value: Any) -> Any:
    """`value` with numbers that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return value


class Recorder(Callback):
    """Keeps what a run measured, in memory and in its checkpoints, and leaves `outcome.json` at the end.

    Rows of the learning curve travel in the checkpoint, so that a resumed run ends with the same curve as one never
    stopped. Everything is decided from values that all processes share.

    Args:
        work: the folder of the cell in the making.
        data: for the final evaluation.
        report: told of progress every `log_every_n_steps`.
        checkpoint_seconds: between checkpoints.
    """

    def __init__(self, work: Path, data: Data, report: Report, checkpoint_seconds: float) -> None:
        self.work = work
        self.data = data
        self.report = report
        self.checkpoint_seconds = checkpoint_seconds
        self.rows: dict[int, dict[str, float]] = {}
        self.order = ""
        self.batches = 0
        self.tokens = 0
        self.seconds = {"train": 0.0, "evaluation": 0.0}
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.norm_sum, self.norm_count = 0.0, 0
        self.diverged: dict[str, Any] | None = None
        self.clock = 0.0
        self.checkpoint_due = False
        self.last_checkpoint = 0.0

    # what a checkpoint keeps

    KEPT = ("rows", "order", "batches", "tokens", "seconds", "losses", "norms", "norm_sum", "norm_count")

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.KEPT}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.KEPT:
            setattr(self, name, state_dict[name])

    # training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.clock = self.last_checkpoint = time.monotonic()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = batch_idx + 1
        if done % trainer.accumulate_grad_batches:
            return
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self.drain(trainer, pl_module)
            self.write_row(trainer, pl_module)
            overdue = time.monotonic() - self.last_checkpoint >= self.checkpoint_seconds
            self.checkpoint_due = trainer.strategy.broadcast(overdue)
        # Not where validation follows: Lightning would not run it again after a resume.
        validates = trainer.val_check_batch and done % trainer.val_check_batch == 0
        if (
            self.checkpoint_due
            and not validates
            and not trainer.should_stop
            and trainer.global_step < trainer.max_steps
        ):
            self.drain(trainer, pl_module)
            self._tick("train")
            trainer.save_checkpoint(self.work / "last.ckpt")
            self.clock = self.last_checkpoint = time.monotonic()
            self.checkpoint_due = False

    def drain(self, trainer: Any, module: LanguageModel) -> None:
        """Takes over what the module's steps have measured; ends the run at the first loss that is not finite.

        How often it is called changes nothing: values are kept one by one until a row is written.
        """
        if not module.losses:
            return
        losses = trainer.strategy.reduce(torch.stack(module.losses), reduce_op="mean").double().tolist()
        norms = torch.stack(module.norms).double().tolist() if module.norms else []
        for rows_b in _gathered(module, module.rows):
            self.order = chain(self.order, rows_b)
        self.tokens += int(trainer.strategy.reduce(torch.stack(module.tokens), reduce_op="sum").sum())
        for buffer in (module.losses, module.norms, module.rows, module.tokens):
            buffer.clear()
        if self.diverged is None and not all(map(math.isfinite, losses)):
            bad = next(index for index, loss in enumerate(losses) if not math.isfinite(loss))
            self._diverge((self.batches + bad) // trainer.accumulate_grad_batches + 1, losses[:bad], norms)
            trainer.should_stop = True
        self.batches += len(losses)
        self.losses += losses
        self.norms += norms
        for norm in filter(math.isfinite, norms):
            self.norm_sum += norm
            self.norm_count += 1

    def write_row(self, trainer: Any, module: LanguageModel) -> None:
        """Turns the values kept since the last row into one row of the curve."""
        self._tick("train")
        if not self.losses or self.diverged is not None:
            return
        step, loss = trainer.global_step, sum(self.losses) / len(self.losses)
        self._row(step).update(
            tokens=float(self.tokens),
            train_loss=loss,
            learning_rate=module.optim.lr * module.optim.schedule.factor(step, trainer.max_steps),
            gradient_norm=sum(self.norms) / len(self.norms),
            **{f"gradient_norm/{name}": float(norm) for name, norm in module.part_norms.items()},
        )
        self.losses, self.norms = [], []
        module.part_norms.clear()
        if trainer.is_global_zero:
            self.report(step, trainer.max_steps, loss)

    def _row(self, step: int) -> dict[str, float]:
        return self.rows.setdefault(step, {})

    def _tick(self, kind: str) -> None:
        now = time.monotonic()
        self.seconds[kind] += now - self.clock
        self.clock = now

    def _diverge(self, step: int, losses: list[float], norms: list[float]) -> None:
        """Notes the step whose loss is not finite, and the last values before it that were."""
        last = self.rows[max(self.rows)] if self.rows else {}
        finite_norms = [norm for norm in [*self.norms, *norms] if math.isfinite(norm)]
        self.diverged = {
            "step": step,
            "last_finite": {
                "train_loss": [last.get("train_loss"), *self.losses, *losses][-1],
                "gradient_norm": [last.get("gradient_norm"), *finite_norms][-1],
            },
        }

    # evaluation

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.drain(trainer, pl_module)
        self._tick("train")
        pl_module.validation.reset()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        measured = pl_module.validation.compute()
        row = self._row(trainer.global_step)
        row.update({f"validation_{name}": measured[name] for name in ("nll", "bits_per_byte", "accuracy", "ece")})
        self._tick("evaluation")
        if not math.isfinite(measured["nll"]) and self.diverged is None:
            self._diverge(trainer.global_step, [], [])
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.drain(trainer, pl_module)
        self.write_row(trainer, pl_module)
        measured: dict[str, Any] = {}
        if self.diverged is None:
            measured = self.evaluate(trainer, pl_module)
            if not math.isfinite(measured["nll"]):
                self._diverge(trainer.global_step, [], [])
        trainer.save_checkpoint(self.work / "final.ckpt")
        if trainer.is_global_zero:
            write_atomic(self.work / "history.csv", self.curve())
            write_atomic(self.work / "outcome.json", to_json(finite(self.outcome(trainer, pl_module, measured))))

    @torch.inference_mode()
    def evaluate(self, trainer: Any, module: LanguageModel) -> dict[str, Any]:
        """Every block of the validation split, under the trainer's precision, whatever the number of processes."""
        statistics: TokenStatistics = module.validation
        statistics.reset()
        module.eval()
        for batch in self.data.evaluation_batches("validation", trainer.global_rank, trainer.world_size):
            placed = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
            with trainer.precision_plugin.val_step_context():
                module.validation_step(placed, 0)
        module.train()
        measured = statistics.compute()
        self._tick("evaluation")
        return measured

    # results

    def curve(self) -> str:
        """The learning curve as CSV: one line a step, a column for everything measured at any step."""
        columns = list(dict.fromkeys(name for step in sorted(self.rows) for name in self.rows[step]))
        text = io.StringIO()
        writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
        writer.writeheader()
        for step in sorted(self.rows):
            writer.writerow({"step": step, **self.rows[step]})
        return text.getvalue()

    def outcome(self, trainer: Any, module: LanguageModel, measured: dict[str, Any]) -> dict[str, Any]:
        """The measured part of the record."""
        tokens = self.tokens
        rows = [row for _, row in sorted(self.rows.items()) if "train_loss" in row]
        if self.diverged is None:
            metrics = {name: measured[name] for name in ("nll", "perplexity", "bits_per_byte", "accuracy", "ece")}
            metrics["train_loss"] = rows[-1]["train_loss"] if rows else None
            metrics["gradient_norm"] = self.norm_sum / max(1, self.norm_count)
        else:
            metrics = {}
        return {
            "status": "ok" if self.diverged is None else "diverged",
            "error": None if self.diverged is None else f"loss not finite at step {self.diverged['step']}",
            "diverged": self.diverged,
            "steps": trainer.global_step,
            "metrics": metrics,
            "evaluated": {
                "split": "validation",
                "tokens": measured.get("evaluated_tokens"),
            },
            "reliability": measured.get("reliability"),
            "cost": {
                "parameters": sum(p.numel() for part in parameters_by_part(module.model).values() for p in part),
                "tokens": tokens,
                "train_seconds": self.seconds["train"],
                "evaluation_seconds": self.seconds["evaluation"],
                "tokens_per_second": tokens / self.seconds["train"] if self.seconds["train"] else None,
                "peak_memory": peak_memory(),
                "world_size": trainer.world_size,
            },
            "pairing": {"order": self.order, "batches": self.batches},
        }


def _gathered(module: LanguageModel, rows: list[Tensor]) -> list[np.ndarray]:
    """Row numbers of each batch over all processes, in their global order; batches may differ in size."""
    most = torch.tensor(max(map(len, rows)), device=rows[0].device)
    size = int(module.trainer.strategy.reduce(most, reduce_op="max"))
    padded = torch.stack([torch.nn.functional.pad(rows_b, (0, size - len(rows_b)), value=-1) for rows_b in rows])
    gathered: Any = module.all_gather(padded)  # (batches, b), or (world, batches, b)
    if gathered.ndim == 3:
        gathered = gathered.transpose(0, 1).flatten(1)
    return [rows_b[rows_b >= 0] for rows_b in gathered.cpu().numpy()]
