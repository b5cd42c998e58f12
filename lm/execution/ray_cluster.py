"""Connection of this process to a Ray cluster, or to one that it starts on this machine."""

import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping

import ray

from lm.config.tree import InputError
from lm.execution.executor_spec import reach
from lm.execution.ray_worker import remove_stale_folders

PREFIX = "lm-ray-"
"""Prefix of the folder of a cluster that this process starts."""

MEMORY_MB = 500
"""Object store of a cluster that this process starts."""

_users = [0]
"""Number of executors that share the connection; Ray has one per process."""

_folder: list[str] = []
"""Folder of a cluster that this process has started."""


def connect(options: Mapping[str, str], cpus: int) -> None:
    """Connect to a cluster unless connected, or start one with so many cores on this machine.

    Raises:
        InputError: if there is none at the address, or it cannot be started.
    """
    if _users[0] or not ray.is_initialized():
        if not _users[0]:
            _connect(options, cpus)
        _users[0] += 1


def disconnect() -> None:
    """Undo one `connect`; the last one shuts down a cluster that this process has started."""
    if not _users[0]:
        return
    _users[0] -= 1
    if not _users[0]:
        _shut_down()


def _shut_down() -> None:
    """Disconnect from Ray and delete the folder of the cluster."""
    ray.shutdown()
    for folder in _folder:
        shutil.rmtree(folder, ignore_errors=True)
    _folder.clear()


def _connect(options: Mapping[str, str], cpus: int) -> None:
    """Connect to a cluster or start one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = options.get("address")
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            os.environ.setdefault("RAY_worker_niceness", "0")  # as `local`; Ray's own is for nodes that do more
            remove_stale_folders(PREFIX)
            _folder.append(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
            ray.init(
                address="local",
                num_cpus=cpus,
                object_store_memory=int(options.get("memory", MEMORY_MB)) * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=_folder[0],
            )
        else:
            reach(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except BaseException as error:
        _shut_down()
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        message = " ".join(str(error).split())[:300]
        raise InputError(f"--executor {address or 'ray'}: {message or type(error).__name__}") from None
    finally:
        with contextlib.suppress(ValueError):  # in another thread Ray has set none
            signal.signal(signal.SIGTERM, before)


def cluster_capacity(options: Mapping[str, str], threads: int) -> int:
    """Return the number of cells that a cluster trains at a time: one per GPU, or by threads without any."""
    connect(options, 1)
    try:
        resources = ray.cluster_resources()
        return max(1, int(resources.get("GPU", 0)) or int(resources.get("CPU", 0)) // threads)
    finally:
        disconnect()
