"""Effect of gradient clipping on the length of steps, where the optimiser sees the scale of a gradient."""

from collections.abc import Mapping
from typing import Any

from lm.store.validation import value_at

# optimisers whose updates ignore the scale of the gradient, and whose weight decay is no part of the gradient
DECAYS_APART = frozenset(("AdamW", "Adafactor", "MuonAdamW"))
OF_PYTORCH_OPTIMIZER = frozenset(("Lion", "SOAP", "Adan", "ScheduleFreeAdamW"))
# Optimisers whose updates ignore the scale of the gradient, unless weight decay is added to the gradient. RAdam
# ignores it from its sixth update on. Adadelta is not among them: its eps of 1e-6 is added to a mean square of about
# that size.
DECAYS_IN_GRADIENT = frozenset(("Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop"))


def ignores_gradient_scale(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether updates ignore a constant factor of all gradients; False for an unknown optimiser."""
    package, _, last = name.partition(".")[0], *name.rpartition(".")[1:]
    if name in DECAYS_APART or (package == "pytorch_optimizer" and last in OF_PYTORCH_OPTIMIZER):
        return True
    decay_in_gradient = options.get("weight_decay") and not options.get("decoupled_weight_decay")
    return name in DECAYS_IN_GRADIENT and not decay_in_gradient and not options.get("initial_accumulator_value")


def sets_the_rate(record: Mapping[str, Any], configuration: Mapping[str, Any]) -> bool:
    """Return whether clipping changed how long the steps of a run were.

    Clipping by norm multiplies a gradient by a constant; clipping by value turns it too. A newer record holds what its
    optimiser declares; the configuration is resolved, and empty where it was not kept.
    """
    if value_at(configuration, "trainer/gradient_clip_algorithm") == "value":
        return True
    declared = record.get("ignores_gradient_scale")
    if isinstance(declared, bool):
        return not declared
    name, options = (value_at(configuration, f"optim/optimizer/{key}") for key in ("class_path", "init_args"))
    return not ignores_gradient_scale(str(name), options if isinstance(options, Mapping) else {})
