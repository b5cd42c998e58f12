"""`lm import`: a checkpoint of `transformers` as a finished run, or those of several steps as one with a curve."""

import hashlib
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import yaml
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from lm.config.components import blame, build
from lm.config.plain import shown
from lm.config.reading import load_config
from lm.config.tree import InputError, Tree, differences, load_yaml, override, path_name, run_id
from lm.data.public import digest
from lm.data.tokenizer import SPECIALS, vocabulary_of
from lm.inference.conversion import OWN, ModelOnly, read_config, settings_of, to_ours
from lm.inference.families import FAMILIES
from lm.metrics.probe import first_rows, probe
from lm.store.files import curve_csv, finite, read_json, to_json, write_atomic
from lm.store.formats import MANIFEST, OUTCOME
from lm.store.metrics import VALIDATION_METRICS, metrics_of
from lm.store.store import Store
from lm.store.validation import curve_checksum
from lm.training.adapter import to_device
from lm.training.cell import check, identity, sizes
from lm.training.evaluate import TrainedCell
from lm.training.identified import Cell
from lm.training.initial_weights import compare_weights, hash_weights
from lm.training.provenance import peak_memory
from lm.training.recorder import write_document_losses
from lm.training.train import evaluate_trained, finish, write_work

STEP = re.compile(r"(?:step|checkpoint-|global_step)[-_]?(\d+)")
MOST_CONTEXT = 1024  # tokens of a block by default, where positions have no table of their own
NAMED = "imported"  # the experiment whose arms are imported runs with a name


@dataclass(frozen=True)
class Checkpoint:
    """A model as its folder describes it: our resolved configuration, its context and its vocabulary."""

    folder: Path
    config: Tree  # config.json
    model: Tree
    context: int
    vocabulary: int

    @classmethod
    def at(cls, folder: Path) -> "Checkpoint":
        """Read the configuration in a folder. Raises InputError."""
        path = folder / "config.json"
        config = read_json(path)
        if not isinstance(config, dict):
            raise InputError(f"{path}: expected a mapping, found {shown(config)}")
        model, context = read_config(config, str(path))
        vocabulary = config.get("vocab_size")
        if type(vocabulary) is not int:
            raise InputError(f"{path}: vocab_size: expected a whole number, found {shown(vocabulary)}")
        return cls(folder, config, model, context, vocabulary)

    def files(self) -> list[Path]:
        """Return the files of its weights. Raises InputError for a pickle, or none."""
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            with blame(str(index)):
                names = sorted(set(read_json(index)["weight_map"].values()))
            return [self.folder / path_name(name, str(index)) for name in names]
        if (path := self.folder / "model.safetensors").is_file():
            return [path]
        if pickles := sorted(self.folder.glob("*.bin")):
            convert = f"from_pretrained({str(self.folder)!r}).save_pretrained(NEW) of its class in transformers"
            raise InputError(f"{pickles[0]}: is a pickle, which may run any code; {convert} writes safetensors")
        raise InputError(f"{path}: no such file; expected a model that save_pretrained of transformers wrote")

    def weights(self) -> dict[str, Tensor]:
        """Read its weights under our names, those in half precision in float32. Raises InputError."""
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise InputError("lm import needs safetensors: pip install 'lm-ablations[hf]'") from None
        state: dict[str, Tensor] = {}
        for path in self.files():
            with blame(str(path)):
                state |= load_file(path)
        half = (torch.float16, torch.bfloat16)
        state = {name: value.float() if value.dtype in half else value for name, value in state.items()}
        if self.config["model_type"] == OWN:
            return {name.removeprefix("model."): value for name, value in state.items()}
        options = settings_of(self.model, self.context)
        with blame(str(self.folder)):
            return to_ours(state, FAMILIES[self.config["model_type"]], options["heads"], options["attention.head_size"])


def tied(weights: dict[str, Tensor], model: Tree, where: Path) -> tuple[dict[str, Tensor], Tree]:
    """Return weights with those of the output, and the model, untied where the two are not the same."""
    tokens, head = (weights.get(f"embedding.{name}.weight") for name in ("tokens", "head"))
    embedding = model["init_args"].get("embedding")
    if embedding is None or tokens is None:
        return weights, model
    if head is None and not embedding["tied"]:
        raise InputError(f"{where}: has no weights of the output, and config.json does not tie it to the embedding")
    if head is not None and embedding["tied"] and not torch.equal(head, tokens):
        return weights, override({"model": model}, {"model.embedding.tied": False})["model"]
    return {**weights, "embedding.head.weight": tokens if head is None else head}, model


def read_tokenizer(checkpoint: Checkpoint) -> tokenizers.Tokenizer:
    """Read a tokenizer, with unused tokens up to the vocabulary of the model. Raises InputError."""
    path = checkpoint.folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file; save_pretrained of a fast tokenizer of transformers writes it")
    with blame(str(path)):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    unused = range(vocabulary_of(tokenizer), checkpoint.vocabulary)
    tokenizer.add_special_tokens([f"<|unused {index}|>" for index in unused])
    if (size := vocabulary_of(tokenizer)) != checkpoint.vocabulary:
        raise InputError(f"{path}: has {size} tokens, expected {checkpoint.vocabulary}, as the model has")
    if checkpoint.model["class_path"] == "EncoderDecoder":
        config = checkpoint.config
        padding = config.get("pad_token_id") or 0
        end = config.get("eos_token_id", padding)
        begin = padding if config.get("decoder_start_token_id") is None else config["decoder_start_token_id"]
        ids = (begin, end[0] if isinstance(end, list) else end, padding)
        special: Any = list(zip(SPECIALS, ids, strict=True))
        tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=special)
    return tokenizer


def import_run(folder: Path, out: Path, changes: Tree, name: str | None = None) -> Path:
    """Make a finished run of the model in `folder`, measured on the data, and return its folder. Raises InputError.

    `changes` are dotted settings of the data. A folder of checkpoints, such as `step1000`, is a run with their curve.
    With a name the run is `imported/NAME/0`, and `OUT/imported/NAME.yaml` a base that trains it further.
    """
    checkpoints = {step: Checkpoint.at(path) for step, path in sorted(_by_step(folder).items())}
    last, store, clock, started = checkpoints[max(checkpoints)], Store(out), time.monotonic(), time.time()
    weights, model = tied(last.weights(), last.model, last.folder)
    text = read_tokenizer(last).to_str()
    files = [path for each in checkpoints.values() for path in (*each.files(), each.folder / "config.json")]
    files.append(last.folder / "tokenizer.json")
    hashes = {os.path.relpath(path, folder): digest(path) for path in files}
    tokenizer = out / NAMED / "tokenizers" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    write_atomic(tokenizer, text)
    cell = _cell(last, model, tokenizer.resolve(), changes, max(checkpoints), weights)
    if len(checkpoints) > 1:  # of which the weights of the last do not decide the curve
        source = {"folder": str(folder), "weights": run_id(hashes)}
        config = {**cell.config, "trainer": {**cell.config["trainer"], "init_from": source}}
        cell = Cell(config, cell.facts, identity(config, cell.facts))
    with torch.device("meta"):
        context = cell.config["data"]["init_args"]["context"]
        own = build({"model": cell.config["model"]}, ModelOnly).model(cell.facts.vocabulary, context)
    if problem := compare_weights(own, weights):
        raise InputError(f"{last.folder}: {problem}")
    if name is not None:
        _require_free(store, name, cell.id)
    with store.lock(cell.id):
        store.complete(cell.id)
        if not store.finished(cell.id):
            work = write_work(cell, store)
            torch.save({"state_dict": {f"model.{key}": value for key, value in weights.items()}}, work / "final.ckpt")
            outcome = _measure(cell, work, checkpoints)
            origin = {"folder": str(folder), "model_type": str(last.config["model_type"]), "files": hashes}
            seconds = time.monotonic() - clock
            times = {"started": started, "finished": time.time(), "seconds": seconds, "resumed": 0, "code": {}}
            finish(cell, store, outcome, {**times, "imported": origin})
    if name is not None:
        _name(store, name, cell)
    return store.directory(cell.id)


def _by_step(folder: Path) -> dict[int, Path]:
    """Return the folders of checkpoints by step: the folder itself, or those in it. Raises InputError."""
    match = STEP.fullmatch(folder.name)
    if (folder / "config.json").is_file():
        return {int(match[1]) if match else 0: folder}
    inner = {int(match[1]): path for path in folder.glob("*/") if (match := STEP.fullmatch(path.name))}
    if not inner:
        missing = "" if folder.is_dir() else "no such folder; "
        raise InputError(
            f"{folder}: {missing}expected config.json and model.safetensors, or folders such as step1000 with them"
        )
    return inner


def _cell(
    checkpoint: Checkpoint, model: Tree, tokenizer: Path, changes: Tree, steps: int, weights: dict[str, Tensor]
) -> Cell:
    """Return the cell of an imported model; its weights are in its id as those that training starts from."""
    pairs = model["class_path"] == "EncoderDecoder"
    ended = checkpoint.config.get("eos_token_id")
    end = tokenizers.Tokenizer.from_file(str(tokenizer)).id_to_token(ended) if type(ended) is int else None
    base = load_config(Path("multi30k_tiny" if pairs else "char_tiny"))
    fixed = pairs or model["init_args"].get("position", {}).get("class_path") in ("Learned", "RopeYarn")
    tree = override(
        {**base, "model": model},
        {
            "data.tokenizer": {"class_path": "Pretrained", "init_args": {"path": str(tokenizer), "end": end}},
            "data.context": checkpoint.context if fixed else min(checkpoint.context, MOST_CONTEXT),
            **{"optim.schedule": "Constant", "optim.lr": 1e-4},
            "trainer.max_steps": max(1, steps),
            "trainer.val_check_interval": None,
            "trainer.precision": "64-true" if any(x.dtype == torch.float64 for x in weights.values()) else "32-true",
            **changes,
        },
    )
    cell = check(tree)
    source = {"folder": str(checkpoint.folder), "weights": hash_weights(weights)}
    config = {**cell.config, "trainer": {**cell.config["trainer"], "init_from": source}}
    return Cell(config, cell.facts, identity(config, cell.facts))


def _measure(cell: Cell, work: Path, checkpoints: dict[int, Checkpoint]) -> dict[str, Any]:
    """Measure a model on its data, at each of its steps; return the outcome, with evaluations of the last."""
    clock, rows = time.monotonic(), dict[int, dict[str, float]]()
    trained = TrainedCell(cell, work / "final.ckpt")
    clusters = trained.data.clusters("validation")
    batch = first_rows(next(iter(trained.data.evaluation_batches("validation"))))
    measured: dict[str, Any] = {}
    for step, checkpoint in checkpoints.items():
        if len(checkpoints) > 1:
            with blame(str(checkpoint.folder)):
                trained.model.load_state_dict(tied(checkpoint.weights(), checkpoint.model, checkpoint.folder)[0])
        (measured,) = trained.statistics(trained.passes("validation")(), "validation", clusters=clusters)
        inside = probe(trained.model, to_device(trained.trainer, batch))
        values = {f"validation_{name}": measured[name] for name in VALIDATION_METRICS if name in measured}
        rows[step] = {**values, **inside.headline()}
    metrics, strange = metrics_of(measured)
    curve = curve_csv(rows)
    write_atomic(work / "history.csv", curve)
    outcome = {
        "status": "ok",
        "error": None,
        "steps": max(checkpoints),
        "metrics": {**metrics, **inside.headline()},
        "evaluated": {"split": "validation", "tokens": measured.get("evaluated_tokens")},
        "reliability": measured.get("reliability"),
        "final": inside.measured(),
        "flags": [*inside.flags(), *strange],
        "cost": {
            "parameters": sizes(cell).parameters,
            "evaluation_seconds": time.monotonic() - clock,
            "peak_memory": peak_memory(),
        },
        "pairing": {"order": "", "batches": 0},
        "curve": curve_checksum(curve),
        **write_document_losses(work, clusters, measured, "nll"),
    }
    write_atomic(work / "outcome.json", to_json(finite(OUTCOME.stamped(outcome))))
    return evaluate_trained(cell, work)


def _require_free(store: Store, name: str, cell: str) -> Any:
    """Return the manifest of the imported runs, with none if there is none. Raises InputError for a name of another."""
    path = store.out / NAMED / "experiment.json"
    manifest: Any = {
        **{"name": NAMED, "title": "Imported models", "notes": "", "tier": "C", "baseline": name, "metric": "nll"},
        **{"secondary": [], "margin": {}, "confirmatory": [], "declared": {}, "axes": None, "equal": "steps"},
        **{"adaptive": None, "design": {"kind": "arms"}, "command": None, "claims": [], "seeds": [0], "arms": {}},
    }
    if path.is_file():
        manifest = MANIFEST.read(read_json(path), path)
    if manifest["arms"].get(name, {}).get("cells", {"0": cell}) != {"0": cell}:
        raise InputError(f"--as {name}: is the name of another run in {path.parent}; choose another")
    return manifest


def _name(store: Store, name: str, cell: Cell) -> None:
    """Make a run an arm of the experiment of imported runs, and write a configuration that trains it further."""
    manifest = _require_free(store, name, cell.id)
    baseline = manifest["arms"].get(manifest["baseline"], {"cells": {"0": cell.id}})["cells"]["0"]
    changed = differences(load_yaml(store.directory(baseline) / "config.yaml"), cell.config)
    changes = {key: list(pair) for key, pair in changed.items()}
    manifest["arms"][name] = {"changes": changes, **asdict(sizes(cell)), "cells": {"0": cell.id}}
    write_atomic(store.out / NAMED / "experiment.json", to_json(MANIFEST.stamped(manifest)))
    trainer = {**load_config(Path("char_tiny"))["trainer"], "init_from": str(store.directory(cell.id))}
    base = {**cell.config, "trainer": {**trainer, "precision": cell.config["trainer"]["precision"]}}
    write_atomic(store.out / NAMED / f"{name}.yaml", yaml.safe_dump(base, sort_keys=False))
