"""Remove temporary folders of killed commands, in which their fork servers had their sockets."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lm.store.files import temporary_folder
from lm.store.lease_holder import is_of_exited_process, process_signature

MARK = ".lm."


def mark_owner(folder: Path) -> None:
    """Record the owner in a folder that multiprocessing has created."""
    with contextlib.suppress(OSError):  # then it stays after a kill, no worse
        (folder / f"{MARK}{process_signature()}").touch()


def remove_stale_tempdirs() -> None:
    """Remove the temporary folders of killed commands on this machine.

    Raises:
        InputError: if there is no folder for temporary files.
    """
    for folder in list(Path(temporary_folder()).glob("pymp-*")):
        with contextlib.suppress(OSError):  # of another user, or removed by its own command
            marks = [name.removeprefix(MARK) for name in os.listdir(folder) if name.startswith(MARK)]
            if any(map(is_of_exited_process, marks)):
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def stale_tempdirs_removed() -> Iterator[None]:
    """Remove stale temporary folders before and after the block.

    Once more after it, as another command may be killed meanwhile and never be run again.
    """
    remove_stale_tempdirs()
    try:
        yield
    finally:
        remove_stale_tempdirs()
