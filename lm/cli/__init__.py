"""The command line of `lm`."""

from lm.cli.entry import main as main
