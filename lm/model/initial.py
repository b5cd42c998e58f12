"""The former path of `lm.model.initializers`, importable for one more release."""

from typing import Any

from lm.model.deprecated import resolve_old_name

NAMES = "Initializer", "Normal", "Xavier", "FanIn", "ResidualLinear", "QueryKeyLinear", "OutputLinear", "PositionTable"


def __getattr__(name: str) -> Any:
    return resolve_old_name(__name__, name, {each: f"lm.model.initializers.{each}" for each in NAMES})
