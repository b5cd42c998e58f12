"""The callback that turns a training run into a record: learning curve, checkpoints, final evaluation, costs."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from lm.config.tree import InputError
from lm.data import IGNORED
from lm.data.batch import Batch, Clusters, Data, nll_by_corpus, rank_and_world_size
from lm.data.order import update_order_hash
from lm.metrics.cost import Durations, Energy, matmul_peak, utilisation
from lm.metrics.gradients import measure_noise, parameters_by_part
from lm.metrics.probe import first_rows, probe
from lm.metrics.tokens import TokenStatistics
from lm.model.flops import flops_per_token
from lm.store.documents import KEPT, described, packed
from lm.store.files import curve_csv, finite, save_checkpoint, to_json, write_atomic
from lm.store.formats import OUTCOME
from lm.store.metrics import EXTRA, VALIDATION_METRICS, metrics_of
from lm.store.validation import curve_checksum
from lm.training.adapter import (
    broadcast_from_rank0,
    data_group,
    has_full_parameters,
    reduce_over_processes,
    tensor_parallel_size,
    to_device,
)
from lm.training.averaging import WeightAverage
from lm.training.branch import leave_branch
from lm.training.callbacks import PATH as CALLBACKS
from lm.training.callbacks import STOPS
from lm.training.module import LanguageModel, gather_rows, to_floats, uncompiled
from lm.training.process import beat
from lm.training.provenance import peak_memory

Report = Callable[[int, int, float], None]  # receives progress: optimiser step, steps in all, training loss

# receives the optimiser step and the metrics of a validation; returns True to continue the run
PruningCallback = Callable[[int, dict[str, float]], bool]

NOISE_ROWS, NOISE_PIECES = 16, 4


class Probe:
    """Measures inside the model on batches that are the same in every process: of validation, of training for noise."""

    STATE_KEYS = ("initial", "final", "flags", "trace", "signal", "update_ratio")

    def __init__(self, data: Data) -> None:
        self.data = data
        self.initial, self.final, self.flags = dict[str, Any](), dict[str, Any](), list[str]()
        self.trace, self.signal = 0.0, 0.0
        self.update_ratio: float | None = None

    def measure(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Measure the model as it is now; return the numbers for the learning curve."""
        batch = to_device(trainer, next(iter(self.data.evaluation_batches("validation"))))
        with trainer.precision_plugin.val_step_context(), uncompiled(module.model):
            inside = probe(module.model, first_rows(batch))
        if tensor_parallel_size(trainer) > 1:  # the heads are those of all processes
            strategy, group = trainer.strategy, trainer.strategy.device_mesh["tensor_parallel"].get_group()
            gather = functools.partial(strategy.all_gather, group=group)
            inside = inside.of_heads(lambda x_nlh: torch.cat(list(gather(x_nlh.to(strategy.root_device))), dim=-1))
        self.flags += [f"step {trainer.global_step}: {flag}" for flag in inside.flags()]
        if trainer.global_step == 0:
            self.initial = {**self.initial, **inside.measured()}
        self.final = {**self.final, **inside.measured()}
        return inside.headline()

    def measure_gradient_noise(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Measure trace and signal of the gradient noise; nothing for too few rows, or divided weights."""
        batch = to_device(trainer, first_rows(next(iter(self.data.training_batches(0, 1))), NOISE_ROWS))
        rows = len(batch.rows_b) // NOISE_PIECES
        if rows < 1 or not has_full_parameters(trainer):
            return {}
        pieces = [first_rows(batch, rows, start) for start in range(0, rows * NOISE_PIECES, rows)]
        tokens = [int((piece.targets_bt != IGNORED).sum()) for piece in pieces]
        if not all(tokens):
            return {}
        parameters = [p for p in module.model.parameters() if p.requires_grad]

        def loss(piece: Batch) -> torch.Tensor:
            with trainer.precision_plugin.train_step_context(), uncompiled(module.model):
                return module.loss(piece)

        training = module.model.training
        module.model.eval()
        with torch.inference_mode(False), torch.enable_grad():
            trace, signal = measure_noise(parameters, [functools.partial(loss, piece) for piece in pieces], tokens)
        module.model.train(training)
        self.trace, self.signal = self.trace + trace, self.signal + signal
        return {"noise_trace": trace, "noise_signal": signal}

    def matrices(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Return norms of the step just measured, by part and kind, for the learning curve."""
        self.update_ratio = None
        if module.groups is None or not module.squares:
            return {}
        groups, squares = module.groups, {name: square.cpu() for name, square in module.squares.items()}
        module.squares = {}
        by_layer = {"gradient_norm": groups.by_layer(squares["gradient"])}
        if trainer.global_step == 1:
            self.initial |= by_layer
        self.final |= by_layer
        row = {f"gradient_norm/{name}": norm for name, norm in groups.summed(squares["gradient"]).items()}
        if "update" in squares:
            ratio = float((squares["update"].sum() / squares["weight"].sum()).sqrt())
            updates, weights = groups.summed(squares["update"]), groups.summed(squares["weight"])
            kinds = dict.fromkeys(kind for _, kind in groups.names)
            row |= {f"update_ratio/{kind}": updates[kind] / weights[kind] for kind in kinds if weights[kind]}
            row["update_ratio"] = self.update_ratio = ratio
        return row

    def metrics(self) -> dict[str, float | None]:
        """Return metrics of all of training; the noise scale, in tokens, is mean trace over mean signal."""
        noise_scale = self.trace / self.signal if self.signal > 0 and self.trace > 0 else None
        return {"update_ratio": self.update_ratio, "noise_scale": noise_scale}


class CostMeter:
    """Time, energy and memory of training; a step lasts from the end of the one before, with the work in between."""

    STATE_KEYS = ("counts", "waited", "joules")

    def __init__(self) -> None:
        self.durations = Durations()
        self.counts, self.waited = self.durations.counts, 0.0
        self.joules: float | None = None
        self.energy: Energy | None = None
        self.matmul_peak: float | None = None
        self.last_step: float | None = None

    def start(self, trainer: Any, module: LanguageModel) -> None:
        """Measure the machine, before the first step."""
        self.durations.counts = self.counts  # of the checkpoint, if there is one
        device = trainer.strategy.root_device
        bfloat = str(trainer.precision).startswith("bf16")
        dtype = torch.bfloat16 if bfloat else next(module.parameters()).dtype
        self.matmul_peak = matmul_peak(device, dtype, torch.get_num_threads())
        self.energy = Energy(device)

    def step(self, now: float) -> None:
        """Record the end of a step at time `now`, in seconds."""
        if self.last_step is not None:
            self.durations.add(now - self.last_step)
        self.last_step = now

    def pause(self) -> None:
        """Leave the time until the next step out of training."""
        self.last_step = None

    def sync(self, trainer: Any) -> None:
        """Add the waiting time and the energy since the last call."""
        batches = trainer.train_dataloader
        self.waited, batches.seconds = self.waited + batches.seconds, 0.0
        if self.energy and (used := self.energy.joules()) is not None:
            self.joules = (self.joules or 0.0) + used

    def costs(self, module: LanguageModel, context: int, tokens: int, seconds: float) -> dict[str, float | None]:
        """Return the costs for the record, with `tokens` read in `seconds` of training."""
        world = module.trainer.world_size
        try:
            flops = flops_per_token(module.model, context).total
        except InputError:  # parts that nobody has counted
            flops = None
        speed = tokens / seconds if seconds else None
        return {
            "tokens_per_second": speed,
            "step_time_median": self.durations.quantile(0.5),
            "step_time_p95": self.durations.quantile(0.95),
            "flops_per_token": flops,
            "mfu": utilisation(speed, flops, [self.matmul_peak or 0.0] * world),
            "matmul_peak": self.matmul_peak,
            "data_wait": self.waited / seconds if seconds else None,
            "energy": self.joules,
            "peak_memory": peak_memory(),
            "world_size": world,
        }


class Recorder(Callback):
    """Collects what a run measures, also in its checkpoints, and writes `outcome.json` at the end.

    A checkpoint holds the rows of the curve, for a resumed run. Every decision uses values that all processes share.
    """

    def __init__(
        self,
        work: Path,  # the cell's work folder
        data: Data,  # for the final evaluation
        report: Report = lambda *_: None,  # receives progress every `log_every_n_steps`
        checkpoint_seconds: float = math.inf,  # seconds between checkpoints
        # called after each validation; a run that it prunes leaves nothing behind
        should_continue: PruningCallback = lambda *_: True,
        branches: Mapping[int, Sequence[str]] | None = None,  # the cells that begin from checkpoints of these steps
    ) -> None:
        self.work, self.data, self.report = work, data, report
        self.checkpoint_seconds, self.should_continue = checkpoint_seconds, should_continue
        self.branches = branches or {}
        self.probe, self.meter = Probe(data), CostMeter()
        self.rows: dict[int, dict[str, float]] = {}
        self.order, self.batches, self.tokens = "", 0, 0
        self.seconds = {"train": 0.0, "evaluation": 0.0}
        self.losses, self.norms, self.extras = list[float](), list[float](), dict[str, list[float]]()
        self.norm_sum, self.norm_count, self.clipped = 0.0, 0, 0
        self.diverged: dict[str, Any] | None = None
        self.pruned = self.checkpoint_due = False
        self.clock = self.last_checkpoint = 0.0
        self.last_probe: tuple[int, dict[str, float]] = (-1, {})  # the step of the last validation, its measurements
        self.stateful: dict[str, Any] = {"recorder": self, "observer": self.probe, "meter": self.meter}
        self.average: WeightAverage | None = None
        self.on_row: Callable[[], None] = lambda: None  # called at each logged step, for loggers

    STATE_KEYS = (
        "rows", "order", "batches", "tokens", "seconds", "losses", "norms", "norm_sum", "norm_count", "clipped",
        "extras",
    )  # fmt: skip

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Add the average of the weights, if there is one, to what checkpoints hold."""
        if trainer.average_decay is not None:
            self.average = self.stateful["average"] = WeightAverage(trainer.average_decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds."""
        return {key: {name: getattr(part, name) for name in part.STATE_KEYS} for key, part in self.stateful.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        for key, part in self.stateful.items():
            for name, value in state_dict[key].items():
                setattr(part, name, value)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure the initial model and start the clocks."""
        if trainer.global_step == 0:
            self.rows.setdefault(0, {}).update(self.probe.measure(trainer, pl_module))
            pl_module.train()
        self.meter.start(trainer, pl_module)
        self.clock = self.last_checkpoint = time.monotonic()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record a step that is logged, and write a checkpoint when it is due."""
        beat()
        self.refuse_stop(trainer)
        done = batch_idx + 1
        if done % trainer.accumulate_grad_batches:
            return
        if self.average is not None:
            self.average.update(pl_module.model)
        self.meter.step(time.perf_counter())
        if pl_module.is_measured(trainer.global_step):
            pl_module.measure_update()
            self.drain(trainer, pl_module)
            self.write_row(trainer, pl_module)
            self.on_row()
            overdue = time.monotonic() - self.last_checkpoint >= self.checkpoint_seconds
            self.checkpoint_due = broadcast_from_rank0(trainer, overdue)
        # Not where validation follows: Lightning would not run it again after a resume.
        validates = trainer.val_check_batch and done % trainer.val_check_batch == 0
        ends = trainer.should_stop or trainer.global_step >= trainer.max_steps
        # A run that diverged ends at its next row, whenever checkpoints are due.
        branches = self.branches.get(trainer.global_step, ())
        if (self.checkpoint_due or branches) and not validates and not ends and is_finite_so_far(trainer, pl_module):
            self.drain(trainer, pl_module)
            self._add_elapsed("train")
            self._save(trainer, branches)

    def _save(self, trainer: Any, branches: Sequence[str] = ()) -> None:
        """Write a checkpoint, and one for each cell that begins from it; their time counts for nothing."""
        self.meter.sync(trainer)
        self.meter.pause()
        for cell in branches:
            leave_branch(trainer, self.work, cell)
        save_checkpoint(trainer, self.work / "last.ckpt")
        self.clock = self.last_checkpoint = time.monotonic()
        self.checkpoint_due = False

    def refuse_stop(self, trainer: Any) -> None:
        """Raise ValueError if a callback of the configuration asked the trainer to stop."""
        if trainer.should_stop and self.diverged is None and not self.pruned:
            raise ValueError(f"{CALLBACKS}: a callback set trainer.should_stop, and {STOPS}")

    def drain(self, trainer: Any, module: LanguageModel) -> None:
        """Move the module's measurements here one by one; end the run at the first loss that is not finite."""
        if not module.losses:
            return
        losses = reduce_over_processes(trainer, torch.stack(module.losses), "mean").double().tolist()
        extras = fetch_extras(trainer, module.extras)
        norms = to_floats(module.norms)
        limit = trainer.gradient_clip_val or math.inf
        for norm, compared in zip(norms, to_floats(module.largest) or norms, strict=True):
            if math.isfinite(norm):
                self.norm_sum += norm
                self.norm_count += 1
                self.clipped += compared > limit
        for rows_b in gather_rows(module, module.rows):
            self.order = update_order_hash(self.order, rows_b)
        self.tokens += int(reduce_over_processes(trainer, torch.stack(module.tokens), "sum").sum())
        for buffer in (module.losses, module.extras, module.norms, module.largest, module.rows, module.tokens):
            buffer.clear()
        minimised = [(loss, *extra.values()) for loss, extra in zip(losses, extras, strict=True)]
        bad = next((index for index, values in enumerate(minimised) if not all(map(math.isfinite, values))), None)
        if self.diverged is None and bad is not None:
            self._diverge((self.batches + bad) // trainer.accumulate_grad_batches + 1, losses[:bad], norms)
            trainer.should_stop = True
        self.batches += len(losses)
        self.losses += losses
        for extra in extras:
            for name, value in extra.items():
                self.extras.setdefault(EXTRA + name, []).append(value)
        self.norms += norms

    def write_row(self, trainer: Any, module: LanguageModel) -> None:
        """Turn the values buffered since the last row into one row of the curve."""
        self._add_elapsed("train")
        if not self.losses or self.diverged is not None:
            return
        step, loss = trainer.global_step, sum(self.losses) / len(self.losses)
        self.rows.setdefault(step, {}).update(
            tokens=float(self.tokens),
            train_loss=loss,
            learning_rate=module.optim.lr * module.optim.schedule.factor(step, trainer.max_steps),
            gradient_norm=sum(self.norms) / len(self.norms),
            **{name: sum(values) / len(values) for name, values in self.extras.items()},
            **self.probe.matrices(trainer, module),
        )
        self.losses, self.norms, self.extras = [], [], {}
        if trainer.is_global_zero:
            self.report(step, trainer.max_steps, loss)

    def _add_elapsed(self, kind: str) -> None:
        """Add the time since the last call to that of training or of evaluation."""
        now = time.monotonic()
        self.seconds[kind] += now - self.clock
        self.clock = now

    def _diverge(self, step: int, losses: list[float], norms: list[float]) -> None:
        """Record the step whose loss is not finite, and the last finite values before it."""
        last = self.rows[max(self.rows)] if self.rows else {}
        finite_norms = [norm for norm in [*self.norms, *norms] if math.isfinite(norm)]
        last_loss = [last.get("train_loss"), *self.losses, *losses][-1]
        last_norm = [last.get("gradient_norm"), *finite_norms][-1]
        self.diverged = {"step": step, "last_finite": {"train_loss": last_loss, "gradient_norm": last_norm}}

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the losses of the steps so far and pause the clock of training."""
        self.drain(trainer, pl_module)
        self._add_elapsed("train")
        self.meter.pause()
        pl_module.switch_weights(training=False)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the validation's metrics and ask whether to go on."""
        measured = pl_module.validation.compute()
        measured |= self.evaluate_average(trainer, pl_module, pl_module.num_validated_batches)
        is_finite = math.isfinite(measured["nll"])
        row = self.rows.setdefault(trainer.global_step, {})
        metrics = {name: measured[name] for name in VALIDATION_METRICS if name in measured}
        row.update({f"validation_{name}": value for name, value in metrics.items()})
        if is_finite:
            self.last_probe = trainer.global_step, self.probe.measure(trainer, pl_module)
            row.update(self.last_probe[1])
            row.update(self.probe.measure_gradient_noise(trainer, pl_module))
        self._add_elapsed("evaluation")
        if not is_finite and self.diverged is None:
            self._diverge(trainer.global_step, [], [])
            trainer.should_stop = True
        if self.diverged is None and trainer.global_step < trainer.max_steps:
            goes_on = self.should_continue(trainer.global_step, metrics) if trainer.is_global_zero else True
            if not broadcast_from_rank0(trainer, goes_on):
                self.pruned = trainer.should_stop = True
                if trainer.is_global_zero:  # by a file, as this may be a process forked for the training
                    write_atomic(self.work / "pruned", "")
        pl_module.switch_weights(training=True)
        goes_on = not trainer.should_stop and trainer.global_step < trainer.max_steps
        if self.checkpoint_due and goes_on and trainer.accumulate_grad_batches % trainer.val_check_batch == 0:
            self._save(trainer)  # each step ends in a validation

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the trained model and write the last row."""
        self.refuse_stop(trainer)
        if self.pruned:
            return
        self.drain(trainer, pl_module)
        self.write_row(trainer, pl_module)
        measured: dict[str, Any] = {}
        pl_module.switch_weights(training=False)
        self.meter.sync(trainer)
        if self.diverged is None:
            reuse_validation = self.last_probe[0] == trainer.global_step
            measured = self.evaluate(trainer, pl_module, reuse_validation)
            measured |= self.evaluate_average(trainer, pl_module)
            measured |= self.last_probe[1] if reuse_validation else self.probe.measure(trainer, pl_module)
            if not math.isfinite(measured["nll"]):
                self._diverge(trainer.global_step, [], [])
        save_checkpoint(trainer, self.work / "final.ckpt")
        if trainer.is_global_zero:
            write_atomic(self.work / "history.csv", curve_csv(self.rows))
            outcome = OUTCOME.stamped(self.outcome(trainer, pl_module, measured))
            write_atomic(self.work / "outcome.json", to_json(finite(outcome)))

    @torch.inference_mode()
    def evaluate(self, trainer: Any, module: LanguageModel, reuse_validation: bool) -> dict[str, Any]:
        """Evaluate the validation split, but for blocks that the last validation read with these weights."""
        if not reuse_validation:
            module.on_validation_epoch_start()
        module.eval()
        with trainer.precision_plugin.val_step_context():
            for batch in self.validation_batches(trainer, module.num_validated_batches):
                module.validation_step(batch, 0)
        module.train()
        measured: dict[str, Any] = module.validation.compute()
        if module.clusters is not None and "clusters" in measured:
            measured |= nll_by_corpus(module.clusters, *measured["clusters"])
        self._add_elapsed("evaluation")
        return measured

    def evaluate_average(self, trainer: Any, module: LanguageModel, batches: int | None = None) -> dict[str, float]:
        """Return the NLL of the averaged weights, if any, on the first `batches` of validation, or on all."""
        if self.average is None or not self.average.updates:
            return {}
        statistics = TokenStatistics(module.validation.bytes_table).to(module.device)
        statistics.process_group = data_group(trainer)
        training = module.training
        module.eval()
        context = trainer.precision_plugin.val_step_context
        with torch.inference_mode(False), self.average.applied(module.model), torch.inference_mode(), context():
            for batch in self.validation_batches(trainer, 0, batches):
                module.measure(batch, statistics)
        module.train(training)
        self._add_elapsed("evaluation")
        return {"nll_ema": statistics.compute()["nll"]}

    def validation_batches(self, trainer: Any, start: int, stop: int | None = None) -> Iterator[Batch]:
        """Yield the batches of validation of this process from `start` on, on its device."""
        batches = self.data.evaluation_batches("validation", *rank_and_world_size(trainer))
        return (to_device(trainer, batch) for batch in itertools.islice(batches, start, stop))

    def outcome(self, trainer: Any, module: LanguageModel, measured: dict[str, Any]) -> dict[str, Any]:
        """Return the measured part of the record."""
        rows = [row for _, row in sorted(self.rows.items()) if "train_loss" in row]
        metrics, strange = metrics_of(measured if self.diverged is None else {})
        if self.diverged is None:
            metrics["train_loss"] = rows[-1]["train_loss"] if rows else None
            metrics |= {name: value for name, value in (rows[-1] if rows else {}).items() if name.startswith(EXTRA)}
            metrics["gradient_norm"] = self.norm_sum / max(1, self.norm_count)
            clipped_share = self.clipped / max(1, self.norm_count)
            metrics["clipped_share"] = clipped_share if trainer.gradient_clip_val else None
            metrics |= self.probe.metrics()
            if (best := self.data.entropy_per_token()) is not None:
                metrics["excess_nll"] = measured["nll"] - best
        return {
            "status": "ok" if self.diverged is None else "diverged",
            "error": None if self.diverged is None else f"loss not finite at step {self.diverged['step']}",
            "diverged": self.diverged,
            "steps": trainer.global_step,
            "metrics": metrics,
            "evaluated": {"split": "validation", "tokens": measured.get("evaluated_tokens"), **self.drawn_from()},
            "reliability": measured.get("reliability"),
            "initial": self.probe.initial,
            "final": self.probe.final,
            "flags": self.probe.flags + module.notes + strange,
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
            **write_document_losses(self.work, module.clusters, measured, "nll"),
        }

    def drawn_from(self) -> dict[str, int]:
        """Return the tokens of the validation split, if a part of it was drawn."""
        facts, budget = self.data.facts, self.data.evaluation_tokens
        return {"of": facts.tokens["validation"]} if facts and facts.tokens["validation"] > budget else {}


def fetch_extras(trainer: Any, extras: list[dict[str, torch.Tensor]]) -> list[dict[str, float]]:
    """Return the values of the extra losses of each batch, means over processes, fetched at once."""
    tensors = [extra[name] for extra in extras for name in extra]
    values = iter(reduce_over_processes(trainer, torch.stack(tensors), "mean").double().tolist() if tensors else ())
    return [{name: next(values) for name in extra} for extra in extras]


def write_document_losses(
    work: Path, clusters: Clusters | None, measured: dict[str, Any], quantity: str
) -> dict[str, Any]:
    """Write the losses by document behind a quantity of KEPT, if there are any; return their part of the record."""
    if clusters is None or "clusters" not in measured or not math.isfinite(measured["nll"]):
        return {}
    content = packed(*measured["clusters"])
    part, file = KEPT[quantity]
    write_atomic(work / file, content)
    return {part: described(content, clusters.kind, clusters.each, clusters.count)}


def is_finite_so_far(trainer: Any, module: LanguageModel) -> bool:
    """Return True if all losses that a module has not handed on are finite, in every process."""
    values = [*module.losses, *(value for extra in module.extras for value in extra.values())]
    return not values or bool(reduce_over_processes(trainer, torch.stack(values), "mean").isfinite().all())
