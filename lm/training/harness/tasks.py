"""Tasks of lm-evaluation-harness, https://github.com/EleutherAI/lm-evaluation-harness, measured of a trained model.

Imported only where a configuration or a command names tasks. Legend: b batch, t time, v vocabulary, d items.
"""

import contextlib
import functools
import hashlib
import inspect
import io
import itertools
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray

from lm.config.plain import shown
from lm.config.tree import InputError, Tree, nearest
from lm.data.batch import Data, tensor
from lm.data.hub import reachable_hub
from lm.data.text import TextData
from lm.data.tokenizer import token_bytes
from lm.data.tokens import TOKENIZER
from lm.model.generation import caches_for, generate, greedy
from lm.model.transformer import Decoder
from lm.store.metrics import TASK
from lm.training.process import beat

PATH = "evaluate.tasks"

try:
    import lm_eval
    from lm_eval.api.model import TemplateLM
    from lm_eval.evaluator import evaluate
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    needed = f"{PATH}: needs lm-evaluation-harness ({error}): pip install 'lm-ablations[eval]'"
    raise InputError(needed) from None

FEWSHOT_SEED = 1234  # of the examples that precede an item, the harness's own
TOKENS_AT_ONCE = 8192
NAME = re.compile(TASK, re.ASCII)
FILES = re.compile(r"""^dataset_path: *["']?(json|csv|parquet|text|arrow)\b""", re.MULTILINE)
"""Where a task's file says that its items come from files."""

WHENCE = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata", "tag")
"""Settings of a task that change nothing but where its items are found."""

logging.getLogger("lm_eval").setLevel(logging.ERROR)


# what to measure ------------------------------------------------------------------------------------------------------


def resolve_tasks(tasks: Sequence[Any], limit: int | None, context: int) -> list[Tree]:
    """Return `{task, sha256, quantities}` of tasks, each a YAML file, a name of the harness, or resolved already.

    `sha256` is of all that is computed: the first `limit` items, their prompts and answers, and how they are scored.
    Raises InputError for a task that cannot be measured of a model with this context, in tokens.
    """
    nodes = []
    for task in tasks:
        spec = task.get("task") if isinstance(task, Mapping) else task
        if not isinstance(spec, str) or not spec:
            raise InputError(f"{PATH}: expected a YAML file of the harness or the name of a task, found {shown(task)}")
        loaded = load_tasks(spec, limit)
        for name, loaded_task in loaded.items():
            _check_generation(name, loaded_task, context)
        measured = [f"{metric}@{name}" for name, loaded_task in loaded.items() for metric in loaded_task.aggregation()]
        nodes.append({"task": spec, "sha256": _hash(loaded), "quantities": measured})
    names = [quantity for node in nodes for quantity in node["quantities"]]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{PATH}: {twice} is measured by two tasks; give each task a name of its own")
    return nodes


@functools.lru_cache(maxsize=32)
def load_tasks(spec: str, limit: int | None) -> dict[str, Any]:
    """Load the tasks of a YAML file or of a name of the harness, by name, with requests for `limit` items of each."""
    path, remote, choices = Path(spec), True, list[str]()
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if not path.is_file():
            near = nearest(path.name, [other.name for other in path.parent.glob("*.y*ml")])
            raise InputError(f"{PATH}: {spec}: no such file.{near}")
        remote = not FILES.search(path.read_text(encoding="utf-8", errors="replace"))
    else:
        choices = [*(other.name for other in Path().glob("*.yaml")), *_harness().all_tasks]
        if spec not in choices:
            raise InputError(f"{PATH}: no task {spec!r} in lm_eval {lm_eval.__version__}.{nearest(spec, choices)}")
    unreachable = False
    try:
        manager = _harness() if choices else TaskManager(include_defaults=False)
        with reachable_hub("hub" if remote else ".") as unreachable, _silent():
            tasks: dict[str, Any] = manager.load([spec])["tasks"]
            for task in tasks.values():
                if task.get_config("num_fewshot") is None:
                    task.set_config(key="num_fewshot", value=0)
                task.set_fewshot_seed(seed=FEWSHOT_SEED)
                task.build_all_requests(limit=limit)
    except Exception as error:  # of the harness, of a reader of YAML or of data, of a function of the task
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if unreachable:
            raise InputError(f"{PATH}: {spec}: the hub does not answer, and this task needs it ({reason})") from None
        raise InputError(f"{PATH}: {spec}: is no task that the harness can load ({reason})") from None
    if not tasks or not all(NAME.fullmatch(name) for name in tasks):
        raise InputError(f"{PATH}: {spec}: expected tasks with names of letters, digits and _.+-, found {list(tasks)}")
    return tasks


@functools.cache
def _harness() -> TaskManager:
    """Return the index of all tasks of the harness, which takes half a minute to read."""
    return TaskManager()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide the harness's progress bars in the block."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _check_generation(name: str, task: Any, context: int) -> None:
    """Refuse a task that generates at random, or more tokens than the context holds. Raises InputError."""
    for request in task.instances:
        if request.request_type == "generate_until":
            settings = normalize_gen_kwargs(request.args[1])
            if settings["do_sample"]:
                raise InputError(f"{PATH}: {name}: draws tokens at random; expected generation_kwargs.do_sample: false")
            if settings["max_gen_toks"] >= context:
                hint = f"expected generation_kwargs.max_gen_toks below {context}, the context"
                raise InputError(f"{PATH}: {name}: generates {settings['max_gen_toks']} tokens; {hint}")


def _hash(tasks: Mapping[str, Any]) -> str:
    """Hash all that decides what is computed of tasks: requests, answers and settings; functions by their module."""

    def plain(value: Any) -> str:
        if not callable(value):
            return str(value)
        module = inspect.getmodule(value)
        return inspect.getsource(module) if module is not None else str(getattr(value, "__qualname__", type(value)))

    content = []
    for name, task in sorted(tasks.items()):
        settings = {k: v for k, v in task.config.to_dict(keep_callable=True).items() if k not in WHENCE}
        content.append(
            [name, settings, [[request.request_type, request.args, request.doc] for request in task.instances]]
        )
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=plain).encode()).hexdigest()


# measuring it ---------------------------------------------------------------------------------------------------------


def measure_tasks(trained: Any, nodes: Sequence[Tree], limit: int | None) -> dict[str, Any]:
    """Measure resolved tasks of a `TrainedCell`: results by task, and `scores` (d,) of each item by quantity.

    Raises InputError where a task is not as it was resolved.
    """
    measured, scores = dict[str, Any](), dict[str, NDArray[np.float64]]()
    for node in nodes:
        tasks = load_tasks(node["task"], limit)
        if _hash(tasks) != node["sha256"]:
            raise InputError(f"{PATH}: {node['task']}: was changed after this run was planned")
        for task in tasks.values():
            task.set_fewshot_seed(seed=FEWSHOT_SEED)  # the same examples again, as requests are made anew
        with _silent():
            output = evaluate(HarnessModel(trained), {"tasks": tasks, "groups": {}}, limit=limit, bootstrap_iters=0)
        for name in tasks:
            results, samples = output["results"][name], output["samples"][name]
            metrics = dict[str, Any]()
            for key, value in results.items():
                metric, comma, chosen = key.partition(",")
                if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                    continue
                label = metric if chosen == "none" else f"{metric}.{chosen}"
                if not NAME.fullmatch(label):
                    continue
                scores_d = _scores([sample[metric] for sample in samples if sample["filter"] == chosen], float(value))
                metrics[label] = {"value": float(value), "stderr": None}
                if scores_d is not None:
                    scores[f"{label}@{name}"] = scores_d
                    if len(scores_d) > 1:
                        metrics[label]["stderr"] = float(scores_d.std(ddof=1) / math.sqrt(len(scores_d)))
            items = len({sample["doc_id"] for sample in samples})
            source = {"task": node["task"], "sha256": node["sha256"], "harness": lm_eval.__version__}
            measured[name] = {**source, "items": items, "metrics": metrics}
    return {**measured, "scores": scores}


def _scores(values: list[Any], mean: float) -> NDArray[np.float64] | None:
    """Return the scores of the items whose mean a metric is (d,); None where it is no mean."""
    try:
        scores_d = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if scores_d.ndim != 1 or not len(scores_d) or not math.isclose(scores_d.mean(), mean, rel_tol=1e-9, abs_tol=1e-12):
        return None
    return scores_d


class HarnessModel(TemplateLM):
    """A `TrainedCell` as the harness calls a model."""

    def __init__(self, trained: Any) -> None:
        super().__init__()
        data: Data = trained.data
        if not isinstance(data, TextData) or data.facts is None:
            raise InputError(f"{PATH}: {type(data).__name__} has rows of its own; expected TextData")
        self.trained, self.context, self.end = trained, int(data.context), data.facts.end_of_text
        self.tokens = tokenizers.Tokenizer.from_file(str(Path(data.facts.folder) / TOKENIZER))
        self.tokens.encode_special_tokens = True  # as the text they look like, as in training
        self.bytes = token_bytes(self.tokens)

    @property
    def eot_token_id(self) -> int:
        """The end of a text, which stands before a text without a context."""
        if self.end is None:
            raise InputError(f"{PATH}: an item has no context, and the tokenizer no end of text to stand before it")
        return self.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Return the tokens of a text, without an end of text."""
        return list(self.tokens.encode(string, add_special_tokens=False).ids)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return log-likelihoods, in nats, of answers after their contexts, and whether each is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> list[float]:
        """Return the log-likelihood of each text, in windows of the context."""
        parts, owners = list[Any](), list[int]()
        for index, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(ids, self.eot_token_id, self.context, 1):
                parts.append((("", ""), *make_disjoint_window(window)))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, (total, _) in zip(owners, self._loglikelihood_tokens(parts), strict=True):
            totals[index] += total
        return totals

    def _loglikelihood_tokens(self, requests: Any, **options: Any) -> list[tuple[float, bool]]:
        """Score answers in batches of rows of one length, without padding; contexts are cut on the left."""
        rows = list[tuple[int, list[int], int]]()
        for index, ((_, answer), before, after) in enumerate(requests):
            if not 0 < len(after) <= self.context:
                hint = f"expected 1 to {self.context}, the context"
                raise InputError(f"{PATH}: the answer {shown(answer)} has {len(after)} tokens; {hint}")
            row = [*(before or [self.eot_token_id]), *after][-self.context - 1 :]
            rows.append((index, row, len(after)))
        scored = [(0.0, False)] * len(rows)
        rows.sort(key=lambda row: len(row[1]))
        for length, group in itertools.groupby(rows, key=lambda row: len(row[1])):
            of_length, at_once = list(group), max(1, TOKENS_AT_ONCE // length)
            for start in range(0, len(of_length), at_once):
                beat()
                part = of_length[start : start + at_once]
                tokens_bt = tensor(np.array([row for _, row, _ in part]))
                logits_btv = self.trained.forward(tokens_bt[:, :-1])
                for (index, _, count), logits_tv, tokens_t in zip(part, logits_btv, tokens_bt, strict=True):
                    answer_tv, answer_t = logits_tv[-count:], tokens_t[-count:].to(logits_tv.device)
                    exact_tv = answer_tv.to(torch.promote_types(answer_tv.dtype, torch.float32)).log_softmax(-1)
                    total = exact_tv.gather(1, answer_t[:, None]).double().sum()
                    scored[index] = float(total), bool((answer_tv.argmax(-1) == answer_t).all())
        return scored

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> list[str]:
        """Continue each context with the likeliest tokens, up to a stopping text, the end of text or enough tokens."""
        return [self._continue(*request.args) for request in requests]

    def _continue(self, prompt: str, options: dict[str, Any]) -> str:
        beat()
        settings = normalize_gen_kwargs(options)
        steps, until = settings["max_gen_toks"], settings["until"]
        ids = (self.tok_encode(prompt) or [self.eot_token_id])[-(self.context - steps) :]
        model, content, text = self.trained.model, b"", ""
        caches = caches_for(model) if isinstance(model, Decoder) else None
        with self.trained.computing():
            for token_b in generate(model, torch.tensor([ids], device=self.trained.device), steps, greedy, caches):
                if (token := int(token_b)) == self.end:
                    break
                content += self.bytes[token]
                text = content.decode(errors="replace")
                if any(stop and stop in text for stop in until):
                    break
        return str(postprocess_generated_text(text, until, None))
