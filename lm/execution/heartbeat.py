"""Monitor of a silent process: stopped, or busy with something long."""

import time
from collections.abc import Callable

from lm.store.locks import FIRST_SECONDS, STOPPED, BackoffReporter, process_status

QUIET_SECONDS = 60.0  # silence until a running process is reported; long steps and compilation are silent too

MAX_CHECK_INTERVAL = 10.0  # seconds that the time between two checks counts at most


class SilenceMonitor:
    """Monitor of one worker's silence: call `record_activity` on every message and `check` periodically."""

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str | None] = process_status,
    ) -> None:
        self.pid, self.clock, self.state, self.last_check = pid, clock, state, clock()
        self.stopped, self.quiet = BackoffReporter(FIRST_SECONDS, clock), BackoffReporter(QUIET_SECONDS, clock)
        self.record_activity()

    def record_activity(self) -> None:
        """Record that the process has sent a message."""
        self.stopped.restart()
        self.quiet.restart()
        self.silent = 0.0

    def seconds_silent(self) -> float:
        """Return the seconds since the last message; this process may have been stopped for a part of them."""
        now = self.clock()
        self.silent += min(now - self.last_check, MAX_CHECK_INTERVAL)
        self.last_check = now
        return self.silent

    def check(self) -> str | None:
        """Return a warning line about the silence of the process, None if none is due."""
        if min(self.stopped.left, self.quiet.left) > 0:
            return None
        reporter, what = self.quiet, "lives; long steps, compilation and evaluation are silent"
        if self.state(self.pid) in STOPPED:
            reporter, what = self.stopped, "is stopped, SIGCONT lets it go on"
        return f"no word for {reporter.lasted:z.0f} s: process {self.pid} {what}" if reporter.should_report() else None
