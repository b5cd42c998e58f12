"""The connection of this process to a Ray cluster, which may be one that it starts on this machine for the purpose."""

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
"""Of the folder of a cluster that is started for the purpose."""

MEMORY_MB = 500
"""Of the object store of a cluster that is started for the purpose."""

_users = [0]
"""Executors of this process that use the connection which the first of them has made; Ray has one a process."""

_folder: list[str] = []
"""Of the cluster that was started for the purpose."""


def connect(options: Mapping[str, str], cpus: int) -> None:
    """Connects this process to a cluster, unless it is connected, or starts one with so many cores on this machine.

    Raises:
        InputError: where there is none at the address, or it cannot be started.
    """
    if _users[0] or not ray.is_initialized():
        if not _users[0]:
            _connect(options, cpus)
        _users[0] += 1


def disconnect() -> None:
    """Undoes one `connect`: the last one shuts down what was started, and leaves alone what was there."""
    if not _users[0]:
        return
    _users[0] -= 1
    if not _users[0]:
        _shut_down()


def _shut_down() -> None:
    ray.shutdown()
    for folder in _folder:
        shutil.rmtree(folder, ignore_errors=True)
    _folder.clear()


def _connect(options: Mapping[str, str], cpus: int) -> None:
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
        said = " ".join(str(error).split())[:300]
        raise InputError(f"--executor {address or 'ray'}: {said or type(error).__name__}") from None  # in its words
    finally:
        with contextlib.suppress(ValueError):  # in another thread Ray has set none
            signal.signal(signal.SIGTERM, before)


def cluster_capacity(options: Mapping[str, str], threads: int) -> int:
    """How many cells of so many threads a cluster that is there trains at a time: one a GPU, where it has any."""
    connect(options, 1)
    try:
        there = ray.cluster_resources()
        return max(1, int(there.get("GPU", 0)) or int(there.get("CPU", 0)) // threads)
    finally:
        disconnect()
