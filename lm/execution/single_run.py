"""Train one configuration in this process."""

from dataclasses import asdict, replace
from pathlib import Path

from lm.config.tree import Tree
from lm.execution.machine import threads_each
from lm.execution.progress import step_lines
from lm.inference.autotune import replace_auto_settings
from lm.report.run import describe_autotune
from lm.store.locks import to_stderr
from lm.store.store import Store
from lm.training.cell import check
from lm.training.process import Execution, tee_to_log
from lm.training.train import train


def train_single(tree: Tree, out: Path, execution: Execution, progress: bool = True, called: str = "") -> Path:
    """Train a configuration unless it is trained, with lines on stderr if `progress`; return the folder of its cell."""
    report, say = (step_lines(), to_stderr) if progress else (lambda *_: None, lambda *_: None)
    tree, decision = replace_auto_settings(tree, out, threads_each(1))
    if decision is not None:
        say(describe_autotune(asdict(decision)))
    cell, store = check(tree), Store(out)
    store.recover(cell.id)
    if store.finished(cell.id):
        say(f"already trained: {store.directory(cell.id)}")
    else:
        name = f"{called}/{cell.id[:12]}/{cell.config['seed']}"
        with tee_to_log() as on_start:
            train(cell, store, report, replace(execution, run_name=name), on_start=on_start)
    return store.directory(cell.id)
