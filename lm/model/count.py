"""The former path of `lm.model.flops`, importable for one more release."""

from typing import Any

from lm.model.deprecated import resolve_old_name

NEW_NAMES = {"saved": "activation_numel", "attention_flops": "attention_flops", "attention_layers": "attention_layers"}


def __getattr__(name: str) -> Any:
    return resolve_old_name(__name__, name, {old: f"lm.model.flops.{new}" for old, new in NEW_NAMES.items()})
