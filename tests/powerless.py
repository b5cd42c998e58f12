"""Processes that permissions bind, though root started them, and folders that are closed to these."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

PR_CAPBSET_DROP = 24
RIGHTS = range(4)
"""Numbers of the capabilities by which root reads, writes and takes over what belongs to others (capabilities(7))."""

NOBODY = 65534


def drop_rights() -> None:
    """Give up what root may do beyond its own files, from the next program on; any other user has nothing to give up.

    To be called between fork and exec. Raises OSError where the system refuses.
    """
    if os.geteuid() != 0:
        return
    library = ctypes.CDLL(None, use_errno=True)
    for right in RIGHTS:
        if library.prctl(PR_CAPBSET_DROP, right, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def close(folder: Path, mode: int) -> None:
    """Leave a folder to another user, with this mode; where no other user can be had, to nobody at all."""
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.chmod(folder, mode)
    else:
        os.chmod(folder, mode & 0o077 | (mode & 0o007) << 6)


def reason() -> str:
    """Return why no process can be bound by permissions here, in words; empty where one can."""
    if sys.platform != "linux":
        return "needs the capabilities of Linux"
    try:
        subprocess.run([sys.executable, "-c", ""], preexec_fn=drop_rights, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot give up the rights of root: {error}"
    return ""
