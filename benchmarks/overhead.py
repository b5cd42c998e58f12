"""What Lightning and the recorder add to a bare PyTorch loop, and what measuring every matrix every 10 steps costs.

The same training each way, in turn, in one process: milliseconds a step and ratios for two sizes of model. Run with
`make bench`.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lm.config.components import build
from lm.config.tree import load_yaml, override
from lm.model.transformer import initialized
from lm.store.store import Store
from lm.training.cell import Cell, check
from lm.training.run import Run
from lm.training.train import Execution, train

BASE = Path(__file__).parents[1] / "experiments/bases/char_tiny.yaml"
SIZES = {
    "width 32, 1 layer, 4 x 32 tokens": {
        "model.width": 32,
        "model.layers": 1,
        "data.batch_size": 4,
        "data.context": 32,
    },
    "width 64, 4 layers, 16 x 64 tokens": {},
}
STEPS, ROUNDS = 200, 5


def bare(cell: Cell) -> float:
    """Seconds a plain loop takes over the cell's training steps."""
    run: Run = build(cell.config, Run)
    data = run.data(run.seed)
    data.facts = cell.facts
    data.setup("fit")
    model = initialized(run.model, cell.facts.vocabulary, data.context, run.seed)
    optimizer, schedule = run.optim.build(model.parameters(), STEPS)
    start = time.perf_counter()
    for batch in data.training_batches(0, STEPS):
        loss = run.optim.objective.loss(model(*batch.inputs).flatten(0, 1), batch.targets_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cell.config["trainer"]["gradient_clip_val"])
        optimizer.step()
        schedule.step()
    return time.perf_counter() - start


def ours(cell: Cell) -> float:
    """Seconds the same steps take in a run, as its record has them."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        train(cell, store, lambda *_: None, Execution(threads=1))
        seconds = store.record(cell.id)["cost"]["train_seconds"]
        assert seconds is not None, "the run did not end well"
        return seconds


def compared(name: str, pairs: list[tuple[float, float]]) -> list[str]:
    """A row: the name, milliseconds a step each way, their difference, and the ratio with its range."""
    ratios = sorted(b / a for a, b in pairs)
    before, after = (1000 * statistics.median(side) / STEPS for side in zip(*pairs, strict=True))
    spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    return [name, f"{before:.2f}", f"{after:.2f}", f"{after - before:.2f}", spread]


def main() -> None:
    """Prints the tables."""
    torch.set_num_threads(1)
    overhead = Table("model", "bare ms/step", "ours ms/step", "added ms/step", "ratio (range)")
    logging = Table("model", "measured at step 1 only", "every 10 steps", "added ms/step", "ratio (range)")
    for name, changes in SIZES.items():
        fixed = {"trainer.max_steps": STEPS, "trainer.val_check_interval": 10 * STEPS, "data.corpus.size": 200_000}
        fixed["data.corpus.longest"] = 2000  # so that every split holds a document
        settings = {**fixed, **changes}
        cell = check(override(load_yaml(BASE), settings))
        seldom = check(override(load_yaml(BASE), {**settings, "trainer.log_every_n_steps": 10 * STEPS}))
        rounds = [(bare(cell), ours(cell), ours(seldom)) for _ in range(ROUNDS)][1:]  # the first round warms up
        overhead.add_row(*compared(name, [(plain, often) for plain, often, _ in rounds]))
        logging.add_row(*compared(name, [(rare, often) for _, often, rare in rounds]))
    Console().print(overhead)
    Console().print(logging)


if __name__ == "__main__":
    main()
