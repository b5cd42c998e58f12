"""Start processes from multiprocessing's fork server, and remove the temporary folders of killed commands."""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lm.config.tree import InputError
from lm.execution.heartbeat import SlowBlockWarning
from lm.store.files import temporary_folder
from lm.store.leases import PARENT_VARIABLE, is_of_exited_process, process_signature
from lm.store.locks import LogLine

PRELOAD = ["lm.execution.forkserver_preload"]  # modules that the fork server imports once

MAX_FORKSERVER_RESTARTS = 5  # fork servers that may end under a cell's process, or before it starts
# Delay before the second attempt to start a process, doubled for each further attempt. A fork server that was killed
# blocks the next one until it has ended.
PAUSE_SECONDS = 0.1

PREFIX = "pymp-"  # prefix of temporary folders, which is multiprocessing's
MARK = ".lm."  # first part of the name of the file that records the owner of a temporary folder
Body = Callable[..., None]  # function that a process runs, with a pipe to its parent as its first argument


def start_process(body: Body, arguments: tuple[Any, ...], name: str, say: LogLine) -> tuple[Any, Connection]:
    """Start `body` with a pipe, by a new fork server if need be; return the process and our end. Raises InputError."""
    context: Any = multiprocessing.get_context("forkserver")
    for attempt in range(MAX_FORKSERVER_RESTARTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        parent_pipe, child_pipe = context.Pipe()
        process = context.Process(target=_run, args=(body, child_pipe, *arguments), name=name)
        try:
            with SlowBlockWarning(f"{name}: waiting for the fork server", say, fork_server_pid):
                start_fork_server()
                process.start()
            return process, parent_pipe
        except (EOFError, ConnectionError):
            parent_pipe.close()
        finally:
            child_pipe.close()
    hint = f"ended {MAX_FORKSERVER_RESTARTS} times before it had started one; its last words are above"
    raise InputError(f"multiprocessing's fork server, which starts the processes, {hint}")


def _run(body: Body, pipe: Connection, *arguments: Any) -> None:
    """Run the body of a process that exits with the command's: an orphan would keep the cell's lock."""
    parent: Any = multiprocessing.parent_process()

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    os.environ[PARENT_VARIABLE] = str(parent.pid)
    body(pipe, *arguments)


def start_fork_server() -> None:
    """Start multiprocessing's fork server unless it runs, with Ctrl-C blocked until its first import ignores it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    mark_owner(Path(multiprocessing.util.get_temp_dir()))  # holds the server's socket on most systems
    resource_tracker.ensure_running()  # it would unblock Ctrl-C for what is started after it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_server_pid() -> int | None:
    """Return the process number of multiprocessing's fork server, None if none was started."""
    return getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)


def make_tempdir(name: str) -> Path:
    """Make a temporary folder, which a later command removes if this process is killed. Raises InputError."""
    remove_stale_tempdirs()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
    mark_owner(folder)
    return folder


def mark_owner(folder: Path) -> None:
    """Record this process as the owner of a temporary folder."""
    with contextlib.suppress(OSError):  # then it stays after a kill, no worse
        (folder / f"{MARK}{process_signature()}").touch()


def remove_stale_tempdirs() -> None:
    """Remove the temporary folders of killed commands. Raises InputError if there is no folder for temporary files."""
    for folder in list(Path(temporary_folder()).glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # of another user, or removed by its own command
            marks = [name.removeprefix(MARK) for name in os.listdir(folder) if name.startswith(MARK)]
            if any(map(is_of_exited_process, marks)):
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def stale_tempdirs_removed() -> Iterator[None]:
    """Remove stale temporary folders before and after the block, as another command may be killed meanwhile."""
    remove_stale_tempdirs()
    try:
        yield
    finally:
        remove_stale_tempdirs()
