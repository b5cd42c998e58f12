"""The text sections of the page: health, lost runs, provenance, commands."""

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
from lm.config.plain import shown
from lm.report.notes import CELLS
from lm.report.render import Section, html_section
from lm.report.web import elements
from lm.report.web.elements import Html, joined, listed, tag
from lm.store.record import Provenance
from lm.store.store import LOG

MOST_LOST, LAST_LINES, LAST_BYTES = 30, 12, 16_384
TERMS = {
    "exploratory": "the arm was not declared for confirmation before training, so new seeds have to confirm the result",
    "healthy": "no run has a training problem, such as dead units or a loss that still falls",
}
"""Terms of verdicts, and their meanings."""


def author_notes(manifest: Mapping[str, Any]) -> Html:
    """Format the notes in the file of an experiment, a search or a ladder."""
    notes = (manifest["notes"] or "").strip()
    return tag("p", notes, class_="notes") if notes else Html()


def terms(compared: pd.DataFrame) -> Html:
    """Explain in a line the terms that chart and table use."""
    used = [term for term in TERMS if term != "exploratory" or (compared.family == term).any()]
    line = " ".join(f"{term.capitalize()}: {TERMS[term]}." for term in used)
    return tag("p", line, " ", tag("a", "How sure", href="#sure"), " and docs/verdicts.md say more.", class_="hint")


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


def provenance_section(results: Records) -> Html:
    """Format code, packages and machines behind the cells, and the list of cells."""
    counts, times, cells = Counter[tuple[str, ...]](), list[float](), list[list[str]]()
    for arm, seed in itertools.product(results.arms, results.manifest["seeds"]):
        record, cell = results.records[arm, seed], results.manifest["arms"][arm]["cells"][str(seed)]
        cells.append([cell, arm, str(seed), status_of(results, arm, seed), str((record and record["steps"]) or "-")])
        if record is not None:
            origin = record["provenance"]
            counts[(arm, *_origin(origin))] += 1
            times += [time for time in (origin.get("started"), origin.get("finished")) if time]
    rows = [[*texts, str(count)] for texts, count in counts.items()]
    columns = ["arm", "lm", "commit", "Python", "packages", "machine", "device", "precision", "cells"]
    when = [f"Trained between {_day(min(times))} and {_day(max(times))}."] if times else []
    every_cell = elements.table(["cell", "arm", "seed", "status", "steps"], cells)
    above = html_section(Section("", columns, rows, when))
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
