"""The text sections of the page: verdict, health, lost runs, provenance, commands."""

import datetime
import itertools
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lm.analysis.comparability import commit_of
from lm.analysis.results import Records
from lm.analysis.tidy import status_of
from lm.analysis.verdict_text import format_seeds
from lm.config.plain import shown
from lm.report.answer import brief, directed, direction, interval, most_certain
from lm.report.figures.chart import label
from lm.report.notes import CELLS, changes
from lm.report.render import Section, html_section
from lm.report.tables import compared
from lm.report.web import elements
from lm.report.web.elements import Html, joined, listed, tag
from lm.store.metrics import describe
from lm.store.record import Provenance
from lm.store.store import LOG

MOST_VERDICTS = 10
MOST_LOST, LAST_LINES, LAST_BYTES = 30, 12, 16_384
EXPLORATORY = "exploratory"
TERMS = {
    EXPLORATORY: "the arm was not declared for confirmation before training, so new seeds have to confirm the result",
    "healthy": "no run has a training problem, such as dead units or a loss that still falls",
}
"""Terms of verdicts, and their meanings."""

MARKS = {"better": "▲", "worse": "▼"}


def question_section(results: Records) -> Html:
    """State arms, seeds and judged quantities of the experiment."""
    manifest = results.manifest
    count, seeds = len(results.arms), len(manifest["seeds"])
    judged = ", ".join(label(name) for name in results.judged)
    against = f", each compared with {manifest['baseline']} on the same seed" if count > 1 else ""
    line = f"{count} arm{'s' * (count != 1)} on {seeds} seed{'s' * (seeds != 1)}{against}. Judged: {judged}."
    differ, summary = listed(changes(results)), tag("summary", "How the arms differ from the baseline")
    return joined(tag("p", line), tag("details", summary, differ) if differ else "")


def author_notes(manifest: Mapping[str, Any]) -> Html:
    """Format the notes in the file of an experiment, a search or a ladder."""
    notes = (manifest["notes"] or "").strip()
    return tag("p", notes, class_="notes") if notes else Html()


def explained(text: str) -> Html:
    """Give terms of TERMS in a text their meanings as titles."""
    parts = re.split(rf"\b({'|'.join(TERMS)})\b", text)
    return joined(tag("abbr", part, title=TERMS[part]) if part in TERMS else part for part in parts)


def terms(compared: pd.DataFrame) -> Html:
    """Explain in a line the terms that chart and table use."""
    used = [term for term in TERMS if term != EXPLORATORY or (compared.family == EXPLORATORY).any()]
    line = " ".join(f"{term.capitalize()}: {TERMS[term]}." for term in used)
    return tag("p", line, " ", tag("a", "How sure", href="#sure"), " and docs/verdicts.md say more.", class_="hint")


def cards(results: Records, table: pd.DataFrame, names: Sequence[str]) -> Html:
    """Format the verdict on each arm, the best first; of many arms those that are certain, and count the others."""
    rows = [row for name in names for row in compared(table, name)]
    shown = most_certain(rows, MOST_VERDICTS)
    left = Counter(direction(row) or "not certain" for row in rows if row not in shown)
    counted = ", ".join(f"{count} {word}" for word, count in left.items())
    more = tag("p", f"And {left.total()} more in the table below: {counted}.") if left else ""
    return joined(tag("ul", [_card(results, row) for row in shown], class_="verdicts") if shown else "", more)


def _card(results: Records, row: Any) -> Html:
    """Format one comparison: arm, verdict in a few words, interval and seeds."""
    word, words = direction(row), brief(row)
    compared_as = f"{row.arm}, {describe(str(row.metric)).label}" if len(results.judged) > 1 else str(row.arm)
    size = interval(row) if " by " in words else directed(row)  # not both, for both begin with the mean
    return tag(
        "li",
        tag("span", MARKS.get(word, "●"), class_="mark", aria_hidden="true"),
        tag("strong", compared_as),
        tag("span", words, class_="word"),
        tag("span", f"{size}, {format_seeds(row.pairs)}", class_="number") if size else "",
        class_=(word or "none") + " exploratory" * ("exploratory" in words),
    )


def health_section(results: Records, notes: Sequence[str]) -> Html:
    """List training problems, and runs that were lost or are missing."""
    lines = [*(f"{arm}: {words}" for arm, words in results.health.items() if words), *notes]
    well = "Every run ended well, without a training problem."
    return joined(tag("h3", "Training problems"), listed(lines, class_="ill") or tag("p", well))


def lost_runs_section(results: Records) -> Html:
    """List every run that diverged or failed, with the last lines of its log."""
    runs = [(key, r) for key, r in sorted(results.records.items()) if r is not None and r["status"] != "ok"]
    details = [
        tag(
            "details",
            tag("summary", f"{arm}, seed {seed}: {record['status']}: {record['error']}"),
            tag("p", f"{CELLS / record['id']}", class_="hint"),
            tag("pre", text, class_="log") if (text := last_lines(results.store.directory(record["id"]) / LOG)) else "",
            tag("p", f"Last finite: {shown(record['diverged'].get('last_finite'))}") if record["diverged"] else "",
            open=len(runs) == 1,
        )
        for (arm, seed), record in runs[:MOST_LOST]
    ]
    more = tag("p", f"And {len(runs) - MOST_LOST} more.") if len(runs) > MOST_LOST else ""
    return joined(details, more)


def last_lines(path: Path) -> str:
    """Return the last lines of a log as a terminal shows them; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        text = file.read().decode(errors="replace")
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    shown = [re.sub(r"[^\t -~\u00a0-\uffff]", "", line).rstrip() for line in lines]
    return "\n".join([line for line in shown if line][-LAST_LINES:])


def provenance_section(results: Records, made_under: Sequence[str]) -> Html:
    """Format code, packages and machines behind the cells, and the list of cells."""
    origins = [record["provenance"] for record in results.records.values() if record is not None]
    rows = [[*texts, str(count)] for texts, count in Counter(map(_origin, origins)).items()]
    columns = ["lm", "commit", "Python", "packages", "machine", "device", "precision", "cells"]
    times = [time for origin in origins for time in (origin.get("started"), origin.get("finished")) if time]
    when = [f"Trained between {_day(min(times))} and {_day(max(times))}."] if times else []
    cells = []
    for arm, seed in itertools.product(results.arms, results.manifest["seeds"]):
        record, cell = results.records[arm, seed], results.manifest["arms"][arm]["cells"][str(seed)]
        steps = str((record and record["steps"]) or "-")
        cells.append([cell, arm, str(seed), status_of(results, arm, seed), steps])
    every_cell = elements.table(["cell", "arm", "seed", "status", "steps"], cells)
    above = html_section(Section("", columns, rows, [*made_under, *when]))
    return joined(above, tag("details", tag("summary", "All cells"), every_cell))


def _origin(provenance: Provenance) -> tuple[str, ...]:
    packages = ", ".join(f"{name} {version}" for name, version in provenance["packages"].items())
    texts = {key: str(provenance.get(key, "-")) for key in ("lm", "python", "host", "cores", "threads", "device")}
    machine = f"{texts['host']}, {texts['cores']} cores, {texts['threads']} threads"
    circumstances = packages, machine, texts["device"], str(provenance.get("precision") or "-")
    return texts["lm"], commit_of(provenance["git"], 12), texts["python"], *circumstances


def _day(time: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def rerun_section(results: Records) -> Html:
    """List the commands that reproduce the report and inspect it."""
    name, command = results.manifest["name"], results.manifest["command"]
    traced = ["lm", "trace", name, results.arms[-1], results.headline]
    commands, notes = [(traced, "the cells behind a number, and how to make each")], list[str]()
    if command:
        commands.append((["lm", *command], "everything again, training only what is missing, where it was given first"))
    else:
        notes.append("The command that made it was not recorded.")
    return commands_section(f"In the folder that holds {name}/ and cells/:", name, commands, notes)


def commands_section(
    where: str, name: str, commands: Sequence[tuple[Sequence[str], str]], notes: Sequence[str] = ()
) -> Html:
    """Format commands, and what each gives, with those that report and pack."""
    report, pack = (["lm", word, name] for word in ("report", "pack"))
    pairs = [(report, "this report, made again"), *commands, (pack, "everything but the weights as one file")]
    return html_section(
        Section(
            "", ["command", "what it gives"], [[shlex.join(words), text] for words, text in pairs], notes, text=where
        )
    )
