"""Every quantity that is measured: how it is called, its unit, which way is better, where it is shown and compared."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lm.config.plain import shown
from lm.config.tree import nearest


@dataclass(frozen=True)
class Quantity:
    """What is to be known of a measured quantity.

    Args:
        label: what it is called.
        unit: of its values.
        better: which way is better; None: neither.
        digits: after the point.
        per_token: whether it counts tokens or is a mean over them, and means another thing where text is cut otherwise.
        shown: whether the first table has a column for it, where it was measured.
        watched: whether every validation in training measures it: it has a curve, and trials may be stopped by it.
        range: the least and the largest value that it can have.
    """

    label: str
    unit: str
    better: Literal["lower", "higher"] | None
    digits: int = 4
    per_token: bool = True
    shown: bool = False
    watched: bool = False
    range: tuple[float, float] = (-math.inf, math.inf)


SHARE = (0.0, 1.0)
"""The range of a share, and of distances between two."""

ATTENTION = (0.0, 1.05)
"""The range of a share of attention, whose sum is one to the rounding of bfloat16."""

POSITIVE = (0.0, math.inf)

LOSS = (0.0, 2 * 3.5e38)
"""The range of a cross-entropy: it is at most the distance between two logits, and these are float32 at most."""

BITS = (0.0, 1.5 * LOSS[1])

SQUARES = (0.0, 2.0)
"""The range of the Brier score: a certainty that is wrong is off by one in two classes."""

QUANTITIES: dict[str, Quantity] = {
    "nll": Quantity("validation NLL", "nats/token", "lower", watched=True, range=LOSS),
    "perplexity": Quantity("perplexity", "", "lower", 3, shown=True, range=(1.0, math.inf)),
    "bits_per_byte": Quantity(
        "bits per byte", "bits/byte", "lower", per_token=False, shown=True, watched=True, range=BITS
    ),
    "accuracy": Quantity("accuracy", "", "higher", shown=True, watched=True, range=SHARE),
    "ece": Quantity("ECE, 15 bins", "", "lower", shown=True, watched=True, range=SHARE),
    "mce": Quantity("largest calibration error of a bin", "", "lower", range=SHARE),
    "ece_adaptive": Quantity("ECE, 15 bins of equal mass", "", "lower", range=SHARE),
    "ece_corrected": Quantity("ECE less noise, of which a calibrated model keeps a quarter", "", "lower", range=SHARE),
    "ece_debiased": Quantity(
        "ECE less noise, of which a calibrated model keeps over half", "", "lower", range=(-1.0, 1.0)
    ),
    "ece_floor": Quantity("ECE if perfectly calibrated", "", None, range=SHARE),
    "ece_classwise": Quantity("ECE, class-wise", "", "lower", 6, range=SHARE),
    "brier": Quantity("Brier score", "", "lower", range=SQUARES),
    "test_nll": Quantity("test NLL", "nats/token", "lower", range=LOSS),
    "test_perplexity": Quantity("test perplexity", "", "lower", 3, range=(1.0, math.inf)),
    "test_ece": Quantity("test ECE, 15 bins", "", "lower", range=SHARE),
    "test_ece_floor": Quantity("test ECE if perfectly calibrated", "", None, range=SHARE),
    "test_brier": Quantity("test Brier score", "", "lower", range=SQUARES),
    "temperature": Quantity("temperature fitted on validation", "", None, range=POSITIVE),
    "temperature_gain": Quantity("validation NLL that the temperature saves", "nats/token", None, 6),
    "argmax_changed": Quantity("tokens whose best guess the temperature changed", "", None, 0, range=POSITIVE),
    "scaled_nll": Quantity("test NLL at that temperature", "nats/token", "lower", range=LOSS),
    "scaled_ece": Quantity("test ECE at that temperature", "", "lower", range=SHARE),
    "scaled_ece_floor": Quantity("test ECE at that temperature if perfectly calibrated", "", None, range=SHARE),
    "scaled_brier": Quantity("test Brier score at that temperature", "", "lower", range=SQUARES),
    "excess_nll": Quantity("NLL over the entropy rate", "nats/token", "lower"),
    "train_loss": Quantity("training loss", "nats/token", "lower"),
    "gradient_norm": Quantity("gradient norm, mean", "", None, per_token=False, range=POSITIVE),
    "clipped_share": Quantity("share of clipped steps", "", None, 3, per_token=False, range=SHARE),
    "update_ratio": Quantity("update over weight norm, last", "", None, 6, per_token=False, range=POSITIVE),
    "noise_scale": Quantity("gradient noise scale", "tokens", None, 0),
    "attention_entropy": Quantity("attention entropy over ln n", "", None, 3, range=ATTENTION),
    "attention_logit": Quantity("largest attention logit", "", None, 2),
    "attention_first": Quantity("attention on the first token", "", None, 3, range=ATTENTION),
    "residual_norm": Quantity("residual stream norm, last layer", "", None, 2, range=POSITIVE),
    "dead_share": Quantity("dead ReLU units", "", "lower", 3, per_token=False, range=SHARE),
    "tokens_per_second": Quantity("tokens per second", "1/s", "higher", 0, shown=True, range=POSITIVE),
    "step_time_median": Quantity("step time, median", "s", "lower", per_token=False, range=POSITIVE),
    "step_time_p95": Quantity("step time, 95th percentile", "s", "lower", per_token=False, range=POSITIVE),
    "flops_per_token": Quantity("training FLOPs per token", "", None, 0, range=POSITIVE),
    "mfu": Quantity("model-FLOPs utilisation", "", "higher", 3, per_token=False, range=POSITIVE),
    "data_wait": Quantity("share of time waiting for data", "", "lower", 4, per_token=False, range=POSITIVE),
    "energy": Quantity("energy of the device", "J", "lower", 0, per_token=False, range=POSITIVE),
    "train_seconds": Quantity("training time", "s", "lower", 1, per_token=False, range=POSITIVE),
    "peak_memory": Quantity("peak memory", "MiB", "lower", 0, per_token=False, range=POSITIVE),
    "parameters": Quantity("parameters", "", None, 0, per_token=False, shown=True, range=POSITIVE),
    "tokens": Quantity("training tokens", "", None, 0, range=POSITIVE),
}
"""The quantities that tables know, in their order; units and directions live here alone.

A record may hold other metrics: they stand in the tables under their own names, after these, and without a direction.
"""


ALSO_CALLED = {
    "loss": "nll",
    "val_loss": "nll",
    "validation_loss": "nll",
    "eval_loss": "nll",
    "cross_entropy": "nll",
    "test_loss": "test_nll",
    "training_loss": "train_loss",
    "ppl": "perplexity",
    "acc": "accuracy",
    "bpb": "bits_per_byte",
    "throughput": "tokens_per_second",
    "memory": "peak_memory",
    "params": "parameters",
}
"""Names that quantities have elsewhere, and their own."""


def nearest_quantity(name: object, choices: Sequence[str]) -> str:
    """Return ` Did you mean X?` for the quantity of `choices` that has this name elsewhere, or else the nearest."""
    own = ALSO_CALLED.get(str(name).lower().replace("-", "_").replace(" ", "_"))
    return f" Did you mean {own}?" if own in choices else nearest(name, choices)


SHOWN = tuple(name for name, quantity in QUANTITIES.items() if quantity.shown)
"""What the first table shows beside the headline."""

WATCHED = tuple(name for name, quantity in QUANTITIES.items() if quantity.watched)
"""What every validation in training measures."""

AT_LENGTH = {
    "nll": Quantity("validation NLL, blocks of {} tokens", "nats/token", "lower", range=LOSS),
    "perplexity": Quantity("perplexity, blocks of {} tokens", "", "lower", 3, range=(1.0, math.inf)),
    "sliding_nll": Quantity("validation NLL, window of {} tokens", "nats/token", "lower", range=LOSS),
}


AVERAGED = rf"({'|'.join(WATCHED)})~([2-9]|[1-9][0-9]{{1,2}})"
"""The mean of what the last 2 to 999 validations in training measured, such as `nll~3`."""


APART = ("evaluated_tokens", "reliability", "clusters")
"""What an evaluation leaves besides metrics, for other parts of the record."""


def describe(name: str) -> Quantity:
    """What a quantity is: of QUANTITIES, at a length, `nll@512`, or a mean, `nll~3`; others speak for themselves."""
    if (mean := averaged(name)) is not None:
        over = QUANTITIES[mean[0]]
        return replace(over, label=f"{over.label}, mean of last {mean[1]}", shown=False, watched=False)
    base, at, length = name.partition("@")
    if at and base in AT_LENGTH:
        return replace(AT_LENGTH[base], label=AT_LENGTH[base].label.format(length))
    return QUANTITIES.get(name, Quantity(name, "", None))


def averaged(name: str) -> tuple[str, int] | None:
    """The quantity and the number of validations of a mean such as `nll~3`; None for another name."""
    found = re.fullmatch(AVERAGED, name)
    return (found[1], int(found[2])) if found else None


def metrics_of(measured: Mapping[str, Any]) -> tuple[dict[str, float | None], list[str]]:
    """The metrics that an evaluation measured, whether QUANTITIES names them or not, and a line for each no number."""
    own = {name: value for name, value in measured.items() if name not in APART}
    kept: dict[str, float | None] = {n: v for n, v in own.items() if isinstance(v, int | float) and type(v) is not bool}
    strange = [f"{name}: not kept, expected a number, found {shown(own[name])}" for name in own if name not in kept]
    return kept, strange
