"""`python -m lm` is the `lm` command."""

import sys

from lm.cli import main

if __name__ == "__main__":
    sys.exit(main())
