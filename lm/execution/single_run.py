"""One configuration, trained in this process."""

from dataclasses import asdict
from pathlib import Path

from lm.config.tree import Tree
from lm.execution.machine import threads_each
from lm.execution.progress import step_lines
from lm.report.ways import described
from lm.runs.ways import decided
from lm.store.locks import to_stderr
from lm.store.store import Store
from lm.training.cell import check
from lm.training.log import into_log
from lm.training.train import Execution, train


def train_single(
    tree: Tree,
    out: Path,
    checkpoint_seconds: float,
    progress: bool = True,
    loggers: tuple[str, ...] = (),
    called: str = "",
) -> Path:
    """Trains what a configuration asks for, unless that is done, and returns the folder of the finished cell.

    Args:
        tree: the configuration.
        out: folder of cells and reports.
        checkpoint_seconds: between checkpoints.
        progress: whether standard error is told what `auto` came to, that a cell was trained already, and a line a
            second how far training is.
        loggers: that follow the run, by name.
        called: what they call it first, before the beginning of its id and its seed.

    Raises:
        InputError: for anything that would keep it from being trained.
    """
    report, say = (step_lines(), to_stderr) if progress else (_untold, _untold)
    tree, decision = decided(tree, out, threads_each(1))
    if decision is not None:
        say(described(asdict(decision)))
    cell, store = check(tree), Store(out)
    store.recover(cell.id)
    if store.finished(cell.id):
        say(f"already trained: {store.directory(cell.id)}")
    else:
        name = f"{called}/{cell.id[:12]}/{cell.config['seed']}"
        execution = Execution(checkpoint_seconds=checkpoint_seconds, loggers=loggers, called=name)
        with into_log() as begun:
            train(cell, store, report, execution, begun=begun)
    return store.directory(cell.id)


def _untold(*_: object) -> None:
    """In the place of who would be told."""
