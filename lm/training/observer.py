"""Measurements inside the model and of the cost of a run, taken while it trains."""

import functools
from typing import Any

import torch

from lm.config.tree import InputError
from lm.data import IGNORED
from lm.data.batch import Batch, Data
from lm.metrics.cost import Durations, Energy, matmul_peak, utilisation
from lm.metrics.gradients import measure_noise
from lm.metrics.probe import first_rows, probe
from lm.model.flops import flops_per_token
from lm.training.adapter import gather_heads, has_full_parameters, tensor_parallel_size, to_device
from lm.training.module import LanguageModel, uncompiled
from lm.training.provenance import peak_memory

NOISE_ROWS, NOISE_PIECES = 16, 4


class Probe:
    """Measures inside the model on fixed batches: the first of validation, and of training for gradient noise.

    Every process reads the same rows, so that the number of processes changes nothing.
    """

    STATE_KEYS = ("initial", "final", "flags", "trace", "signal", "update_ratio")

    def __init__(self, data: Data) -> None:
        self.data = data
        self.initial: dict[str, Any] = {}
        self.final: dict[str, Any] = {}
        self.flags: list[str] = []
        self.trace, self.signal = 0.0, 0.0
        self.update_ratio: float | None = None

    def measure(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Measure the model as it is now; return the numbers for the learning curve."""
        batch = to_device(trainer, next(iter(self.data.evaluation_batches("validation"))))
        with trainer.precision_plugin.val_step_context(), uncompiled(module.model):
            inside = probe(module.model, first_rows(batch))
        if tensor_parallel_size(trainer) > 1:
            inside = inside.of_heads(lambda values_nlh: gather_heads(trainer, values_nlh))
        self.flags += [f"step {trainer.global_step}: {flag}" for flag in inside.flags()]
        if trainer.global_step == 0:
            self.initial = {**self.initial, **inside.measured()}
        self.final = {**self.final, **inside.measured()}
        return inside.headline()

    def measure_gradient_noise(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Measure trace and signal of the gradient noise on pieces of a training batch.

        Nothing is returned for a batch of too few rows, or if no process has all weights.
        """
        batch = to_device(trainer, first_rows(next(iter(self.data.training_batches(0, 1))), NOISE_ROWS))
        rows = len(batch.rows_b) // NOISE_PIECES
        if rows < 1 or not has_full_parameters(trainer):
            return {}
        pieces = [
            Batch(tuple(x[i : i + rows] for x in batch.inputs), batch.targets_bt[i : i + rows], batch.rows_b)
            for i in range(0, rows * NOISE_PIECES, rows)
        ]
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
        """Return the metrics of the whole of training, for the record; each is one of QUANTITIES.

        The noise scale, in tokens, is the mean trace over the mean signal, as their ratio at one step is too noisy.
        """
        noise_scale = self.trace / self.signal if self.signal > 0 and self.trace > 0 else None
        return {"update_ratio": self.update_ratio, "noise_scale": noise_scale}


class CostMeter:
    """Time, energy and memory of training, without evaluation and checkpoints.

    A step lasts from the end of the one before it, so that work in between counts.
    """

    STATE_KEYS = ("counts", "waited", "joules")

    def __init__(self) -> None:
        self.durations = Durations()
        self.counts = self.durations.counts
        self.waited = 0.0
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
