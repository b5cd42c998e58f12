"""The callback that turns a training run into a record: learning curve, checkpoints, final evaluation."""

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from lm.data.batch import Data, share_of
from lm.data.order import chain
from lm.metrics.gradients import parameters_by_part
from lm.metrics.tokens import TokenStatistics
from lm.store.files import curve_csv, finite, save_checkpoint, to_json, write_atomic
from lm.store.formats import OUTCOME
from lm.store.metrics import VALIDATION_METRICS, metrics_of
from lm.store.validation import curve_checksum
from lm.training.adapter import as_the_first_says, evaluating, gives_gradients, over_processes, placed
from lm.training.by_document import by_document
from lm.training.life import alive
from lm.training.module import LanguageModel, gathered, numbers
from lm.training.observer import Meter, Observer
from lm.training.sharded import unsharded

Report = Callable[[int, int, float], None]
"""Told of progress: optimiser step, steps in all, training loss."""

Judge = Callable[[int, dict[str, float]], bool]
"""Told what a validation in training measured at an optimiser step; says whether the run goes on."""


def go_on(step: int, measured: dict[str, float]) -> bool:
    """The judge of a run that is trained to its end."""
    return True


class Recorder(Callback):
    """Keeps what a run measured, in memory and in its checkpoints, and leaves `outcome.json` at the end.

    Rows of the learning curve travel in the checkpoint, so that a resumed run ends with the same curve as one never
    stopped. Everything is decided from values that all processes share.

    Args:
        work: the folder of the cell in the making.
        data: for the final evaluation.
        report: told of progress every `log_every_n_steps`.
        checkpoint_seconds: between checkpoints.
        judge: asked after each validation; a run that it stops leaves nothing behind.
    """

    def __init__(self, work: Path, data: Data, report: Report, checkpoint_seconds: float, judge: Judge = go_on) -> None:
        self.work = work
        self.data = data
        self.report = report
        self.checkpoint_seconds = checkpoint_seconds
        self.judge = judge
        self.pruned = False
        self.observer = Observer(data)
        self.meter = Meter()
        self.rows: dict[int, dict[str, float]] = {}
        self.order = ""
        self.batches = 0
        self.tokens = 0
        self.seconds = {"train": 0.0, "evaluation": 0.0}
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.norm_sum, self.norm_count, self.clipped = 0.0, 0, 0
        self.diverged: dict[str, Any] | None = None
        self.clock = 0.0
        self.checkpoint_due = False
        self.last_checkpoint = 0.0
        self.looked: tuple[int, dict[str, float]] = (-1, {})
        """The optimiser step of the last validation, and what was seen inside the model then."""

    # what a checkpoint keeps

    KEPT = ("rows", "order", "batches", "tokens", "seconds", "losses", "norms", "norm_sum", "norm_count", "clipped")

    def state_dict(self) -> dict[str, Any]:
        return {
            place: {name: getattr(holder, name) for name in holder.KEPT} for place, holder in self._holders().items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for place, holder in self._holders().items():
            for name, value in state_dict[place].items():
                setattr(holder, name, value)

    def _holders(self) -> dict[str, Any]:
        return {"recorder": self, "observer": self.observer, "meter": self.meter}

    # training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == 0:
            self.rows.setdefault(0, {}).update(self.observer.look(trainer, pl_module))
            pl_module.train()
        self.meter.start(trainer, pl_module)
        self.clock = self.last_checkpoint = time.monotonic()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        alive()
        done = batch_idx + 1
        if done % trainer.accumulate_grad_batches:
            return
        self.meter.step(time.perf_counter())
        if pl_module.is_measured(trainer.global_step):
            pl_module.measure_update()
            self.drain(trainer, pl_module)
            self.write_row(trainer, pl_module)
            overdue = time.monotonic() - self.last_checkpoint >= self.checkpoint_seconds
            self.checkpoint_due = as_the_first_says(trainer, overdue) and gives_gradients(trainer)
        # Not where validation follows: Lightning would not run it again after a resume.
        validates = trainer.val_check_batch and done % trainer.val_check_batch == 0
        ends = trainer.should_stop or trainer.global_step >= trainer.max_steps
        if self.checkpoint_due and not validates and not ends:
            self.drain(trainer, pl_module)
            self._tick("train")
            self.meter.take(trainer)
            self.meter.pause()
            save_checkpoint(trainer, self.work / "last.ckpt")
            self.clock = self.last_checkpoint = time.monotonic()
            self.checkpoint_due = False

    def drain(self, trainer: Any, module: LanguageModel) -> None:
        """Takes over what the module's steps have measured; ends the run at the first loss that is not finite.

        How often it is called changes nothing: values are kept one by one until a row is written.
        """
        if not module.losses:
            return
        losses = over_processes(trainer, torch.stack(module.losses), "mean").double().tolist()
        norms = numbers(module.norms)
        self._count_clipped(norms, numbers(module.largest) or norms, trainer.gradient_clip_val or math.inf)
        for rows_b in gathered(module, module.rows):
            self.order = chain(self.order, rows_b)
        self.tokens += int(over_processes(trainer, torch.stack(module.tokens), "sum").sum())
        for buffer in (module.losses, module.norms, module.largest, module.rows, module.tokens):
            buffer.clear()
        if self.diverged is None and not all(map(math.isfinite, losses)):
            bad = next(index for index, loss in enumerate(losses) if not math.isfinite(loss))
            self._diverge((self.batches + bad) // trainer.accumulate_grad_batches + 1, losses[:bad], norms)
            trainer.should_stop = True
        self.batches += len(losses)
        self.losses += losses
        self.norms += norms

    def _count_clipped(self, norms: list[float], compared: list[float], limit: float) -> None:
        """Adds up the norms of steps, and how often what is compared with the limit of clipping was beyond it."""
        for norm, found in zip(norms, compared, strict=True):
            if math.isfinite(norm):
                self.norm_sum += norm
                self.norm_count += 1
                self.clipped += found > limit

    def write_row(self, trainer: Any, module: LanguageModel) -> None:
        """Turns the values kept since the last row into one row of the curve."""
        self._tick("train")
        if not self.losses or self.diverged is not None:
            return
        step, loss = trainer.global_step, sum(self.losses) / len(self.losses)
        self.rows.setdefault(step, {}).update(
            tokens=float(self.tokens),
            train_loss=loss,
            learning_rate=module.optim.lr * module.optim.schedule.factor(step, trainer.max_steps),
            **({"gradient_norm": sum(self.norms) / len(self.norms)} if gives_gradients(trainer) else {}),
            **self.observer.matrices(trainer, module),
        )
        self.losses, self.norms = [], []
        if trainer.is_global_zero:
            self.report(step, trainer.max_steps, loss)

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
        self.meter.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        measured = pl_module.validation.compute()
        row = self.rows.setdefault(trainer.global_step, {})
        row.update({f"validation_{name}": measured[name] for name in VALIDATION_METRICS})
        if math.isfinite(measured["nll"]):
            self.looked = trainer.global_step, self.observer.look(trainer, pl_module)
            row.update(self.looked[1])
            row.update(self.observer.look_at_noise(trainer, pl_module))
        self._tick("evaluation")
        if not math.isfinite(measured["nll"]) and self.diverged is None:
            self._diverge(trainer.global_step, [], [])
            trainer.should_stop = True
        if self.diverged is None and trainer.global_step < trainer.max_steps:
            self._ask(trainer, {name: measured[name] for name in VALIDATION_METRICS})

    def _ask(self, trainer: Any, measured: dict[str, float]) -> None:
        """The first process asks whether to go on; all obey."""
        goes_on = self.judge(trainer.global_step, measured) if trainer.is_global_zero else True
        if not as_the_first_says(trainer, goes_on):
            self.pruned = trainer.should_stop = True
            if trainer.is_global_zero:  # told by a file, as this may be a process forked for the training
                write_atomic(self.work / "pruned", "")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.pruned:
            return
        self.drain(trainer, pl_module)
        self.write_row(trainer, pl_module)
        measured: dict[str, Any] = {}
        self.meter.take(trainer)
        if self.diverged is None:
            begun = self.looked[0] == trainer.global_step
            measured = self.evaluate(trainer, pl_module, begun)
            measured |= self.looked[1] if begun else self.observer.look(trainer, pl_module)
            if not math.isfinite(measured["nll"]):
                self._diverge(trainer.global_step, [], [])
        with unsharded(trainer):
            save_checkpoint(trainer, self.work / "final.ckpt")
        if trainer.is_global_zero:
            write_atomic(self.work / "history.csv", curve_csv(self.rows))
            outcome = OUTCOME.stamped(self.outcome(trainer, pl_module, measured))
            write_atomic(self.work / "outcome.json", to_json(finite(outcome)))

    @torch.inference_mode()
    def evaluate(self, trainer: Any, module: LanguageModel, begun: bool) -> dict[str, Any]:
        """Every block of the validation split, under the trainer's precision, whatever the number of processes; those
        of a validation that has `begun` with these weights are not read again."""
        statistics: TokenStatistics = module.validation
        if not begun:
            module.on_validation_epoch_start()
        module.eval()
        batches = self.data.evaluation_batches("validation", *share_of(trainer))
        for batch in itertools.islice(batches, module.validated, None):
            there = placed(trainer, batch)
            with evaluating(trainer):
                module.validation_step(there, 0)
        module.train()
        measured = statistics.compute()
        self._tick("evaluation")
        return measured

    # results

    def outcome(self, trainer: Any, module: LanguageModel, measured: dict[str, Any]) -> dict[str, Any]:
        """The measured part of the record."""
        rows = [row for _, row in sorted(self.rows.items()) if "train_loss" in row]
        metrics, strange = metrics_of(measured if self.diverged is None else {})
        if self.diverged is None:
            metrics["train_loss"] = rows[-1]["train_loss"] if rows else None
            if gives_gradients(trainer):
                metrics["gradient_norm"] = self.norm_sum / max(1, self.norm_count)
                clipped_share = self.clipped / max(1, self.norm_count)
                metrics["clipped_share"] = clipped_share if trainer.gradient_clip_val else None
            metrics |= self.observer.metrics()
            if (best := self.data.entropy_per_token()) is not None:
                metrics["excess_nll"] = measured["nll"] - best
        return {
            "status": "ok" if self.diverged is None else "diverged",
            "error": None if self.diverged is None else f"loss not finite at step {self.diverged['step']}",
            "diverged": self.diverged,
            "steps": trainer.global_step,
            "metrics": metrics,
            "evaluated": {"split": "validation", "tokens": measured.get("evaluated_tokens")},
            "reliability": measured.get("reliability"),
            "initial": self.observer.initial,
            "final": self.observer.final,
            "flags": self.observer.flags + module.notes + strange,
            "ignores_gradient_scale": module.optim.ignores_gradient_scale(),
            "cost": {
                "parameters": sum(p.numel() for part in parameters_by_part(module.model).values() for p in part),
                "tokens": self.tokens,
                "train_seconds": self.seconds["train"],
                "evaluation_seconds": self.seconds["evaluation"],
                "compile_seconds": module.compile_seconds,
                **self.meter.costs(module, self.data.context, self.tokens, self.seconds["train"]),
            },
            "pairing": {"order": self.order, "batches": self.batches},
            "curve": curve_checksum(curve_csv(self.rows)),
            **by_document(self.work, module.clusters, measured, "nll"),
        }
