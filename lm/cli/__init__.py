"""The command line of `lm`."""

import atexit
import contextlib
import sys
from collections.abc import Sequence

from lm.execution.signal_handling import INTERRUPTED, cause, end_at_once, ended_by_signals, ignore


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; return its exit code. An interrupt prints one line."""
    if arguments is not None:
        return _run(arguments)
    atexit.register(ignore)  # registered first, so it runs last
    code = INTERRUPTED
    try:
        with ended_by_signals():
            try:
                code = _run(None)
            finally:
                end_at_once(code)
    except KeyboardInterrupt:  # before the command has begun, or as it ends
        with contextlib.suppress(OSError):
            print(f"lm: {cause()}; the same command starts again", file=sys.stderr)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    from lm.cli.entry import main as run  # its imports take a while

    return run(arguments)
