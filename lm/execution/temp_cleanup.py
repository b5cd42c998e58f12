"""What a command that is killed leaves in the folder for temporary files: where its fork server could be reached."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lm.store.disk import temporary_folder
from lm.store.holders import is_of_the_dead, signature

MARK = ".lm."


def mark_owner(folder: Path) -> None:
    """Says in a folder that multiprocessing has made whose it is."""
    with contextlib.suppress(OSError):  # then it stays after a kill, and no more
        (folder / f"{MARK}{signature()}").touch()


def remove_stale_tempdirs() -> None:
    """Removes the folders of commands on this machine that were killed.

    Raises:
        InputError: where temporary files can be written nowhere.
    """
    for folder in list(Path(temporary_folder()).glob("pymp-*")):
        with contextlib.suppress(OSError):  # another command's goes as that ends, and another user's is not ours to see
            marks = [name.removeprefix(MARK) for name in os.listdir(folder) if name.startswith(MARK)]
            if any(map(is_of_the_dead, marks)):
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def stale_tempdirs_removed() -> Iterator[None]:
    """Removes them before and after: another command may be killed in between, and nobody give it again."""
    remove_stale_tempdirs()
    try:
        yield
    finally:
        remove_stale_tempdirs()
