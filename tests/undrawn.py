"""`lm` with empty pictures in its reports, in a process of its own: drawing takes longer than all else of a report."""

import signal
import sys
from pathlib import Path

UNDRAWN = (sys.executable, str(Path(__file__)))
"""Before the arguments of a command."""

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the background of a shell ignores
    import lm.report.figures.picture
    from lm.cli import main

    lm.report.figures.picture.render = lambda figure: {"png": b"", "svg": b""}
    sys.exit(main())
