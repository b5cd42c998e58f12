"""Progress of training on standard error: bars in a terminal, a line a cell in a log."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from lm.execution.scheduler import Planned, Running, Watcher
from lm.report.run import whereabouts
from lm.report.status import duration
from lm.store.record import Ending
from lm.store.store import Store

LINE_SECONDS = 30.0

FEW, DRAW_SECONDS = 32, 0.5  # up to FEW running cells are drawn on every report, more of them every DRAW_SECONDS


def outcome_line(record: Ending | None, store: Store | None = None) -> str:
    """Return the outcome of a cell in a few words."""
    if record is None:
        return "interrupted; the same command takes it up again"
    if record["status"] == "ok":
        return f"validation NLL {record['metrics']['nll']:z.4f}"
    return f"{record['status']}: {record['error']}" + (whereabouts(store, record) if store else "")


class Display(Watcher):
    """Progress of `total` cells, `workers` at a time, with the time left; `expected` holds seconds by arm."""

    def __init__(
        self, total: int, workers: int, store: Store | None = None, expected: dict[str, float] | None = None
    ) -> None:
        self.console = Console(stderr=True)
        self.total, self.workers, self.store, self.expected = total, workers, store, dict(expected or {})
        self.done = 0
        self.last_line, self.last_draw = time.monotonic(), -DRAW_SECONDS
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
        disable = not self.console.is_terminal
        self.bars = Progress(*columns, console=self.console, transient=True, disable=disable)
        self.overall = self.bars.add_task("cells", total=total, note="")
        self.tasks: dict[int, TaskID] = {}

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def left(self, running: list[Running], waiting: int) -> float | None:
        """Return the seconds until all cells are done, None before any estimate is possible."""
        for cell in running:
            if cell.pace is not None:
                self.expected.setdefault(cell.planned.arm, cell.pace * cell.steps)
        if not self.expected:
            return None
        typical = sum(self.expected.values()) / len(self.expected)
        left_of_running = [typical if cell.pace is None else cell.pace * (cell.steps - cell.step) for cell in running]
        return max([(sum(left_of_running) + waiting * typical) / self.workers, *left_of_running])

    def on_progress(self, running: list[Running], waiting: int) -> None:
        """Redraw the bars of the running cells."""
        if len(running) > FEW and time.monotonic() - self.last_draw < DRAW_SECONDS:
            return
        self.last_draw = time.monotonic()
        left = self.left(running, waiting)
        note = "" if left is None else f"about {duration(left)} left"
        self.bars.update(self.overall, completed=self.done, note=note)
        slots = {cell.slot for cell in running}
        for slot in [slot for slot in self.tasks if slot not in slots]:
            self.bars.remove_task(self.tasks.pop(slot))
        for cell in running:
            if cell.slot not in self.tasks:
                self.tasks[cell.slot] = self.bars.add_task("", note="")
            loss = f"loss {cell.loss:z.3f}" if cell.step else "starting"
            bar, total = self.tasks[cell.slot], cell.steps or None
            self.bars.update(bar, description=cell.planned.name, completed=cell.step, total=total, note=loss)
        if not self.console.is_terminal and time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            at = ", ".join(f"{r.planned.name} at {r.step}/{r.steps}" for r in running)
            self.console.print(f"        {at}; {note or 'no estimate yet'}", highlight=False, soft_wrap=True)

    def on_finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        """Print the outcome of a finished cell."""
        if record is not None:
            self.done += 1
            if record["status"] == "ok":
                self.expected[planned.arm] = seconds
        outcome = f"{outcome_line(record, self.store)} ({duration(seconds)})"
        self.on_waiting(f"[{self.done}/{self.total}] {planned.name}: {outcome}")

    def on_waiting(self, line: str) -> None:
        """Print a line on what the command waits for."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def on_settled(self, name: str, outcome: str, cells: int) -> None:
        """Print the outcome of cells that were not trained here."""
        self.done += cells
        self.on_waiting(f"[{self.done}/{self.total}] {name}: {outcome}")


def step_lines() -> Callable[[int, int, float], None]:
    """Return a function that prints the progress of one run, at most a line a second and always the last."""
    console, last_line = Console(stderr=True), -1.0
    first: tuple[int, float] | None = None  # a resumed run does not begin at step 0

    def report(step: int, steps: int, loss: float) -> None:
        nonlocal first, last_line
        now = time.monotonic()
        first = first or (step, now)
        if now - last_line >= 1 or step >= steps:
            last_line, (done, since) = now, first
            left = f", about {duration((now - since) / (step - done) * (steps - step))} left" if step > done else ""
            text = f"step {step}/{steps}: training loss {loss:z.4f}{left}"
            console.print(text, highlight=False, soft_wrap=True)

    return report
