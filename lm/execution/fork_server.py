"""Start processes from multiprocessing's fork server."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.connection import Connection
from typing import Any

from lm.config.tree import InputError
from lm.store.locks import PARENT_VARIABLE

PRELOAD = ["lm.execution.forkserver_preload"]  # modules that the fork server imports once

MAX_FORKSERVER_RESTARTS = 5  # fork servers that may end under a cell's process, or before it starts
# Delay before the second attempt to start a process, doubled for each further attempt. A fork server that was killed
# blocks the next one until it has ended.
PAUSE_SECONDS = 0.1

Body = Callable[..., None]  # function that a process runs, with a pipe to its parent as its first argument


def start_process(body: Body, arguments: tuple[Any, ...], name: str) -> tuple[Any, Connection]:
    """Start `body` with a pipe, by a new fork server if need be; return the process and our end. Raises InputError."""
    context: Any = multiprocessing.get_context("forkserver")
    for attempt in range(MAX_FORKSERVER_RESTARTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        parent_pipe, child_pipe = context.Pipe()
        process = context.Process(target=_run, args=(body, child_pipe, *arguments), name=name)
        try:
            start_fork_server()
            with _main_left_out():
                process.start()
            return process, parent_pipe
        except (EOFError, ConnectionError):
            parent_pipe.close()
        finally:
            child_pipe.close()
    hint = f"ended {MAX_FORKSERVER_RESTARTS} times before it had started one; its last words are above"
    raise InputError(f"multiprocessing's fork server, which starts the processes, {hint}")


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    """Keep processes from importing the script of this one, which no cell needs.

    A script without the guard `if __name__ == "__main__"` would run again in each, and one from standard input has no
    file.
    """
    prepare = spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}

    spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare


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
    """Start multiprocessing's fork server unless it runs, with Ctrl-C blocked until its first import ignores it.

    Its imports take seconds, in which this process may go on. Raises InputError for a TMPDIR that is too long.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # it would unblock Ctrl-C for what is started after it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    except OSError as error:
        if "AF_UNIX path too long" not in str(error):
            raise
        problem = f"TMPDIR: {tempfile.gettempdir()} is too long for the path of a socket"
        raise InputError(f"{problem}; name a shorter folder, as in TMPDIR=/var/tmp") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    atexit.unregister(_end_fork_server)
    atexit.register(_end_fork_server)


def _end_fork_server() -> None:
    """End the fork server, which may still import, and holds a pipe of standard output open."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None and not multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
