"""`lm` with empty pictures in its reports, in a process of its own: drawing takes longer than all else of a report."""

import sys
from pathlib import Path

UNDRAWN = (sys.executable, str(Path(__file__)))
"""Before the arguments of a command."""

if __name__ == "__main__":
    import lm.report.figures
    from lm.cli import main

    lm.report.figures.rendered = lambda figure: {"png": b"", "svg": b""}
    sys.exit(main())
