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


class Vigil:
    """Over one process: `word` when it was heard, `look` now and then.

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

    def word(self) -> None:
        """The process was heard."""
        self.stopped.restart()
        self.quiet.restart()
        self.used = self.busy(self.pid)
        self.silent = 0.0

    def silence(self) -> float:
        """Seconds without a word; those in which nobody looked, as this process was stopped itself, count as a few."""
        now = self.clock()
        self.silent += min(now - self.looked, MOST_BETWEEN_LOOKS)
        self.looked = now
        return self.silent

    def look(self) -> str | None:
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


class Late:
    """Says something where a block takes long, and again where it takes much longer."""

    def __init__(self, line: str, say: Say) -> None:
        self.line = line
        self.say = say
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        patience = Patience(FIRST_SECONDS)
        while not self.over.wait(patience.left):
            if patience.spent():
                self.say(self.line)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
