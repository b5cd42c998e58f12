"""What a person sees while cells train: bars in a terminal, a line a cell in a log. Written to standard error."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from lm.execution.cell_queue import Planned
from lm.execution.estimate import duration
from lm.execution.watcher import Running, Watcher
from lm.report.failure import whereabouts
from lm.store.record import Ending
from lm.store.store import Store

LINE_SECONDS = 30.0

FEW, DRAW_SECONDS = 32, 0.5
"""Cells in training that are drawn whenever one reports; more of them are drawn now and then."""


def outcome_line(record: Ending | None, store: Store | None = None) -> str:
    """A cell's end in a few words."""
    if record is None:
        return "interrupted; the same command takes it up again"
    if record["status"] == "ok":
        return f"validation NLL {record['metrics']['nll']:z.4f}"
    return f"{record['status']}: {record['error']}" + (whereabouts(store, record) if store else "")


class Display(Watcher):
    """Progress over `total` cells with an estimate of what is left, from the speed seen so far.

    Args:
        total: cells to train.
        workers: that train at the same time.
        store: where the cells come to lie.
        expected: seconds a cell of each arm is expected to take, where something is known.
    """

    def __init__(
        self, total: int, workers: int, store: Store | None = None, expected: dict[str, float] | None = None
    ) -> None:
        self.console = Console(stderr=True)
        self.total = total
        self.workers = workers
        self.store = store
        self.expected = dict(expected or {})
        self.done = 0
        self.spoken = time.monotonic()
        self.drawn = -DRAW_SECONDS
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.overall = self.bars.add_task("cells", total=total, note="")
        self.tasks: dict[int, TaskID] = {}

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def left(self, running: list[Running], waiting: int) -> float | None:
        """Seconds until all cells are done, or None before anything is known."""
        for one in running:
            if one.pace is not None:
                self.expected.setdefault(one.planned.arm, one.pace * one.steps)
        if not self.expected:
            return None
        typical = sum(self.expected.values()) / len(self.expected)
        of_running = [typical if one.pace is None else one.pace * (one.steps - one.step) for one in running]
        return max([(sum(of_running) + waiting * typical) / self.workers, *of_running])

    def progress(self, running: list[Running], waiting: int) -> None:
        if len(running) > FEW and time.monotonic() - self.drawn < DRAW_SECONDS:
            return
        self.drawn = time.monotonic()
        left = self.left(running, waiting)
        note = "" if left is None else f"about {duration(left)} left"
        self.bars.update(self.overall, completed=self.done, note=note)
        places = {one.place for one in running}
        for place in [place for place in self.tasks if place not in places]:
            self.bars.remove_task(self.tasks.pop(place))
        for one in running:
            if one.place not in self.tasks:
                self.tasks[one.place] = self.bars.add_task("", note="")
            loss = f"loss {one.loss:z.3f}" if one.step else "starting"
            self.bars.update(
                self.tasks[one.place],
                description=one.planned.name,
                completed=one.step,
                total=one.steps or None,
                note=loss,
            )
        if not self.console.is_terminal and time.monotonic() - self.spoken > LINE_SECONDS:
            self.spoken = time.monotonic()
            at = ", ".join(f"{r.planned.name} at {r.step}/{r.steps}" for r in running)
            self.console.print(f"        {at}; {note or 'no estimate yet'}", highlight=False, soft_wrap=True)

    def finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        if record is not None:
            self.done += 1
            if record["status"] == "ok":
                self.expected[planned.arm] = seconds
        self.console.print(
            f"[{self.done}/{self.total}] {planned.name}: {outcome_line(record, self.store)} ({duration(seconds)})",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def waiting(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def settled(self, name: str, outcome: str, cells: int) -> None:
        self.done += cells
        line = f"[{self.done}/{self.total}] {name}: {outcome}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def step_lines() -> Callable[[int, int, float], None]:
    """Reports of one run as lines, at most one a second and always the last."""
    console, spoken = Console(stderr=True), [-1.0]
    first: list[tuple[int, float]] = []  # a resumed run does not begin at step 0

    def report(step: int, steps: int, loss: float) -> None:
        now = time.monotonic()
        if not first:
            first.append((step, now))
        if now - spoken[0] < 1 and step < steps:
            return
        spoken[0] = now
        done, since = first[0]
        left = f", about {duration((now - since) / (step - done) * (steps - step))} left" if step > done else ""
        text = f"step {step}/{steps}: training loss {loss:z.4f}{left}"
        console.print(text, highlight=False, soft_wrap=True)

    return report
