"""The card of an exported model, README.md: its data, its budget and its metrics, from the record."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.special

from lm import __version__
from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.analysis.runs import experiments_using, folders_of, runs
from lm.config.fingerprint import dotted_classes
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, flatten
from lm.inference.conversion import OWN
from lm.inference.finished import FinishedRun
from lm.report.render import markdown_list, markdown_section, markdown_table
from lm.report.tables import main_table
from lm.store.documents import KEPT, read_documents
from lm.store.metrics import METRICS, describe
from lm.store.record import Record

USE = """
```python
{imports}from transformers import AutoTokenizer, {auto}

model = {auto}.from_pretrained({folder!r})
tokenizer = AutoTokenizer.from_pretrained({folder!r})
```
"""


def model_card(run: FinishedRun, config: Tree, folder: Path) -> str:
    """Return the card of a run's model, whose `config.json` is `config`, in `folder`."""
    record, out = run.record, run.folder.resolve().parent.parent
    using = experiments_using(record["id"], runs(out).runs)
    title = using[0].name if using else f"run {record['id'][:12]}"
    pairs = config.get("is_encoder_decoder") or "decoder_start_token_id" in config
    auto = "AutoModelForSeq2SeqLM" if pairs else "AutoModelForCausalLM"
    imports = "import lm  # whose class it is: pip install 'lm-ablations[hf]'\n" if config["model_type"] == OWN else ""
    modules = sorted({name.rpartition(".")[0] for name in dotted_classes(run.config["model"])})
    imports += "".join(f"import {module}  # has classes of this model\n" for module in modules)
    lines = ["---", "library_name: transformers", "tags: [lm-ablations]", "---", "", f"# {title}", ""]
    lines += [f"A model of the family `{config['model_type']}`, run `{record['id']}` of lm-ablations {__version__}."]
    lines += [USE.format(imports=imports, auto=auto, folder=str(folder)), "## Data and budget", ""]
    lines += [*markdown_table(["", ""], [[name, value] for name, value in _budget(run)]), "", "## Metrics", ""]
    lines += [*markdown_table(["metric", "value", "95 % CI over documents"], list(_metrics(run))), ""]
    for name in dict.fromkeys(entry.experiment for entry in using):
        lines += [*_experiment(out, name, [entry.arm for entry in using if entry.experiment == name]), ""]
    return "\n".join(lines)


def _budget(run: FinishedRun) -> Iterator[tuple[str, str]]:
    """Yield what the model was trained on, and how much of it."""
    record, data = run.record, run.record["data"]
    settings = run.config["data"]["init_args"]
    for name, value in flatten({key: settings[key] for key in ("corpus", "tokenizer") if key in settings}).items():
        yield name, shown(value)
    yield "vocabulary", f"{data['vocabulary']:,}"
    for split, count in data["tokens"].items():
        yield f"tokens of {split}", f"{count:,}"
    yield "sha256 of the text", data["fingerprint"]
    yield "sha256 of the tokenizer", data["tokenizer"]
    yield "steps", "-" if record["steps"] is None else f"{record['steps']:,}"
    for name in ("tokens", "parameters", "flops_per_token", "train_seconds"):
        value = {**record["metrics"], **record["cost"]}.get(name)
        if value is not None:
            yield describe(name).label, f"{value:z,.{describe(name).digits}f} {describe(name).unit}".rstrip()


def _metrics(run: FinishedRun) -> Iterator[list[str]]:
    """Yield label, value and interval of each measured quality."""
    for name, metric in METRICS.items():
        value = run.record["metrics"].get(name)
        if value is None or metric.better is None or name in ("tokens_per_second", "train_loss"):
            continue
        low, high = interval_over_texts(run.record, run.folder, name)
        ends = "-" if math.isnan(low) else f"{low:z.{metric.digits}f} to {high:z.{metric.digits}f}"
        yield [metric.label, f"{value:z,.{metric.digits}f} {metric.unit}".rstrip(), ends]


def interval_over_texts(record: Record, folder: Path, quantity: str) -> tuple[float, float]:
    """Return the 95 % interval of a loss over new documents, that of a ratio of sums; NaN where it is not known."""
    if quantity not in KEPT or not record.get(KEPT[quantity][0]):
        return math.nan, math.nan
    try:
        losses = read_documents(folder / KEPT[quantity][1], record, quantity)
    except InputError:  # not kept
        return math.nan, math.nan
    tokens_d, count = losses.tokens_d, len(losses.tokens_d)
    mean = float(losses.nll_d.sum() / tokens_d.sum())
    if count < 2:
        return math.nan, math.nan
    error = math.sqrt(count / (count - 1) * float(np.square(losses.nll_d - mean * tokens_d).sum())) / tokens_d.sum()
    half = float(scipy.special.stdtrit(count - 1, 0.975)) * float(error)
    return mean - half, mean + half


def _experiment(out: Path, name: str, arms: list[str]) -> list[str]:
    """Return the section of an experiment: what the arm changes, and how it compares."""
    folder = folders_of(out)[name][0][0]
    try:
        results = load(folder)
    except InputError:  # a search
        return []
    lines = [f"## Experiment {name}", ""]
    for arm in arms:
        changes = results.manifest["arms"][arm]["changes"].items()
        changed = "; ".join(f"{key} {shown(after)} instead of {shown(before)}" for key, (before, after) in changes)
        lines += markdown_list([f"arm {arm}: {changed or 'the baseline'}"])
    return [*lines, *markdown_section(main_table(results, compare(results)))]
