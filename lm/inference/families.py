"""Families of published models: which of our parts they have, and what `transformers` calls fields and modules.

The table is families.yaml, which lm/inference/conversion.py reads and writes `config.json` and weights by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from lm.config.tree import Tree

Names = dict[str, str]
BY_WIDTH = "1/sqrt(width)"  # a value of a setting, in place of the number


@dataclass(frozen=True)
class Family:
    """A family of models in `transformers`, whose name in `config.json` is its `model_type`.

    Args:
        model: its class.
        parts: our settings below `model` that all its models share; others are at their defaults.
        fields: its fields that say our other settings: our setting, or several of one value; a setting and the power of
            it that the field holds; our settings by value. `context` is that of the data.
        names: its modules and ours, `#` being the number of a layer; of several for one tensor, the first is written.
        fixed: fields with the only value that our parts express.
        absent: values of fields that a file may lack.
        written: fields that we write and do not read.
        other_names: older names of its fields.
        rope: types of rotary positions, of ROPE; none for other positions.
        share: of each head that is rotated, by default; None where that is all of it.
        base: of rotary positions, by default.
        windows: which layers have the window `sliding_window`: all; by `layer_types`, else every other layer, or else
            those from `max_window_layers` on; none by default.
        fused: the order of its one matrix of queries, keys and values: all queries first, or head by head.
        transposed: those of our modules whose matrices it stores as (in, out).
        zeros: tensors by name that must be zero, (1, vocabulary).
    """

    model: str
    parts: Tree
    fields: Mapping[str, Any]
    names: Names
    fixed: Tree = field(default_factory=dict)
    absent: Tree = field(default_factory=dict)
    written: Tree = field(default_factory=dict)
    other_names: Names = field(default_factory=dict)
    rope: Sequence[str] = ()
    share: float | None = None
    base: float = 10000.0
    windows: Literal["", "all", "alternate", "last"] = ""
    fused: Literal["", "parts", "heads"] = ""
    transposed: Sequence[str] = ()
    zeros: Sequence[str] = ()


ROPE: dict[str, tuple[str, Names]] = {
    "default": ("Rope", {}),
    "linear": ("RopeLinear", {"factor": "stretch"}),
    "yarn": ("RopeYarn", {"factor": "stretch", "beta_fast": "fast", "beta_slow": "slow"}),
    "llama3": (
        "RopeLlama3",
        {
            **{"factor": "stretch", "high_freq_factor": "fast", "low_freq_factor": "slow"},
            "original_max_position_embeddings": "original",
        },
    ),
}
"""Our class of each type of rotary positions, and its options by the keys of `rope_parameters`."""


def _family(names: Names, layers: Mapping[str, Names], **row: Any) -> Family:
    """Return a row of the table, with the names of the modules of each layer behind the prefix of its stack."""
    for theirs, modules in layers.items():
        inner = {name: own for name, own in modules.items() if name != "ours"}
        names = names | {f"{theirs}.#.{name}": f"{modules['ours']}.#.{own}" for name, own in inner.items()}
    return Family(names=names, **row)


_TABLE = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
FAMILIES: dict[str, Family] = {name: _family(**row) for name, row in _TABLE["families"].items()}
