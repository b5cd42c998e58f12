"""What a run looks like from inside and what it costs, gathered while it trains."""

from typing import Any

import torch

from lm.config.tree import InputError
from lm.data import IGNORED
from lm.data.batch import Batch, Data
from lm.metrics.cost import Durations, Energy, matmul_peak, utilisation
from lm.metrics.noise import noise_of_pieces
from lm.metrics.probe import first_rows, inspect
from lm.model.count import flops_per_token
from lm.training.adapter import among, device_of, evaluating, is_whole, of_all_heads, placed, stepping
from lm.training.compiled import as_written
from lm.training.module import LanguageModel
from lm.training.provenance import peak_memory

NOISE_ROWS, NOISE_PIECES = 16, 4


class Observer:
    """Looks inside the model on fixed batches: the first of validation, and for noise in the gradient of training.

    Every process looks at the same rows, so that the number of processes changes nothing.

    Args:
        data: where the batches come from.
    """

    KEPT = ("initial", "final", "flags", "trace", "signal", "update_ratio")

    def __init__(self, data: Data) -> None:
        self.data = data
        self.initial: dict[str, Any] = {}
        self.final: dict[str, Any] = {}
        self.flags: list[str] = []
        self.trace, self.signal = 0.0, 0.0
        self.update_ratio: float | None = None

    def look(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Looks now; returns a number for each of what there was to see, for the learning curve."""
        batch = placed(trainer, next(iter(self.data.evaluation_batches("validation"))))
        with evaluating(trainer), as_written(module.model):
            inside = inspect(module.model, first_rows(batch))
        if among(trainer) > 1:
            inside = inside.of_heads(lambda seen_nlh: of_all_heads(trainer, seen_nlh))
        self.flags += [f"step {trainer.global_step}: {flag}" for flag in inside.flags()]
        if trainer.global_step == 0:
            self.initial = {**self.initial, **inside.measured()}
        self.final = {**self.final, **inside.measured()}
        return inside.headline()

    def look_at_noise(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """The gradient noise scale in tokens, from pieces of a training batch; nothing where it cannot be had."""
        batch = placed(trainer, first_rows(next(iter(self.data.training_batches(0, 1))), NOISE_ROWS))
        rows = len(batch.rows_b) // NOISE_PIECES
        if rows < 1 or not is_whole(trainer):
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
            with stepping(trainer), as_written(module.model):
                return module.loss(piece)

        training = module.model.training
        module.model.eval()
        with torch.inference_mode(False), torch.enable_grad():
            found = noise_of_pieces(parameters, [lambda p=piece: loss(p) for piece in pieces], tokens)  # type: ignore[misc]
        module.model.train(training)
        self.trace += found.trace
        self.signal += found.signal
        return {"noise_trace": found.trace, "noise_signal": found.signal}

    def matrices(self, trainer: Any, module: LanguageModel) -> dict[str, float]:
        """Norms of the step just measured, by part and kind, for the learning curve."""
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
        """What all of training came to, for the record; each is one of METRICS.

        The noise scale, in tokens, is the mean trace over the mean signal, as their ratio at one time is too noisy.
        """
        noise_scale = self.trace / self.signal if self.signal > 0 and self.trace > 0 else None
        return {"update_ratio": self.update_ratio, "noise_scale": noise_scale}


class Meter:
    """What training costs; evaluation and checkpoints are left out of it.

    A step lasts from the end of the one before it, so that work in between counts.
    """

    KEPT = ("counts", "waited", "joules")

    def __init__(self) -> None:
        self.durations = Durations()
        self.counts = self.durations.counts
        self.waited = 0.0
        self.joules: float | None = None
        self.energy: Energy | None = None
        self.peak: float | None = None
        self.last: float | None = None

    def start(self, trainer: Any, module: LanguageModel) -> None:
        """Measures the machine, before the first step."""
        self.durations.counts = self.counts  # of the checkpoint, if there is one
        device = device_of(trainer)
        bfloat = str(trainer.precision).startswith("bf16")
        self.peak = matmul_peak(device, torch.bfloat16 if bfloat else next(module.parameters()).dtype)
        self.energy = Energy(device)

    def step(self, now: float) -> None:
        """A step has ended."""
        if self.last is not None:
            self.durations.add(now - self.last)
        self.last = now

    def pause(self) -> None:
        """What comes until the next step is not training."""
        self.last = None

    def take(self, trainer: Any) -> None:
        """Takes over what has been waited and used so far."""
        batches = trainer.train_dataloader
        self.waited, batches.seconds = self.waited + batches.seconds, 0.0
        used = self.energy.joules() if self.energy else None
        if used is not None:
            self.joules = (self.joules or 0.0) + used

    def costs(self, module: LanguageModel, context: int, tokens: int, seconds: float) -> dict[str, float | None]:
        """The part of the record that says what training cost, with `tokens` seen in `seconds` of training."""
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
            "mfu": utilisation(speed, flops, [self.peak or 0.0] * world),
            "matmul_peak": self.peak,
            "data_wait": self.waited / seconds if seconds else None,
            "energy": self.joules,
            "peak_memory": peak_memory(),
            "world_size": world,
        }
