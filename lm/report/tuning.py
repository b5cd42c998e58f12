"""Results of tuning: shared and tuned settings of each arm, budgets, optima at an edge, loss over parameters."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lm.analysis.compare import compare
from lm.analysis.results import Results, load
from lm.config.plain import shown
from lm.config.tree import InputError
from lm.report.render import Section
from lm.report.study import Study, edge, load_study, warnings_of
from lm.report.tables import DIFFERENCE, difference, format_verdict_cell, mean_and_sd
from lm.store.files import read_json
from lm.store.formats import TUNED
from lm.store.record import TunedManifest
from lm.store.validation import check_shape

FOLDER = "tune"
COLUMNS = (
    "arm",
    "shared settings",
    DIFFERENCE,
    "verdict",
    "tuned",
    DIFFERENCE,
    "verdict",
    "trials",
    "the winner's settings",
)


def tuning_of(results: Results, folder: Path) -> tuple[dict[str, Any], Results, dict[str, Study]] | None:
    """Load the tuning, the winners' results and each arm's study; None where tuning is absent or incomplete.

    Raises:
        InputError: if a file is damaged.
    """
    described, twin = folder / FOLDER / "tuned.json", folder.parent / f"{folder.name}.tuned"
    if not described.is_file() or not (twin / "experiment.json").is_file():
        return None
    studies = {arm: load_study(folder / FOLDER / arm) for arm in results.arms}
    tuning = TUNED.read(read_json(described), described)
    check_shape(tuning, TunedManifest, described, "run `lm ablate` again")
    if missing_arms := [arm for arm in results.arms if arm not in tuning["arms"]]:
        raise InputError(f"{described}: is damaged, has nothing of arm {shown(missing_arms[0])}; run `lm ablate` again")
    return tuning, load(twin), studies


def rows(results: Results, tuning: dict[str, Any], twin: Results, studies: dict[str, Study]) -> list[list[str]]:
    """Format the table, a row an arm."""
    table_rows, shared, tuned = [], compared(results), compared(twin)
    for arm in results.arms:
        cells = [arm, *shared[arm], *tuned[arm]]
        cells[-1] += _edges_suffix(studies, dict.fromkeys((arm, results.arms[0])))
        counts = studies[arm].trials.state.value_counts()
        spent = ", ".join(f"{counts[state]} {state}" for state in ("complete", "pruned", "failed") if state in counts)
        winner = tuning["arms"][arm]["changes"]
        settings = ", ".join(f"{path} = {_text(value)}" for path, value in (winner or {}).items())
        table_rows.append([*cells, spent, settings or "none: the shared ones"])
    return table_rows


def compared(results: Results) -> dict[str, list[str]]:
    """Return for each arm its headline mean and spread, its difference to the baseline, and the verdict."""
    table = compare(results)
    return {
        str(row.arm): [mean_and_sd(row), difference(row), format_verdict_cell(str(row.verdict))]
        for row in table[table.metric == results.headline].itertuples()
    }


def _edges_suffix(studies: dict[str, Study], arms: Iterable[str]) -> str:
    """Format the winners that lie at an end of their range, to follow a verdict."""
    edges = [
        f"{arm} at the {end} end of {name}"
        for arm in arms
        for _, best in studies[arm].best.head(1).iterrows()
        for name, described in studies[arm].space.items()
        if (end := edge(best[name], described))
    ]
    return f" ({', '.join(edges)})" if edges else ""


def _text(value: Any) -> str:
    return f"{value:z.3g}" if isinstance(value, float) else str(value)


def notes(tuning: dict[str, Any], studies: dict[str, Study]) -> list[str]:
    """Explain the tuning budget, and warn of optima at an edge."""
    seeds = ", ".join(map(str, tuning["seeds"]))
    lines = [
        f"Every arm had the same budget: {tuning['trials']} trials on seed{'s' if len(tuning['seeds']) > 1 else ''} "
        f"{seeds} by {tuning['sampler']['name']}, pruner {tuning['pruner']['name']}. The winner was frozen and trained "
        "on the seeds of the table, none of which chose it. Pruned trials enter nothing."
    ]
    return lines + [f"{arm}: {warning}" for arm, study in studies.items() for warning in warnings_of(study)]


def tuning_section(results: Results, tuning: dict[str, Any], twin: Results, studies: dict[str, Study]) -> Section:
    """Build the table of each arm at shared and at tuned settings."""
    return Section("Tuning", COLUMNS, rows(results, tuning, twin, studies), notes(tuning, studies))
