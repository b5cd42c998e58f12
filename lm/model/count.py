"""The former path of `lm.model.flops`, importable for one more release."""

from typing import Any

from lm.model.deprecated import resolve_old_name

NEW_NAMES = {
    "saved": "lm.model.flops.activation_numel",
    "attention_flops": "lm.model.flops.attention_flops",
    "attention_layers": "lm.model.flops.attention_layers",
}


def __getattr__(name: str) -> Any:
    return resolve_old_name(__name__, name, NEW_NAMES)
