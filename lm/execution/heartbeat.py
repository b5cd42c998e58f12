"""Monitors of silent processes: stopped, busy with something long, or ended without a message."""

import threading
import time
from collections.abc import Callable

from lm.store.locks import ENDED, FIRST_SECONDS, STOPPED, BackoffReporter, LogLine, cpu_seconds, process_status

QUIET_SECONDS = 60.0  # silence until a running process is reported; long steps and compilation are silent too

MAX_CHECK_INTERVAL = 10.0  # seconds that the time between two checks counts at most


class SilenceMonitor:
    """Monitor of one worker's silence: call `record_activity` on every message and `check` periodically."""

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str | None] = process_status,
        busy: Callable[[int], float | None] = cpu_seconds,
    ) -> None:
        self.pid, self.state, self.busy = pid, state, busy
        self.stopped, self.quiet = BackoffReporter(FIRST_SECONDS, clock), BackoffReporter(QUIET_SECONDS, clock)
        self.over = False
        self.clock, self.last_check = clock, clock()
        self.record_activity()

    def record_activity(self) -> None:
        """Record that the process has sent a message."""
        self.stopped.restart()
        self.quiet.restart()
        self.used, self.silent = self.busy(self.pid), 0.0

    def seconds_silent(self) -> float:
        """Return the seconds since the last message; this process may have been stopped for a part of them."""
        now = self.clock()
        self.silent += min(now - self.last_check, MAX_CHECK_INTERVAL)
        self.last_check = now
        return self.silent

    def check(self) -> str | None:
        """Return a warning line about the silence of the process, None if none is due."""
        if self.stopped.left > 0:
            return None
        process_state = self.state(self.pid)
        if process_state in ENDED and not self.over:  # the fork server will report it any moment
            self.over = True
            self.stopped.restart()
        if process_state in STOPPED:
            is_due, what = self.stopped.should_report(), "is stopped, SIGCONT lets it go on"
        elif process_state in ENDED:
            is_due, what = self.stopped.should_report(), "has ended; the fork server is silent"
        else:
            is_due, now = self.quiet.should_report(), self.busy(self.pid)
            used = "" if now is None or self.used is None else f" and has used {now - self.used:z.0f} s of a processor"
            what = f"lives{used}; long steps, compilation and evaluation are silent"
        return f"no word for {self.quiet.lasted:z.0f} s: process {self.pid} {what}" if is_due else None


class SlowBlockWarning:
    """Context manager that calls `say` while a block waits for `pid()`: soon if it is stopped, else after long."""

    def __init__(
        self,
        line: str,
        say: LogLine,
        pid: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str | None] = process_status,
    ) -> None:
        self.line, self.say, self.pid, self.state = line, say, pid, state
        self.stopped, self.slow = BackoffReporter(FIRST_SECONDS, clock), BackoffReporter(QUIET_SECONDS, clock)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def check(self) -> str | None:
        """Return a warning line about the wait, None if none is due."""
        due, long = self.stopped.should_report(), self.slow.should_report()
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
