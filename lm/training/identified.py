"""A cell as plans and executors know it, and its settings that are `auto`; without torch until the cell is opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lm.config.tree import Tree
from lm.data.tokens import TextStats

if TYPE_CHECKING:
    from lm.training.run import BuiltCell

# settings that may be `auto` at the start of an experiment, and their choices, the plain one first
AUTO: dict[str, tuple[Any, ...]] = {
    "precision": ("32-true", "bf16-mixed"),
    "attention": ("sdpa", "folded", "plain", "blocked", "flex"),
    "compile": (False, True),
}


@dataclass(frozen=True)
class Cell:
    """One run, checked and identified."""

    config: Tree  # resolved
    facts: TextStats
    id: str  # the hash of all that determines its numbers

    def open(self) -> "BuiltCell":
        """Build the parts of the cell."""
        from lm.training.run import build_cell

        return build_cell(self.config, self.facts)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a cell that follow from its shape."""

    parameters: int  # trainable ones, shared ones counted once
    flops_per_token: float | None  # of training; None if a part of the model has no known count
    tokens_per_step: int  # predicted tokens of the first optimiser step; the mean of all where a plan changes them


def seedless(config: Tree) -> Tree:
    """Return what configurations that differ only in their seeds have in common."""
    return {key: None if key == "seed" else value for key, value in config.items() if key != "data_seed"}


def auto_settings_requested(tree: Mapping[str, Any]) -> list[str]:
    """Return the settings of a configuration that are `auto`."""
    trainer = tree.get("trainer")
    return [name for name in AUTO if isinstance(trainer, Mapping) and trainer.get(name) == "auto"]
