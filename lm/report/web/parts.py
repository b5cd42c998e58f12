"""The text sections of the page: verdict, health, lost runs, provenance, commands."""

import datetime
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lm.analysis.comparability import commit_of
from lm.analysis.results import Records as Results
from lm.analysis.tidy import status_of
from lm.report.figures.chart import label
from lm.report.notes import CELLS, changes
from lm.report.tables import difference, format_verdict_cell, heading
from lm.report.web.elements import Html, joined, listed, table, tag
from lm.store.record import Provenance, Record
from lm.store.store import LOG

MOST_VERDICTS = 10
MOST_LOST, LAST_LINES, LAST_BYTES = 30, 12, 16_384
MARKS = {"better": "▲", "worse": "▼"}


def section(name: str, title: str, *content: str | Sequence[str]) -> Html:
    """Format a section with its heading; empty where it has no content."""
    inside = joined(*content)
    return tag("section", tag("h2", title, id=f"{name}-heading"), inside, id=name) if inside else Html()


# the verdict ---------------------------------------------------------------------------------------------------------


def question_section(results: Results) -> Html:
    """State arms, seeds and judged quantities of the experiment."""
    manifest = results.manifest
    count, seeds = len(results.arms), len(manifest["seeds"])
    judged = ", ".join(label(name) for name in results.judged)
    against = f", each compared with {manifest['baseline']} on the same seed" if count > 1 else ""
    line = f"{count} arm{'s' * (count != 1)} on {seeds} seed{'s' * (seeds != 1)}{against}. Judged: {judged}."
    differ = listed(changes(results))
    return joined(
        tag("h3", "Question"),
        tag("p", line),
        tag("details", tag("summary", "How the arms differ from the baseline"), differ) if differ else "",
    )


def author_section(results: Results) -> Html:
    """Format the notes in the experiment's file."""
    notes = results.manifest["notes"].strip()
    return joined(tag("h3", "Author's notes"), tag("p", notes, class_="notes")) if notes else Html()


def verdict_section(results: Results, compared: pd.DataFrame) -> Html:
    """Format the verdict on each arm; of many arms the significant ones, and a count of the others."""
    lines: list[Html] = []
    others = Counter[str]()
    rows = [row for name in results.judged for row in compared[compared.metric == name].itertuples()]
    rows = [row for row in rows if row.verdict != "baseline"]
    for row in sorted(rows, key=lambda row: not row.bold) if len(rows) > MOST_VERDICTS else rows:
        direction = kind(str(row.verdict))
        if len(lines) == MOST_VERDICTS:
            others[direction] += 1
            continue
        compared_as = f"{row.arm}, {heading(str(row.metric))}" if len(results.judged) > 1 else str(row.arm)
        mark = tag("span", MARKS.get(direction, "●"), class_="mark", aria_hidden="true")
        number = tag("span", difference(row), class_="number")
        lines.append(
            tag(
                "li",
                mark,
                tag("strong", compared_as),
                number,
                tag("span", format_verdict_cell(str(row.verdict)), class_="word"),
                class_=direction,
            )
        )
    if not lines:
        lines = [tag("li", "One arm, compared with nothing.", class_="none")]
    counted = ", ".join(
        f"{count} {'without a direction' if direction == 'none' else direction}" for direction, count in others.items()
    )
    more = tag("p", f"And {sum(others.values())} more in the table below: {counted}.") if others else ""
    return joined(tag("h3", "Results"), tag("ul", lines, class_="verdicts"), more)


def kind(verdict: str) -> str:
    """Return `better`, `worse`, or `none` for a verdict without a direction."""
    word = re.match(r"(?:exploratory: )?(better|worse)\b", verdict)
    return word[1] if word else "none"


def health_section(results: Results, notes: Sequence[str]) -> Html:
    """List training problems, and runs that were lost or are missing."""
    ill = [f"{arm}: {words}" for arm, words in results.health.items() if words]
    lines = [*ill, *notes]
    well = "Every run ended well, without a training problem."
    return joined(tag("h3", "Training problems"), listed(lines, class_="ill") or tag("p", well))


# lost runs -----------------------------------------------------------------------------------------------------------


def lost_runs_section(results: Results) -> Html:
    """List every run that diverged or failed, with the last lines of its log."""
    runs = [(key, r) for key, r in sorted(results.records.items()) if r is not None and r["status"] != "ok"]
    shown = [
        tag(
            "details",
            tag("summary", f"{arm}, seed {seed}: {record['status']}: {record['error']}"),
            tag("p", f"{CELLS / record['id']}", class_="hint"),
            tag("pre", text, class_="log") if (text := last_lines(results.store.directory(record["id"]) / LOG)) else "",
            tag("p", f"Last finite: {_pairs(record)}") if record["diverged"] else "",
            open=len(runs) == 1,
        )
        for (arm, seed), record in runs[:MOST_LOST]
    ]
    more = tag("p", f"And {len(runs) - MOST_LOST} more.") if len(runs) > MOST_LOST else ""
    return joined(shown, more)


def _pairs(record: Record) -> str:
    last = (record["diverged"] or {}).get("last_finite") or {}
    return (
        ", ".join(f"{name} {value:z.4g}" for name, value in last.items() if isinstance(value, int | float)) or "nothing"
    )


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


# where it comes from -------------------------------------------------------------------------------------------------


def provenance_section(results: Results, made_under: Sequence[str]) -> Html:
    """Format code, packages and machines behind the cells, and the list of cells."""
    records = [record for record in results.records.values() if record is not None]
    origins = [record["provenance"] for record in records]
    counted = Counter(tuple(_origin(origin)) for origin in origins)
    rows = [[*texts, str(count)] for texts, count in counted.items()]
    columns = ["lm", "commit", "Python", "packages", "machine", "device", "precision", "cells"]
    times = [time for origin in origins for time in (origin.get("started"), origin.get("finished")) if time]
    when = f"Trained between {_day(min(times))} and {_day(max(times))}." if times else ""
    return joined(
        listed(made_under),
        tag("p", when) if when else "",
        table(columns, rows) if rows else "",
        tag("details", tag("summary", "All cells"), table(["cell", "arm", "seed", "status", "steps"], _cells(results))),
    )


def _origin(provenance: Provenance) -> Iterator[str]:
    yield str(provenance.get("lm", "-"))
    yield commit_of(provenance["git"], 12)
    yield str(provenance.get("python", "-"))
    yield ", ".join(f"{name} {version}" for name, version in provenance["packages"].items())
    host, cores, threads = (provenance.get(key, "-") for key in ("host", "cores", "threads"))
    yield f"{host}, {cores} cores, {threads} threads"
    yield str(provenance.get("device", "-"))
    yield str(provenance.get("precision") or "-")


def _day(time: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _cells(results: Results) -> Iterator[list[str]]:
    for arm in results.arms:
        for seed in results.manifest["seeds"]:
            record = results.records[arm, seed]
            cell = results.manifest["arms"][arm]["cells"][str(seed)]
            yield [cell, arm, str(seed), status_of(results, arm, seed), str((record and record["steps"]) or "-")]


def rerun_section(results: Results) -> Html:
    """List the commands that reproduce the report and inspect it."""
    name, command = results.manifest["name"], results.manifest["command"]
    command_lines = (
        [
            tag("p", "Everything again, training only what is missing, where it was given first:"),
            tag("pre", shlex.join(["lm", *command])),
        ]
        if command
        else [tag("p", "The command that made it was not recorded.")]
    )
    commands = [
        (["lm", "report", name], "this report, made again from the records"),
        (["lm", "trace", name, results.arms[-1], results.headline], "the cells behind a number, and how to make each"),
        (["lm", "pack", name], "everything but the weights as one file"),
    ]
    rows: list[list[Any]] = [[tag("code", shlex.join(words)), meaning] for words, meaning in commands]
    return joined(
        command_lines,
        tag("p", f"In the folder that holds {name}/ and cells/:"),
        table(["command", "what it gives"], rows),
    )
