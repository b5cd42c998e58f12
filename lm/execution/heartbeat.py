"""Watches over processes that say nothing: stopped, at work on something long, or gone without anybody saying so."""

import threading
import time
from collections.abc import Callable

from lm.store.locks import ENDED, FIRST_SECONDS, STOPPED, Patience, Say, busy_seconds, state

QUIET_SECONDS = 60.0
"""Of silence before a word is said of a process that is not stopped: long steps, compilation and evaluation are silent
too."""

MOST_BETWEEN_LOOKS = 10.0
"""Seconds that count of the time between two looks."""


class SilenceMonitor:
    """Over one process: `record_activity` when it was heard, `check` now and then.

    Args:
        pid: of the process.
        clock: of the seconds.
        state: what Linux says that a process does.
        busy: the processor time that a process has used.
    """

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str | None] = state,
        busy: Callable[[int], float | None] = busy_seconds,
    ) -> None:
        self.pid = pid
        self.state = state
        self.busy = busy
        self.stopped, self.quiet = Patience(FIRST_SECONDS, clock), Patience(QUIET_SECONDS, clock)
        self.used = busy(pid)
        self.over = False
        self.clock, self.looked, self.silent = clock, clock(), 0.0

    def record_activity(self) -> None:
        """The process was heard."""
        self.stopped.restart()
        self.quiet.restart()
        self.used = self.busy(self.pid)
        self.silent = 0.0

    def seconds_silent(self) -> float:
        """Seconds without a word; those in which nobody looked, as this process was stopped itself, count as a few."""
        now = self.clock()
        self.silent += min(now - self.looked, MOST_BETWEEN_LOOKS)
        self.looked = now
        return self.silent

    def check(self) -> str | None:
        """What is to be said of the process's silence, None where that is nothing yet."""
        if self.stopped.left > 0:
            return None
        found = self.state(self.pid)
        if found in ENDED and not self.over:  # of which the fork server is to be heard any moment
            self.over = True
            self.stopped.restart()
        if found in STOPPED or found in ENDED:
            if not self.stopped.spent():
                return None
            if found in STOPPED:
                return f"no word for {self.quiet.lasted:z.0f} s: process {self.pid} is stopped, SIGCONT lets it go on"
            return f"no word for {self.quiet.lasted:z.0f} s: process {self.pid} has ended; the fork server is silent"
        return self._quiet() if self.quiet.spent() else None

    def _quiet(self) -> str:
        now = self.busy(self.pid)
        used = "" if now is None or self.used is None else f" and has used {now - self.used:z.0f} s of a processor"
        return (
            f"no word for {self.quiet.lasted:z.0f} s: process {self.pid} lives{used}; "
            "long steps, compilation and evaluation are silent"
        )


class SlowBlockWarning:
    """Says that a block waits for a process: soon where that is stopped, and else only after long.

    Args:
        line: what is waited for; why is added.
        say: told the line, and again each time the wait has lasted thrice as long.
        pid: number of the process, None where it is not there yet.
        clock: of the seconds.
        state: what Linux says that a process does.
    """

    def __init__(
        self,
        line: str,
        say: Say,
        pid: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str | None] = state,
    ) -> None:
        self.line, self.say, self.pid, self.state = line, say, pid, state
        self.stopped, self.slow = Patience(FIRST_SECONDS, clock), Patience(QUIET_SECONDS, clock)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def check(self) -> str | None:
        """Return what is to be said of the wait, None where that is nothing yet."""
        due, long = self.stopped.spent(), self.slow.spent()
        if not (due or long):
            return None
        pid = self.pid()
        if pid is not None and self.state(pid) in STOPPED:
            return f"{self.line}: process {pid} is stopped, SIGCONT lets it go on"
        return f"{self.line}, which has not answered for {self.slow.lasted:z.0f} s" if long else None

    def _wait(self) -> None:
        while not self.over.wait(min(self.stopped.left, self.slow.left)):
            if (line := self.check()) is not None:
                self.say(line)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
