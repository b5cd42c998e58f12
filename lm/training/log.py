"""What a process prints while it trains a cell, put into the cell's log too."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from lm.store.redaction import redacted
from lm.store.store import LOG


@contextlib.contextmanager
def into_log() -> Iterator[Callable[[Path], None]]:
    """Yields what puts all that Python prints from then on into the log of a work folder too, for `train` to call."""
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as files:

        def begin(work: Path) -> None:
            log = files.enter_context(open(work / LOG, "a", encoding="utf-8", buffering=1))
            sys.stdout, sys.stderr = (one and cast(TextIO, Both(one, log)) for one in before)

        try:
            yield begin
        finally:
            sys.stdout, sys.stderr = before


class Both:
    """A stream of text whose content goes into a log too."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self.stream, self.log = stream, log

    def write(self, text: str) -> int:
        if not self.log.closed:  # a handler made in training may keep the stream for longer
            self.log.write(redacted(text))
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
