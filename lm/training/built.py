"""The parts of a cell, built from its resolved configuration."""

from dataclasses import dataclass

from lm.config.components import blame, build
from lm.config.tree import Tree
from lm.data.batch import Data
from lm.data.tokens import TextStats
from lm.model.transformer import Model, build_and_initialize
from lm.training.run import RunConfig


@dataclass(frozen=True)
class BuiltCell:
    """The parts of a cell, built, with its prepared text."""

    run: RunConfig
    data: Data
    facts: TextStats

    def model(self) -> Model:
        """Return the model, initialised by the cell's seed."""
        return build_and_initialize(self.run.model, self.facts.vocabulary, self.data.context, self.run.seed)


def build_cell(config: Tree, facts: TextStats) -> BuiltCell:
    """Build the parts of a cell."""
    run: RunConfig = build(config, RunConfig)
    return BuiltCell(run, build_data(run, facts), facts)


def build_data(run: RunConfig, facts: TextStats | None = None) -> Data:
    """Return the data of a run, with `facts` of its prepared text ready to be read."""
    with blame("data"):
        data = run.data(run.order_seed)
    if run.evaluate is not None:
        data.evaluation_tokens = run.evaluate.tokens
    if facts is not None:
        data.facts = facts
        data.setup("fit")
    return data
