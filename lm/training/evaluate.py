"""Measuring a trained model: the test split with and without a fitted temperature, and contexts of other lengths.

Legend: b batch, t time, n tokens, v vocabulary.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.config.components import blame, build
from lm.config.tree import InputError
from lm.data import IGNORED
from lm.data.batch import Batch, Data, tensor
from lm.data.clusters import Clusters
from lm.data.text import TextData
from lm.metrics.temperature import fit_temperature, scaled
from lm.metrics.tokens import TokenStatistics, perplexity
from lm.model.attention import attending
from lm.model.weights import weights
from lm.store.record import Outcome, Record
from lm.training.adapter import convert, device_of, evaluating, keep_to_itself, placed, quiet
from lm.training.cell import Cell
from lm.training.life import alive
from lm.training.module import KEPT_BYTES
from lm.training.recorder import Recorder
from lm.training.run import Run

FREQUENT = 10
"""Tokens, the most frequent, whose class-wise calibration is measured."""

TOKENS_AT_ONCE = 8192

SCALED = ("nll", "ece", "ece_floor", "brier")
"""What is shown again after temperature scaling."""


class Trained:
    """The model of a cell with the weights of a checkpoint, on one device, in the precision it was trained in.

    Args:
        cell: how the model is built.
        checkpoint: a file of a single device or of a strategy that keeps whole weights.
        data: what to measure on; by default the cell's own.
        known: logits (n, v) and targets (n,) of all batches of the validation split, where they are at hand; emptied
            once the temperature is fitted, for nothing else needs them.
    """

    def __init__(
        self,
        cell: Cell,
        checkpoint: Path,
        data: Data | None = None,
        known: list[tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.known = [] if known is None else known
        alone = {"devices": 1, "num_nodes": 1, "strategy": "auto"}
        run: Run = build({**cell.config, "trainer": {**cell.config["trainer"], **alone}}, Run)
        own = run.data(run.order_seed)
        own.facts = cell.facts
        self.data = own if data is None else data
        self.data.setup("fit")
        with quiet():
            self.trainer = run.trainer(Recorder(checkpoint.parent, self.data, lambda *_: None, 0.0))
        self.device = device_of(self.trainer)
        with blame(str(checkpoint)):
            self.model = attending(run.model(cell.facts.vocabulary, own.context), self.trainer.attention)
            convert(self.trainer, self.model)
            self.model.load_state_dict(weights(checkpoint))
        self.model.to(self.device).eval()

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (n, v) and targets (n,) of a batch."""
        there = placed(self.trainer, batch)
        with torch.inference_mode(), evaluating(self.trainer):
            return self.model(*there.inputs).flatten(0, 1), there.targets_bt.flatten()

    def passes(self, split: str) -> Callable[[], Iterable[tuple[Tensor, Tensor]]]:
        """Goes over a split again and again; logits are kept where they are small enough."""
        batches = self.data.evaluation_batches(split)
        if split == "validation" and self.known and len(self.known) == len(batches):
            return lambda: self.known
        first = self.logits(next(iter(batches)))[0]
        if first.numel() * first.element_size() * len(batches) > KEPT_BYTES:
            return lambda: map(self.logits, batches)
        kept = [self.logits(batch) for batch in batches]
        return lambda: kept

    def statistics(
        self,
        pairs: Iterable[tuple[Tensor, Tensor]],
        split: str,
        temperature: float = 1.0,
        of: Clusters | None = None,
    ) -> Any:
        """The metrics over logits and targets, the logits divided by a temperature, and the sums of clusters."""
        frequent, count = self.data.frequent(split, FREQUENT), 0 if of is None else of.count
        measured = TokenStatistics(self.data.bytes_per_token(), classes=frequent, clusters=count)
        measured.to(self.device)
        keep_to_itself(measured)  # of the processes that trained only the first is here
        told = itertools.repeat(None) if of is None else self._clusters(split, of)
        for (logits_nv, targets_n), cluster_n in zip(pairs, told, strict=False):
            measured.update(scaled(logits_nv, temperature), targets_n, cluster_n)
        return measured.compute()

    def _clusters(self, split: str, of: Clusters) -> Iterator[Tensor]:
        """The cluster of each target (n,) of the batches of a split."""
        for batch in self.data.evaluation_batches(split):
            yield of.of(batch.rows_b).expand_as(batch.targets_bt).flatten().to(self.device)

    # splits

    def split(self, split: str, told: bool = False) -> dict[str, Any]:
        """A split's metrics, and those at the temperature fitted on validation, on any split but that.

        Where it is `told` apart by documents, `clusters` are these, and their losses and tokens.
        """
        if not len(self.data.evaluation_batches(split)):
            raise InputError(f"--split {split}: this run's {split} split holds no text")
        if split == "validation":
            return {**self.statistics(self.passes(split)(), split), "scaled": None}
        temperature, before, after = self.fitted_temperature()
        passes = self.passes(split)
        of = self.data.clusters(split) if told else None
        found = self.statistics(passes(), split, of=of)
        if "clusters" in found:
            found["clusters"] = (of, *found["clusters"])
        after_scaling = self.statistics(passes(), split, temperature)
        changed = sum(int((x.argmax(-1) != scaled(x, temperature).argmax(-1)).sum()) for x, _ in passes())
        return {
            **found,
            "scaled": {
                "temperature": temperature,
                "fitted_on": "validation",
                "validation_nll": [before, after],
                "argmax_changed": changed,
                **{name: after_scaling[name] for name in (*SCALED, "reliability")},
            },
        }

    def fitted_temperature(self) -> tuple[float, float, float]:
        """The temperature fitted on validation, and the NLL there without and with it; lets go of what was known."""
        fitting = self.passes("validation")
        temperature = fit_temperature(fitting)
        before, after = (self.statistics(fitting(), "validation", t)["nll"] for t in (1.0, temperature))
        self.known.clear()
        return temperature, before, after

    # lengths

    def lengths(self, lengths: Sequence[int], split: str, tokens: int) -> dict[str, Any]:
        """NLL at contexts of these lengths over the same tokens, by non-overlapping blocks and by a sliding window."""
        data = self.data
        if not isinstance(data, TextData) or data.tokens is None:
            raise InputError(f"evaluate.lengths: {type(data).__name__} has rows of its own; expected TextData")
        ids = data.tokens.split[split]
        longest = max(lengths)
        count = min(tokens, len(ids) - 1) // longest * longest
        if not count:
            raise InputError(
                f"evaluate.lengths: {longest} tokens of context and one to predict, found {len(ids)} in {split}"
            )
        kept = np.asarray(ids[: count + 1], dtype=np.int64)
        return {str(length): self._length(kept, length) for length in sorted(set(lengths))}

    def _length(self, ids: np.ndarray, length: int) -> dict[str, Any]:
        try:
            nll_bt = self._losses(blocks(ids, length))
            sliding_n = self._sliding(ids, length)
        except ValueError as error:  # an encoding that ends with the trained length says so
            return {"error": str(error)}
        by_position = nll_bt.mean(0)
        return {
            "tokens": nll_bt.numel(),
            "nll": float(nll_bt.mean()),
            "sliding_nll": float(sliding_n.mean()),
            "by_position": by_position.tolist(),
        }

    def _sliding(self, ids: np.ndarray, length: int) -> Tensor:
        """NLL of each token after at least half the length of context, but for the first ones: (n,)."""
        stride = max(1, length // 2)
        first = self._losses(blocks(ids[: length + 1], length)).flatten()
        starts = np.arange(stride, len(ids) - length, stride)
        if not len(starts):
            return first
        places = starts[:, None] + np.arange(length + 1)
        losses_bt = self._losses(places_of(ids, places))
        left = len(ids) - 1 - (int(starts[-1]) + length)  # fewer than a stride, the end of a last window
        last = self._losses(blocks(ids[-length - 1 :], length)).flatten()[length - left :]
        return torch.cat([first, losses_bt[:, length - stride :].flatten(), last])

    def _losses(self, rows: tuple[np.ndarray, np.ndarray]) -> Tensor:
        """NLL in nats of every target, (b, t), in float64 on the CPU."""
        inputs_bt, targets_bt = rows
        at_once = max(1, TOKENS_AT_ONCE // inputs_bt.shape[1])
        found = []
        for start in range(0, len(inputs_bt), at_once):
            some = slice(start, start + at_once)
            batch = Batch((tensor(inputs_bt[some]),), tensor(targets_bt[some]), tensor(np.arange(len(inputs_bt[some]))))
            alive()
            logits_nv, targets_n = self.logits(batch)
            exact_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
            losses_n = torch.nn.functional.cross_entropy(exact_nv, targets_n, reduction="none", ignore_index=IGNORED)
            found.append(losses_n.double().cpu().view(batch.targets_bt.shape))
        return torch.cat(found)


def blocks(ids: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of consecutive blocks, (b, t) each."""
    rows = (len(ids) - 1) // length
    return ids[: rows * length].reshape(rows, length), ids[1 : rows * length + 1].reshape(rows, length)


def places_of(ids: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the rows of places, (b, t + 1)."""
    return ids[places[:, :-1]], ids[places[:, 1:]]


# what goes into a record ---------------------------------------------------------------------------------------------


def evaluations(
    cell: Cell, checkpoint: Path, known: list[tuple[Tensor, Tensor]] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is measured of every finished cell: the test split, where there is one, and the lengths asked for; with the
    logits of the validation split, if they are `known`; that list is emptied."""
    trained = Trained(cell, checkpoint, known=known)
    if len(trained.data.evaluation_batches("test")):
        yield "test", trained.split("test", told=True)
    trained.known.clear()  # where there is nothing to fit a temperature for
    wanted = cell.config.get("evaluate") or {}
    if wanted.get("lengths"):
        yield "lengths", trained.lengths(wanted["lengths"], "validation", wanted["tokens"])


def headline(name: str, found: dict[str, Any]) -> dict[str, float | None]:
    """The numbers of an evaluation that stand in tables, by the names of `lm.store.metrics.describe`."""
    if name == "lengths":
        lengths = [(length, at) for length, at in found.items() if "error" not in at]
        return {
            f"{quantity}@{length}": value
            for length, at in lengths
            for quantity, value in (
                ("nll", at["nll"]),
                ("perplexity", finite_perplexity(at["nll"])),
                ("sliding_nll", at["sliding_nll"]),
            )
        }
    scaled = found["scaled"] or {}
    numbers = {f"{name}_{quantity}": found[quantity] for quantity in ("nll", "perplexity", *SCALED[1:])}
    if scaled:
        before, after = scaled["validation_nll"]
        numbers |= {"temperature": scaled["temperature"], "temperature_gain": before - after}
        numbers |= {"argmax_changed": float(scaled["argmax_changed"])}
        numbers |= {f"scaled_{quantity}": scaled[quantity] for quantity in SCALED}
    return numbers


def finite_perplexity(nll: float) -> float | None:
    """exp of an NLL, None where that is past float64."""
    found = perplexity(nll) if math.isfinite(nll) else math.inf
    return found if math.isfinite(found) else None


def add(record: Record | Outcome, name: str, found: dict[str, Any]) -> None:
    """Puts an evaluation into a record."""
    record.setdefault("evaluations", {})[name] = found
    record["metrics"] |= headline(name, found)


def missing(record: Record, config: dict[str, Any]) -> bool:
    """Whether a finished cell lacks lengths that its configuration asks for now."""
    wanted = config.get("evaluate") or {}
    there = record["evaluations"].get("lengths", {})
    return record["status"] == "ok" and not {str(length) for length in wanted.get("lengths", [])} <= set(there)
