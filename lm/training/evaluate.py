"""Evaluation of a trained model: the test split with and without a fitted temperature, and contexts of other lengths.

Legend: b batch, t time, n tokens, v vocabulary.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.config.components import blame, build
from lm.config.tree import InputError, Tree
from lm.data import IGNORED
from lm.data.batch import Batch, Batches, Clusters, Data, tensor
from lm.data.text import TextData
from lm.metrics.tokens import TokenStatistics, fit_temperature, perplexity, scale_logits
from lm.model.transformer import load_weights
from lm.store.record import Outcome, Record
from lm.training.adapter import quiet, to_device
from lm.training.identified import Cell
from lm.training.module import CACHED_LOGITS_MAX_BYTES, Logits
from lm.training.process import beat
from lm.training.recorder import Recorder
from lm.training.run import SINGLE_PROCESS, RunConfig, evaluation_of

FREQUENT = 10  # number of the most frequent tokens, whose class-wise calibration is measured
TOKENS_AT_ONCE = 8192
CACHED_HIDDEN_MAX_BYTES = 2**30  # the same of the states that they are computed from, where the logits are larger
SCALED = ("nll", "ece", "ece_floor", "brier")  # metrics that are reported again after temperature scaling


class TrainedCell:
    """The model of a cell with the weights of a checkpoint file, on one device, in the precision it was trained in."""

    def __init__(
        self,
        cell: Cell,
        checkpoint: Path,
        data: Data | None = None,
        validated: Logits | None = None,  # what training computed of validation with these weights
    ) -> None:
        self.validated = validated or []
        run: RunConfig = build({**cell.config, "trainer": {**cell.config["trainer"], **SINGLE_PROCESS}}, RunConfig)
        own = run.data(run.order_seed)
        own.facts = cell.facts
        self.data = own if data is None else data
        self.data.evaluation_tokens = evaluation_of(cell.config).tokens
        self.data.setup("fit")
        with quiet():
            self.trainer = run.trainer(Recorder(checkpoint.parent, self.data))
        self.device = self.trainer.strategy.root_device
        with blame(str(checkpoint)):
            self.model = self.trainer.prepared(run.model(cell.facts.vocabulary, own.context))
            self.trainer.precision_plugin.convert_module(self.model)
            self.model.load_state_dict(load_weights(checkpoint))
        self.model.to(self.device).eval()

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in the block as validation does, in the precision of training."""
        with torch.inference_mode(), self.trainer.precision_plugin.val_step_context():
            yield

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits (n, v) and targets (n,) of a batch."""
        moved = to_device(self.trainer, batch)
        with self.computing():
            return self.model(*moved.inputs).flatten(0, 1), moved.targets_bt.flatten()

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Return logits (b, t, v) of rows of tokens."""
        with self.computing():
            logits_btv: Tensor = self.model(tokens_bt.to(self.device))
        return logits_btv

    def tasks(self, nodes: Sequence[Tree], limit: int | None) -> dict[str, Any]:
        """Measure resolved tasks of lm-evaluation-harness, as `measure_tasks` returns them."""
        from lm.training.harness.tasks import measure_tasks  # an optional package, and seconds

        return measure_tasks(self, nodes, limit)

    def passes(self, split: str) -> Callable[[], Iterable[tuple[Tensor, Tensor]]]:
        """Return a function that iterates over a split, again at each call.

        Small logits are cached; larger ones are computed from cached hidden states, or where those are too large, by
        the whole model again.
        """
        batches = self.data.evaluation_batches(split)
        if split == "validation" and len(self.validated) == len(batches):
            computed = self.validated.copy()
            self.validated.clear()  # so that its memory is free once `computed` is
            return lambda: computed
        first = self.logits(next(iter(batches)))[0]
        if first.nbytes * len(batches) <= CACHED_LOGITS_MAX_BYTES:
            computed = [self.logits(batch) for batch in batches]
            return lambda: computed
        del first
        if (states := self._hidden_states(batches)) is not None:
            return lambda: itertools.starmap(self._logits_of_hidden, states)
        return lambda: map(self.logits, batches)

    def _hidden_states(self, batches: Batches) -> list[tuple[Tensor, Tensor, Tensor]] | None:
        """Return hidden states (b, t, d), output weight (v, d) and targets (b, t) of batches; None if too large."""
        states = []
        for batch in batches:
            moved = to_device(self.trainer, batch)
            with self.computing():
                factors = self.model.hidden_and_weight(*moved.inputs)
            if factors is None or factors[0].nbytes * len(batches) > CACHED_HIDDEN_MAX_BYTES:
                return None
            states.append((*factors, moved.targets_bt))
        return states

    def _logits_of_hidden(self, x_btd: Tensor, weight_vd: Tensor, targets_bt: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, v) and targets (n,) of hidden states, the same numbers as those of the whole model."""
        cap = self.model.logit_softcap
        with self.computing():
            logits_btv = torch.nn.functional.linear(x_btd, weight_vd)
            if cap is not None:
                logits_btv = cap * (logits_btv / cap).tanh()
        return logits_btv.flatten(0, 1), targets_bt.flatten()

    def statistics(
        self,
        pairs: Iterable[Any],
        split: str,
        temperatures: Sequence[float] = (1.0,),
        clusters: Clusters | None = None,
    ) -> list[Any]:
        """Compute the metrics of logits divided by each temperature; those of the first also summed by cluster."""
        frequent, measured = self.data.frequent(split, FREQUENT), []
        for place in range(len(temperatures)):
            count = 0 if clusters is None or place else clusters.count
            metric = TokenStatistics(self.data.bytes_per_token(), classes=frequent, clusters=count)
            metric.to(self.device)
            metric.distributed_available_fn = lambda: False  # only the first of the training processes is here
            measured.append(metric)
        batches = itertools.repeat(None) if clusters is None else iter(self.data.evaluation_batches(split))
        for (logits_nv, targets_n), batch in zip(pairs, batches, strict=False):
            cluster_n = None
            if clusters is not None and batch is not None:
                cluster_n = clusters.of(batch.rows_b).expand_as(batch.targets_bt).flatten().to(self.device)
            for metric, temperature in zip(measured, temperatures, strict=True):
                metric.update(scale_logits(logits_nv, temperature), targets_n, cluster_n)
                cluster_n = None
        return [metric.compute() for metric in measured]

    def split(self, split: str, by_document: bool = False) -> dict[str, Any]:
        """Evaluate a split, any but validation also at the temperature fitted there, perhaps with sums by document."""
        if not len(self.data.evaluation_batches(split)):
            raise InputError(f"--split {split}: this run's {split} split holds no text")
        if split == "validation":
            return {**self.statistics(self.passes(split)(), split)[0], "scaled": None}
        fitting = self.passes("validation")
        temperature = fit_temperature(fitting)
        fits = [statistics["nll"] for statistics in self.statistics(fitting(), "validation", (1.0, temperature))]
        del fitting  # its logits take as much memory as those that follow
        clusters = self.data.clusters(split) if by_document else None
        changed = 0

        def counted() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal changed
            for batch in self.data.evaluation_batches(split):
                logits_nv, targets_n = self.logits(batch)
                scaled_nv = scale_logits(logits_nv, temperature)
                changed += int((logits_nv.argmax(-1) != scaled_nv.argmax(-1)).sum())
                del scaled_nv
                yield logits_nv, targets_n

        unscaled, after_scaling = self.statistics(counted(), split, (1.0, temperature), clusters)
        if "clusters" in unscaled:
            unscaled["clusters"] = (clusters, *unscaled["clusters"])
        scaled = {"temperature": temperature, "fitted_on": "validation", "validation_nll": fits}
        scaled |= {"argmax_changed": changed, **{name: after_scaling[name] for name in (*SCALED, "reliability")}}
        return {**unscaled, "scaled": scaled}

    def lengths(self, lengths: Sequence[int], split: str, tokens: int) -> dict[str, Any]:
        """Compute NLL at contexts of these lengths over the same tokens, in separate blocks and in a sliding window."""
        data = self.data
        if not isinstance(data, TextData) or data.tokens is None:
            raise InputError(f"evaluate.lengths: {type(data).__name__} has rows of its own; expected TextData")
        ids = data.tokens.split[split]
        longest = max(lengths)
        count = min(tokens, len(ids) - 1) // longest * longest
        if not count:
            hint = f"{longest} tokens of context and one to predict, found {len(ids)} in {split}"
            raise InputError(f"evaluate.lengths: {hint}")
        used, measured = np.asarray(ids[: count + 1], dtype=np.int64), dict[str, Any]()
        for length in sorted(set(lengths)):
            try:
                nll_bt = self._losses(*blocks(used, length))
                sliding_n = self._sliding(used, length)
            except ValueError as error:  # an encoding that ends with the trained length says so
                measured[str(length)] = {"error": str(error)}
                continue
            sums = {"tokens": nll_bt.numel(), "nll": float(nll_bt.mean()), "sliding_nll": float(sliding_n.mean())}
            measured[str(length)] = {**sums, "by_position": nll_bt.mean(0).tolist()}
        return measured

    def _sliding(self, ids: np.ndarray, length: int) -> Tensor:
        """Return the NLL of each token (n,), after at least half the length of context except for the first ones."""
        stride = max(1, length // 2)
        first = self._losses(*blocks(ids[: length + 1], length)).flatten()
        starts = np.arange(stride, len(ids) - length, stride)
        if not len(starts):
            return first
        windows = starts[:, None] + np.arange(length + 1)
        losses_bt = self._losses(ids[windows[:, :-1]], ids[windows[:, 1:]])
        left = len(ids) - 1 - (int(starts[-1]) + length)  # fewer than a stride, the end of a last window
        last = self._losses(*blocks(ids[-length - 1 :], length)).flatten()[length - left :]
        return torch.cat([first, losses_bt[:, length - stride :].flatten(), last])

    def _losses(self, inputs_bt: np.ndarray, targets_bt: np.ndarray) -> Tensor:
        """Return the NLL in nats of every target, (b, t), in float64 on the CPU."""
        at_once = max(1, TOKENS_AT_ONCE // inputs_bt.shape[1])
        losses = []
        for start in range(0, len(inputs_bt), at_once):
            part = slice(start, start + at_once)
            batch = Batch((tensor(inputs_bt[part]),), tensor(targets_bt[part]), tensor(np.arange(len(inputs_bt[part]))))
            beat()
            logits_nv, targets_n = self.logits(batch)
            exact_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
            losses_n = torch.nn.functional.cross_entropy(exact_nv, targets_n, reduction="none", ignore_index=IGNORED)
            losses.append(losses_n.double().cpu().view(batch.targets_bt.shape))
        return torch.cat(losses)


def blocks(ids: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of consecutive blocks, (b, t) each."""
    rows = (len(ids) - 1) // length
    return ids[: rows * length].reshape(rows, length), ids[1 : rows * length + 1].reshape(rows, length)


def evaluations(cell: Cell, checkpoint: Path, validated: Logits | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the evaluations of a finished cell: the test split, if it has text, and lengths."""
    trained = TrainedCell(cell, checkpoint, validated=validated)
    if len(trained.data.evaluation_batches("test")):
        yield "test", trained.split("test", by_document=True)
    settings = cell.config.get("evaluate") or {}
    if settings.get("lengths"):
        yield "lengths", trained.lengths(settings["lengths"], "validation", evaluation_of(cell.config).length_tokens)
    if settings.get("tasks"):
        yield "tasks", trained.tasks(settings["tasks"], settings.get("limit"))


def headline(name: str, evaluation: dict[str, Any]) -> dict[str, float | None]:
    """Return the numbers of an evaluation for tables, by the names of `lm.store.metrics.describe`."""
    if name == "lengths":
        numbers: dict[str, float | None] = {}
        for length, at in evaluation.items():
            if "error" not in at:
                numbers |= {f"nll@{length}": at["nll"], f"perplexity@{length}": finite_perplexity(at["nll"])}
                numbers[f"sliding_nll@{length}"] = at["sliding_nll"]
        return numbers
    if name == "tasks":
        of_tasks = (
            (task, metric, at["value"]) for task, x in evaluation.items() for metric, at in x["metrics"].items()
        )
        return {f"{metric}@{task}": value for task, metric, value in of_tasks}
    numbers = {f"{name}_{quantity}": evaluation[quantity] for quantity in ("nll", "perplexity", *SCALED[1:])}
    if scaled := evaluation["scaled"]:
        before, after = scaled["validation_nll"]
        numbers |= {"temperature": scaled["temperature"], "temperature_gain": before - after}
        numbers |= {"argmax_changed": float(scaled["argmax_changed"])}
        numbers |= {f"scaled_{quantity}": scaled[quantity] for quantity in SCALED}
    return numbers


def finite_perplexity(nll: float) -> float | None:
    """Return the exponential of an NLL; None where that overflows float64."""
    value = perplexity(nll) if math.isfinite(nll) else math.inf
    return value if math.isfinite(value) else None


def add(record: Record | Outcome, name: str, evaluation: dict[str, Any]) -> None:
    """Add an evaluation to a record."""
    evaluations = record.setdefault("evaluations", {})
    evaluations[name] = {**evaluations.get(name, {}), **evaluation} if name == "tasks" else evaluation
    record["metrics"] |= headline(name, evaluation)


def missing(record: Record, config: dict[str, Any]) -> bool:
    """Return True if a finished cell lacks lengths that its configuration requests now, or has them on less text."""
    requested = (config.get("evaluate") or {}).get("lengths", [])
    measured = record["evaluations"].get("lengths", {})
    if record["status"] != "ok" or not requested:
        return False
    longest = max(*requested, *map(int, measured)) if measured else max(requested)
    count = min(evaluation_of(config).length_tokens, record["data"]["tokens"]["validation"] - 1) // longest * longest
    tokens = {int(length): of["tokens"] for length, of in measured.items() if "error" not in of}
    lacks = not set(map(str, requested)) <= set(measured)
    return lacks or (count > 0 and any(n != count // length * length for length, n in tokens.items()))
