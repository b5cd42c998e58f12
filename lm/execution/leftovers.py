"""What a command that is killed leaves in the folder for temporary files: where its fork server could be reached."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lm.store.holders import is_of_the_dead, signature

MARK = ".lm."


def mark(folder: Path) -> None:
    """Says in a folder that multiprocessing has made whose it is."""
    with contextlib.suppress(OSError):  # then it stays after a kill, and no more
        (folder / f"{MARK}{signature()}").touch()


def clear() -> None:
    """Removes the folders of commands on this machine that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"pymp-*/{MARK}*"):
        if is_of_the_dead(path.name.removeprefix(MARK)):
            shutil.rmtree(path.parent, ignore_errors=True)


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Removes them before and after: another command may be killed in between, and nobody give it again."""
    clear()
    try:
        yield
    finally:
        clear()
