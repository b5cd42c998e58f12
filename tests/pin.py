"""What small cells with every part of the package compute, against what was pinned: `python tests/pin.py` pins anew.

Pinning is refused where numbers moved and the version of what moved them, in lm/config/fingerprint.py, was not raised.
"""

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers import RUN, known, noisy

from lm.config.choices import choices, slots
from lm.config.components import build
from lm.config.fingerprint import EVERY, VERSIONS
from lm.config.tree import Tree, override
from lm.data.corpus import Corpus
from lm.model.transformer import Decoder, build_and_initialize
from lm.store.store import Store
from lm.training.cell import check
from lm.training.objective import Objective
from lm.training.optim import Optim, tables
from lm.training.process import Execution
from lm.training.run import RunConfig
from lm.training.train import train

PINNED = Path(__file__).with_name("pinned.json")

TEXT: Tree = {"class_path": "BracketText", "init_args": {"size": 4000}}
SMALL = override(
    RUN, {"data.corpus": TEXT, "data.tokenizer": "Characters", "trainer.max_steps": 6, "trainer.limit_val_batches": 4}
)
"""A cell whose text does not depend on the machine."""

NEEDS: dict[str, Tree] = {"BatchNorm": {"model.block": "PostNorm"}, "LinearAttention": {"model.position": "Sinusoidal"}}
"""What a part cannot do without."""

TOLERANCE = 1e-9
"""Rounding of float64 after three steps is smaller, a change of what is computed larger."""

ROUNDED = {"MuonAdamW": 1e-2, **dict.fromkeys((EVERY, *choices(slots(Decoder, 2)["initializer"].base)), 1e-5)}
"""Two processors may be so far apart in parts that compute in bfloat16, or draw initial values in float32."""


def changes() -> dict[str, Tree]:
    """What makes the small cell one with a part, by the part's class: all of this package that a cell may name.

    Tokenizers and texts from files are left out: they are known by the hash of what they give.
    """
    found: dict[str, Tree] = {EVERY: {}}
    for kind in ("position", "block", "norm", "attention", "mlp", "initializer", "parametrization"):
        for name in choices(slots(Decoder, 2)[kind].base):
            found[name] = {f"model.{kind}": name, **NEEDS.get(name, {})}
    for kind in ("optimizer", "schedule"):
        base = slots(Optim)[kind].base
        for name, cls in choices(base).items():
            if cls.__module__.startswith("lm."):
                found[name] = {f"optim.{kind}": {"class_path": name}}
                if kind == "schedule":
                    found[name][f"optim.{kind}.warmup"] = 2
    for name in choices(Objective):
        found[name] = {"optim.objective": {"class_path": name, "init_args": {"label_smoothing": 0.1, "z_loss": 1e-3}}}
    for name in choices(Corpus):
        if name in ("BracketText", "MarkovText"):
            found[name] = {"data.corpus": {"class_path": name, "init_args": {"size": 4000}}}
    return found


def other_data(folder: Path) -> dict[str, Tree]:
    """The same for kinds of data and of models that need a tree of their own."""
    corpus = {}
    for split in ("train", "validation"):
        for side in ("source", "target"):
            path = folder / f"{split}.{side}"
            path.write_text("".join(f"{side} line {i} of {split}\n" for i in range(12)))
            corpus[f"{split}_{side}"] = str(path)
    pairs = {"corpus": corpus, "tokenizer": "Bytes", "context": 40, "batch_tokens": 160}
    bpe = {"class_path": "BPE", "init_args": {"size": 260}}
    rows = {"corpus": TEXT, "tokenizer": bpe, "context": 12, "rows": 4, "batch_size": 2}
    translator = {"class_path": "EncoderDecoder", "init_args": RUN["model"]["init_args"] | {"position": "Sinusoidal"}}
    lines = {"class_path": "LocalText", "init_args": {"path": corpus["train_source"], "document": "line"}}
    return {
        "PairData": {**SMALL, "data": {"class_path": "PairData", "init_args": pairs}, "model": translator},
        "PaddedRows": {**SMALL, "data": {"class_path": "PaddedRows", "init_args": rows | {"corpus": lines}}},
    }


def three_steps(tree: Tree, as_initialized: bool) -> dict[str, float]:
    """Losses of three steps in float64, the norm of the first gradient, and the sum of the first batch's tokens."""
    cell = check(tree)
    run: RunConfig = build(cell.config, RunConfig)
    data = run.data(run.seed)
    data.facts = cell.facts
    data.setup("fit")
    model = build_and_initialize(run.model, cell.facts.vocabulary, data.context, run.seed).double()
    if not as_initialized:
        noisy(model).train()
    optimizer, schedule = run.optim.build(model.parameters(), 6, tables(model))
    found: dict[str, float] = {}
    for step, batch in enumerate(data.training_batches(0, 3)):
        torch.manual_seed(step)
        loss = run.optim.objective.loss(model(*batch.inputs).flatten(0, 1), batch.targets_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        found[f"loss {step}"] = loss.item()
        if step == 0:
            grads = [p.grad.norm() for p in model.parameters() if p.grad is not None]
            found["gradient norm"] = torch.stack(grads).norm().item()
            found["tokens"] = float(sum((x * torch.arange(1, x.numel() + 1).view_as(x)).sum() for x in batch.inputs))
        optimizer.step()
        schedule.step()
    return found


def whole_run(folder: Path) -> dict[str, float]:
    """What a cell's record holds that was trained by Lightning, from its data to its evaluation."""
    store, cell = Store(folder / "out"), check(SMALL)
    train(cell, store, lambda *_: None, Execution())
    record = store.record(cell.id)
    assert record["status"] == "ok", record["error"]
    names = ("nll", "accuracy", "ece", "brier", "test_nll", "train_loss", "gradient_norm", "clipped_share")
    return {name: known(record["metrics"][name]) for name in names}


def measures(folder: Path) -> dict[str, Callable[[], dict[str, float]]]:
    """What measures each part, by its class."""
    trees = {name: override(SMALL, change) for name, change in changes().items()} | other_data(folder)
    drawn = choices(slots(Decoder, 2)["initializer"].base)
    found = {name: functools.partial(three_steps, tree, name in drawn) for name, tree in trees.items()}
    return {**found, EVERY: functools.partial(whole_run, folder)}


def moved(name: str, found: dict[str, float], pinned: dict[str, Any]) -> list[str]:
    """The numbers of a part that are others than those pinned."""
    tolerance = ROUNDED.get(name, TOLERANCE)
    before = pinned["numbers"]
    assert found.keys() == before.keys()
    return [key for key in found if abs(found[key] - before[key]) > tolerance * max(1.0, abs(before[key]))]


def pin() -> int:
    """Writes what parts compute now; 1 where numbers moved without a version."""
    before = json.loads(PINNED.read_text()) if PINNED.is_file() else {}
    refused, pinned = [], {}
    with tempfile.TemporaryDirectory() as name:
        os.environ["LM_CACHE"] = f"{name}/cache"
        for part, measure in measures(Path(name)).items():
            found, version = measure(), VERSIONS.get(part, 1)
            pinned[part] = {"version": version, "numbers": found}
            if part in before and moved(part, found, before[part]) and version <= before[part]["version"]:
                refused.append(part)
    if refused:
        print(f"numbers moved: {', '.join(refused)}; raise their versions in lm/config/fingerprint.py", file=sys.stderr)
        return 1
    PINNED.write_text(json.dumps(pinned, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(pin())
