"""All metrics: their names, units and directions, where they are shown, and the range of their values."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from lm.config.plain import shown


@dataclass(frozen=True)
class Metric:
    """Properties of a measured quantity."""

    label: str  # in tables and figures
    unit: str
    better: Literal["lower", "higher"] | None  # the better direction; None: neither
    digits: int = 4  # after the point
    per_token: bool = True  # whether it counts tokens or is a mean over them, so that it depends on the tokenizer
    in_summary_table: bool = False  # whether the first table has a column for it if it was measured
    logged_at_validation: bool = False  # whether validations measure it: it has a curve, and trials are pruned by it
    range: tuple[float, float] = (-math.inf, math.inf)  # the smallest and the largest possible value


SHARE = (0.0, 1.0)  # and the distance between two shares
ATTENTION = (0.0, 1.05)  # shares of attention add up to one, rounded to bfloat16
SIGNED = (-1.0, 1.0)
POSITIVE = (0.0, math.inf)
LOSS = (0.0, 2 * 3.5e38)  # a cross-entropy is at most the distance between two logits, which are float32
BITS = (0.0, 1.5 * LOSS[1])
SQUARES = (0.0, 2.0)  # a certain but wrong prediction is off by one in two classes
"""Ranges of the values of metrics."""

VALIDATED: dict[str, Any] = {"in_summary_table": True, "logged_at_validation": True}

METRICS: dict[str, Metric] = {
    "nll": Metric("validation NLL", "nats/token", "lower", logged_at_validation=True, range=LOSS),
    "perplexity": Metric("perplexity", "", "lower", 3, in_summary_table=True, range=(1.0, math.inf)),
    "bits_per_byte": Metric("bits per byte", "bits/byte", "lower", per_token=False, range=BITS, **VALIDATED),
    "accuracy": Metric("accuracy", "", "higher", range=SHARE, **VALIDATED),
    "ece": Metric("ECE, 15 bins", "", "lower", range=SHARE, **VALIDATED),
    "mce": Metric("largest calibration error of a bin", "", "lower", range=SHARE),
    "ece_adaptive": Metric("ECE, 15 bins of equal mass", "", "lower", range=SHARE),
    "ece_corrected": Metric("ECE less noise, of which a calibrated model keeps a quarter", "", "lower", range=SHARE),
    "ece_debiased": Metric("ECE less noise, of which a calibrated model keeps over half", "", "lower", range=SIGNED),
    "ece_floor": Metric("ECE if perfectly calibrated", "", None, range=SHARE),
    "ece_classwise": Metric("ECE, class-wise", "", "lower", 6, range=SHARE),
    "brier": Metric("Brier score", "", "lower", range=SQUARES),
    "nll_ema": Metric("NLL of averaged weights", "nats/token", "lower", logged_at_validation=True, range=LOSS),
    "test_nll": Metric("test NLL", "nats/token", "lower", range=LOSS),
    "test_perplexity": Metric("test perplexity", "", "lower", 3, range=(1.0, math.inf)),
    "test_ece": Metric("test ECE, 15 bins", "", "lower", range=SHARE),
    "test_ece_floor": Metric("test ECE if perfectly calibrated", "", None, range=SHARE),
    "test_brier": Metric("test Brier score", "", "lower", range=SQUARES),
    "temperature": Metric("temperature fitted on validation", "", None, range=POSITIVE),
    "temperature_gain": Metric("validation NLL that the temperature saves", "nats/token", None, 6),
    "argmax_changed": Metric("tokens whose best guess the temperature changed", "", None, 0, range=POSITIVE),
    "scaled_nll": Metric("test NLL at that temperature", "nats/token", "lower", range=LOSS),
    "scaled_ece": Metric("test ECE at that temperature", "", "lower", range=SHARE),
    "scaled_ece_floor": Metric("test ECE at that temperature if perfectly calibrated", "", None, range=SHARE),
    "scaled_brier": Metric("test Brier score at that temperature", "", "lower", range=SQUARES),
    "excess_nll": Metric("NLL over the entropy rate", "nats/token", "lower"),
    "train_loss": Metric("training loss", "nats/token", "lower"),
    "gradient_norm": Metric("gradient norm, mean", "", None, per_token=False, range=POSITIVE),
    "clipped_share": Metric("share of clipped steps", "", None, 3, per_token=False, range=SHARE),
    "update_ratio": Metric("update over weight norm, last", "", None, 6, per_token=False, range=POSITIVE),
    "noise_scale": Metric("gradient noise scale", "tokens", None, 0),
    "attention_entropy": Metric("attention entropy over ln n", "", None, 3, range=ATTENTION),
    "attention_logit": Metric("largest attention logit", "", None, 2),
    "attention_first": Metric("attention on the first token", "", None, 3, range=ATTENTION),
    "residual_norm": Metric("residual stream norm, last layer", "", None, 2, range=POSITIVE),
    "dead_share": Metric("dead ReLU units", "", "lower", 3, per_token=False, range=SHARE),
    "tokens_per_second": Metric("tokens per second", "1/s", "higher", 0, in_summary_table=True, range=POSITIVE),
    "step_time_median": Metric("step time, median", "s", "lower", per_token=False, range=POSITIVE),
    "step_time_p95": Metric("step time, 95th percentile", "s", "lower", per_token=False, range=POSITIVE),
    "flops_per_token": Metric("training FLOPs per token", "", None, 0, range=POSITIVE),
    "mfu": Metric("model-FLOPs utilisation", "", "higher", 3, per_token=False, range=POSITIVE),
    "data_wait": Metric("share of time waiting for data", "", "lower", 4, per_token=False, range=POSITIVE),
    "energy": Metric("energy of the device", "J", "lower", 0, per_token=False, range=POSITIVE),
    "train_seconds": Metric("training time", "s", "lower", 1, per_token=False, range=POSITIVE),
    "peak_memory": Metric("peak memory", "MiB", "lower", 0, per_token=False, range=POSITIVE),
    "parameters": Metric("parameters", "", None, 0, per_token=False, in_summary_table=True, range=POSITIVE),
    "tokens": Metric("training tokens", "", None, 0, range=POSITIVE),
}
"""Declared metrics in the order of the tables; a record may hold others, which tables list after these, as named."""

SUMMARY_METRICS = tuple(name for name, metric in METRICS.items() if metric.in_summary_table)
"""Metrics of the first table beside the headline."""

VALIDATION_METRICS = tuple(name for name, metric in METRICS.items() if metric.logged_at_validation)
"""Metrics that every validation measures."""

AT_LENGTH = {
    "nll": Metric("validation NLL, blocks of {} tokens", "nats/token", "lower", range=LOSS),
    "perplexity": Metric("perplexity, blocks of {} tokens", "", "lower", 3, range=(1.0, math.inf)),
    "sliding_nll": Metric("validation NLL, window of {} tokens", "nats/token", "lower", range=LOSS),
}

TASK = r"(?!\d+$)[\w.+-]+"
"""Pattern of the name of a task, and of a metric of one; digits alone would be a length."""

OF_TASK: dict[str, tuple[Literal["lower", "higher"], tuple[float, float]]] = {
    **dict.fromkeys(("acc", "acc_norm", "acc_mutual_info", "acc_bytes", "acc_all", "exact_match"), ("higher", SHARE)),
    **{"f1": ("higher", SHARE), "mcc": ("higher", SIGNED), "likelihood": ("higher", SHARE)},
    **dict.fromkeys(("bleu", "chrf", "chrf++"), ("higher", POSITIVE)),
    **dict.fromkeys(("ter", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"), ("lower", POSITIVE)),
    "brier_score": ("lower", SQUARES),
}
"""Direction and range of metrics of lm-evaluation-harness, as in `acc@my_task` or, after a filter, `acc.first@X`."""

AVERAGED = rf"({'|'.join(VALIDATION_METRICS)})~([2-9]|[1-9][0-9]{{1,2}})"
"""Pattern of a mean over the last 2 to 999 validations, such as `nll~3`."""

EXTRA = "extra_"
"""Beginning of the names of extra losses in training, each named by the part of the model that has it."""

ON_CORPUS = "nll_on_"
"""Beginning of the names of the NLL on each corpus of a mixture."""

NOT_METRICS = ("evaluated_tokens", "reliability", "clusters")
"""Results of an evaluation that are no metrics, but other parts of the record."""


def describe(name: str) -> Metric:
    """Return the properties of a metric, of one at a length (`nll@512`) or of a task (`acc@X`), or of a mean (`nll~3`).

    A name that is not declared is its own label.
    """
    if mean := parse_average(name):
        label = f"{METRICS[mean[0]].label}, mean of last {mean[1]}"
        return replace(METRICS[mean[0]], label=label, in_summary_table=False, logged_at_validation=False)
    if name.startswith(EXTRA):
        return Metric(f"training loss {name.removeprefix(EXTRA)}", "", "lower")
    if name.startswith(ON_CORPUS):
        return Metric(f"validation NLL on {name.removeprefix(ON_CORPUS)}", "nats/token", "lower", range=LOSS)
    base, at, length = name.partition("@")
    if is_at_length(name):
        return replace(AT_LENGTH[base], label=AT_LENGTH[base].label.format(length))
    if at:
        metric = Metric(f"{base} of {length}", "", None, per_token=False)
        better, values = OF_TASK.get(base.partition(".")[0], (None, metric.range))
        return replace(metric, better=better, range=values)
    return METRICS.get(name, Metric(name, "", None))


def is_at_length(name: str) -> bool:
    """Return True for a metric at a length in tokens, such as `nll@512`."""
    base, _, length = name.partition("@")
    return base in AT_LENGTH and length.isascii() and length.isdecimal()


def is_of_task(name: str) -> bool:
    """Return True for a metric of a task whose better direction is known, such as `acc@my_task`."""
    base, at, task = name.partition("@")
    named = re.fullmatch(TASK, base, re.ASCII) and re.fullmatch(TASK, task, re.ASCII)
    return bool(at and named and base.partition(".")[0] in OF_TASK)


def parse_average(name: str) -> tuple[str, int] | None:
    """Split a mean such as `nll~3` into the metric and the number of validations; None for another name."""
    match = re.fullmatch(AVERAGED, name)
    return (match[1], int(match[2])) if match else None


def metrics_of(measured: Mapping[str, Any]) -> tuple[dict[str, float | None], list[str]]:
    """Split the results of an evaluation into its metrics and a warning for each that is no number."""
    metrics, warnings = dict[str, float | None](), list[str]()
    for name, value in measured.items():
        if isinstance(value, int | float) and type(value) is not bool and name not in NOT_METRICS:
            metrics[name] = value
        elif name not in NOT_METRICS:
            warnings.append(f"{name}: not kept, expected a number, found {shown(value)}")
    return metrics, warnings
