"""Content of `lm dashboard`: progress on top, below it a report that is rebuilt when records change."""

import hashlib
import os
import threading
from pathlib import Path
from shlex import quote
from urllib.parse import urlencode

from lm.analysis.results import read_manifest
from lm.analysis.runs import folders_of, runs_of_folder
from lm.config.tree import InputError
from lm.report.web.elements import Html, digest, document, joined, listed, read_asset, table, tag
from lm.store.side_files import ProgressFile
from lm.store.store import Store

MOST_CURVES = 12  # largest number of running cells whose curves are drawn
WIDTH, HEIGHT = 360, 120  # size of such a curve in pixels

POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Board:
    """The experiments and searches of a folder, or the one in it; read-only. Raises InputError if there are none."""

    def __init__(self, folder: Path) -> None:
        runs_of_folder(folder)
        alone = any(os.path.isfile(folder / kind) for kind in ("experiment.json", "study.json"))
        self.folder = folder
        self.out = folder.resolve().parent if alone else folder
        self.only = folder.resolve().name if alone else None
        self._making = threading.Lock()
        self._reports: dict[str, tuple[str, str]] = {}

    def names(self) -> list[str]:
        """Return the names of the experiments and searches that exist now."""
        folders = folders_of(self.out)
        return [name for name in folders if self.only in (None, name)]

    def status(self) -> Html:
        """Format progress as `lm status` does."""
        from lm.report.status import status_parts  # like all that draws, after the server is up, for it takes seconds

        try:
            index = runs_of_folder(self.folder)
        except InputError as error:
            return tag("p", str(error), class_="warn")
        columns, rows, lines = status_parts(index)
        training = {run.cell: run for run in index.runs if run.state == "training"}  # several arms may share a cell
        curves = [curve(run.name, run.progress) for run in training.values() if run.progress is not None]
        drawn = tag("div", curves[:MOST_CURVES], class_="curves")
        unreadable = listed(index.unreadable, class_="warn")
        return joined(table(columns, rows) if rows else "", drawn, listed(lines), unreadable)

    def version(self, name: str) -> str:
        """Return a hash that changes when the report of an experiment or search would change."""
        stamps = []
        for folder in self._folders(name):
            store = Store(self.out)
            cells = [store.directory(cell) / "record.json" for cell in _cells(folder)]
            for path in (folder / "study.json", folder / "experiment.json", *cells):
                try:
                    stat = path.stat()
                except OSError:
                    continue
                stamps.append(f"{path} {stat.st_mtime_ns} {stat.st_size}")
        return hashlib.sha256("\n".join(stamps).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def report(self, name: str) -> str:
        """Return the page of an experiment or search. Raises KeyError for an unknown name."""
        if name not in self.names():
            raise KeyError(name)
        with self._making:  # takes seconds, so only one thread builds it
            version = self.version(name)
            made_version, page = self._reports.get(name, ("", ""))
            if made_version != version:
                page = self._made(name)
                self._reports[name] = version, page
            return page

    def _folders(self, name: str) -> list[Path]:
        return [folder for folder, _ in folders_of(self.out).get(name, [])]

    def _made(self, name: str) -> str:
        from lm.report.write import load_report, page_of

        try:
            return page_of([load_report(folder) for folder in self._folders(name)])
        except InputError as error:
            return _document(name, tag("p", f"There is no report yet: {error}"), script=False)

    def page(self, name: str | None) -> str:
        """Format the outer page with the report of this experiment, or of the first one."""
        names = self.names()
        name = name or next(iter(names), None)
        current = {name: "page"}
        links = [tag("a", each, href=f"?{query(each)}", aria_current=current.get(each, False)) for each in names]
        frame: Html | str = tag("p", "There are no experiments and no searches yet.", class_="hint")
        if name is not None:
            frame = tag(
                "iframe", id="report", src=f"report?{query(name)}", title=f"report of {name}",
                data_version=self.version(name),
            )  # fmt: skip
        top = tag("details", tag("summary", "Progress"), tag("div", self.status(), id="status"), open=True)
        text = "The dashboard does not answer; it may have been ended."
        unreachable = tag("p", text, id="away", class_="warn", hidden=True)
        return _document(f"{name or self.folder} - lm", joined(unreachable, top, tag("nav", links), frame), script=True)


def curve(name: str, progress: ProgressFile) -> Html:
    """Draw the training loss of a running cell so far, over all the steps that it is to train."""
    points = progress["curve"]
    if not points:
        return Html()
    steps = max(1, progress["steps"], points[-1][0])
    losses = [loss for _, loss in points]
    low, high = min(losses), max(losses)
    scale = HEIGHT / (high - low) if high > low else 0.0
    line = " ".join(f"{WIDTH * step / steps:z.1f},{(high - loss) * scale:z.1f}" for step, loss in points)
    summary = f"training loss {losses[0]:z.4g} at step {points[0][0]:,}, {losses[-1]:z.4g} at step {points[-1][0]:,}"
    loss = tag("polyline", points=line, fill="none", stroke="currentColor", stroke_width=2)
    axis = tag("line", x1=0, x2=WIDTH, y1=HEIGHT, y2=HEIGHT, stroke="currentColor")
    drawing = tag("svg", loss, axis, viewBox=f"-4 -4 {WIDTH + 8} {HEIGHT + 8}", role="img", aria_label=summary)
    return tag("figure", tag("figcaption", tag("strong", name), f", {summary} of {steps:,}"), drawing)


def query(name: str) -> str:
    """Return the query string that names an experiment."""
    return urlencode({"experiment": name})


def policy() -> str:
    """Return the content security policy of the outer page: its script, this server, its frame."""
    return POLICY.format(script=digest(read_asset("board.js")), style=digest(_style()))


def optuna_commands(board: Board) -> list[str]:
    """Return the commands that open the searches of a folder in Optuna's own dashboard."""
    journals = [folder / "study.journal" for name in board.names() for folder in board._folders(name)]
    return [f"optuna-dashboard {quote(str(path))}" for path in journals if path.is_file()]


def _cells(folder: Path) -> list[str]:
    try:
        return [cell for arm in read_manifest(folder)["arms"].values() for cell in arm["cells"].values()]
    except InputError:  # the report says what is wrong with it
        return []


def _document(title: str, body: Html, script: bool) -> str:
    return document(title, _style(), "", [body, tag("script", Html(read_asset("board.js"))) if script else ""])


def _style() -> str:
    return read_asset("page.css") + read_asset("board.css")
