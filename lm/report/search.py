"""Everything a search's folder shows, rebuilt from its study.json."""

from pathlib import Path

from rich.console import Console

from lm.report.importance import FEWEST, Importance, importances
from lm.report.study import Study, importance_lines, load_study, markdown, terminal
from lm.report.study_figures import draw_study
from lm.report.tables import as_csv
from lm.store.files import write_atomic


def write_study(folder: Path, console: Console) -> Study:
    """Prints the table, and writes trials.csv, the figures and table.md into `folder`."""
    study = load_study(folder)
    write_atomic(folder / "trials.csv", as_csv(study.trials))
    if len(study.complete) < FEWEST:
        found: dict[str, list[Importance]] | str = (
            f"{len(study.complete)} complete trials are too few; it takes {FEWEST}."
        )
    else:
        found = importances(study.complete, list(study.objectives), study.space)
    lines = importance_lines(found)
    write_atomic(folder / "table.md", markdown(study, lines, draw_study(study, folder)))
    terminal(study, lines, console)
    return study
