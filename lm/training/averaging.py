"""An exponential moving average of a model's weights, evaluated beside the last ones."""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

OPTIONS = ("decay", "half_life")


def average_decay(options: dict[str, float] | None) -> float | None:
    """Return the decay of `trainer.ema`, `{decay: D}` or `{half_life: STEPS}`. Raises ValueError for other options."""
    if options is None:
        return None
    if len(options) != 1 or (name := next(iter(options))) not in OPTIONS:
        raise ValueError(f"ema={options}: expected one of {{decay: 0.999}} and {{half_life: 500}} (in steps)")
    value = options[name]
    if name == "half_life":
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"ema: half_life={value} must be a number of steps above 0")
        value = 0.5 ** (1 / value)
    if not 0 < value < 1:
        raise ValueError(f"ema: {name}={options[name]} must give a decay between 0 and 1")
    return value


class WeightAverage:
    """The mean of the trainable weights after each step, those of k steps ago weighted by decay^k.

    With weights that add up to one from the first step on (Kingma and Ba 2015, section 3,
    https://arxiv.org/abs/1412.6980): a_t = a_{t-1} + (w_t - a_{t-1}) (1 - decay) / (1 - decay^t), in float32 at least.
    Buffers are those of the model.
    """

    STATE_KEYS = ("updates", "values")

    def __init__(self, decay: float) -> None:
        self.decay, self.updates, self.values = decay, 0, dict[str, Tensor]()

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the weights after an optimiser step."""
        self.updates += 1
        share = (1 - self.decay) / (1 - self.decay**self.updates)
        parameters = [(name, p.detach()) for name, p in model.named_parameters() if p.requires_grad]
        weights = {name: p.to(torch.promote_types(p.dtype, torch.float32)) for name, p in parameters}
        if not self.values:
            self.values = {name: weight.clone() for name, weight in weights.items()}
            return
        means = [self.values[name].to(weight.device) for name, weight in weights.items()]
        torch._foreach_lerp_(means, list(weights.values()), share)
        self.values = dict(zip(weights, means, strict=True))

    @contextlib.contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the average in a block, and its own weights back."""
        parameters = {name: p for name, p in model.named_parameters() if name in self.values}
        own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        try:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(self.values[name])
            yield
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(own[name])
