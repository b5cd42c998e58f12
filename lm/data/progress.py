"""Progress of reading and encoding text on standard error: a bar in a terminal, a line at times in a log."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn

QUIET_SECONDS, DRAW_SECONDS, LINE_SECONDS = 1.0, 0.2, 30.0


class TextProgress:
    """Display of the bytes or tokens of a text that have been read, and of their tokens; silent within a second."""

    def __init__(self, what: str, total: float | None = None, unit: str = "bytes") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.console = Console(stderr=True)
        self.has_bar = self.console.is_terminal
        self.pause = DRAW_SECONDS if self.has_bar else LINE_SECONDS
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.has_bar)
        self.done, self.tokens = 0.0, 0
        self.first: float | None = None
        self.began = time.monotonic()
        self.next = self.began + (QUIET_SECONDS if self.has_bar else LINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def advance(self, done: float) -> None:
        """Add what was done."""
        self.reach(self.done + done)

    def reach(self, done: float, tokens: int = 0, first: float = 0.0) -> None:
        """Say how far it is, and the tokens made since; it began at the `first` of these calls, of this process."""
        self.first = first if self.first is None else self.first
        self.done, self.tokens, now = done, self.tokens + tokens, time.monotonic()
        if now < self.next:
            return
        self.next, note = now + self.pause, self.note(now - self.began)
        if not self.has_bar:
            self.console.print(f"{self.what}: {note}", highlight=False, soft_wrap=True)
            return
        if not self.bar.tasks:
            self.bar.add_task(self.what, total=self.total, note="")
            self.bar.start()
        self.bar.update(self.bar.tasks[0].id, completed=done, note=note)

    def note(self, seconds: float) -> str:
        """Describe how far it has come in `seconds`."""
        note = decimal(int(self.done)) if self.unit == "bytes" else f"{self.done / 1e6:z.1f}M {self.unit}"
        note += f", {100 * self.done / self.total:z.0f} %" if self.total else ""
        note += f", {self.tokens / seconds:z,.0f} tokens/s" if self.tokens else ""
        if self.total and self.done > (self.first or 0.0):
            left = max(0.0, (self.total - self.done) / (self.done - (self.first or 0.0)) * seconds)
            note += f", about {timedelta(seconds=round(left))} left"
        return note
