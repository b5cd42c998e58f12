"""A Ray cluster of three nodes on this machine, of which one is lost."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.chaos.database import free_port
from lm.chaos.place import LOOK_SECONDS, StuckError, end, marked
from lm.chaos.trial import Trial

NODE = "LM_CHAOS_NODE"
"""In the environment of every process of a node: its folder."""

MEMORY = 80 * 2**20
"""Bytes of what a node keeps for others."""

UP_SECONDS = 300.0
"""For a node to be there."""


def no_ray() -> str:
    """Why there can be no cluster; nothing where there can."""
    return "" if importlib.util.find_spec("ray") is not None else "needs the extra ray"


def node(trial: Trial) -> None:
    """Ends all processes of a node after both have left a checkpoint; its cell goes on at the other."""
    place = trial.place
    with cluster() as (address, nodes):
        place.more = ("--workers", "2", "--executor", f"ray:address={address}")
        process = place.start()
        both = lambda: len(list((place.out / "cells").glob(".*.work/last.ckpt"))) == 2  # noqa: E731
        if not place.until(both, process):
            raise StuckError("no two cells were seen in training at a time")
        _lose(nodes[trial.random.randrange(2)])
        trial.hit("a node")
        place.ended(process)


@contextlib.contextmanager
def cluster() -> Iterator[tuple[str, list[Path]]]:
    """The address of a head without cores, and the folders of two nodes of one core, each with a cache of its own."""
    top = Path(tempfile.mkdtemp(prefix="lm-ray-"))
    folders, port = [top / name for name in ("head", "1", "2")], free_port()
    address = f"127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for folder in folders:
            head = folder is folders[0]
            own = ["--head", f"--port={port}", f"--temp-dir={top / 'ray'}", "--include-dashboard=false"]
            which = [*own, "--num-cpus=0"] if head else [f"--address={address}", "--num-cpus=1"]
            started.append(_started(folder, [*which, f"--object-store-memory={MEMORY}", "--block"]))
        yield address, folders[1:]
    finally:
        for folder in folders:
            _lose(folder)
        for process in started:
            process.wait()
        shutil.rmtree(top, ignore_errors=True)


def _started(folder: Path, options: list[str]) -> "subprocess.Popen[bytes]":
    """Starts a node and waits until it says that it is there."""
    (folder / "tmp").mkdir(parents=True)
    own = {NODE: str(folder), "LM_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / "said.txt").open("wb") as log:
        streams: dict[str, Any] = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
        command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *options]
        process = subprocess.Popen(
            command, env={**environment, **own, "PYTHONPATH": path}, start_new_session=True, **streams
        )
    deadline = time.monotonic() + UP_SECONDS
    while "Ray runtime started" not in (folder / "said.txt").read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise StuckError("a node of the cluster did not start")
        time.sleep(10 * LOOK_SECONDS)
    return process


def _lose(folder: Path) -> None:
    """Ends all processes of a node, and those that they were about to start."""
    while found := marked(f"{NODE}={folder}"):
        for pid in found:
            end(pid)
        time.sleep(LOOK_SECONDS)
