"""A Ray cluster of three nodes on this machine, of which one is lost."""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from faults.database import free_port
from faults.place import LOOK_SECONDS, StuckError, end, marked, parent
from faults.trial import Trial, last_line

NODE = "LM_CHAOS_NODE"
"""In the environment of every process of a node: its folder."""

MEMORY = 80 * 2**20
"""Bytes of what a node keeps for others."""

UP_SECONDS = 300.0
"""For a node to be there."""

PORTS = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
"""Free ones, where each node would take the same as the others."""

SAID = "said.txt"
"""What a node says, in its folder."""


def no_ray() -> str:
    """Why there can be no cluster; nothing where there can."""
    return "" if importlib.util.find_spec("ray") is not None else "needs the extra ray"


def node(trial: Trial) -> None:
    """End all processes of a node while both train a cell; the lost cell goes on at the other from its checkpoint."""
    place = trial.place
    with cluster() as (address, nodes, secret):
        place.more = ("--workers", "2", "--executor", f"ray:address={address}")
        process = place.start(secret)
        both = lambda: [stopped_in_training(node, place.out / "cells") for node in nodes] == [True, True]  # noqa: E731
        if not place.until(both, process):
            raise StuckError("the command ended before each node had a cell with a checkpoint")
        lost = nodes.pop(trial.random.randrange(2))
        _lose(lost)
        trial.hit("a node")
        _signal(_trainers(nodes[0]), signal.SIGCONT)
        place.ended(process)


def stopped_in_training(node: Path, cells: Path) -> bool:
    """Stop the training process of a node once its cell has a checkpoint, so that the cell cannot end meanwhile.

    Args:
        node: folder of the node.
        cells: folder of the cells of the command.

    Returns:
        True once the command has the checkpoint of the stopped cell.
    """
    checkpoint = ".*.work/last.ckpt"
    if not any((node / "tmp").glob(f"*/*/cells/{checkpoint}")):
        return False
    trainers = _trainers(node)
    _signal(trainers, signal.SIGSTOP)
    stopped = list((node / "tmp").glob(f"*/*/cells/{checkpoint}")) if trainers else []
    if not stopped:  # the cell has ended since
        _signal(trainers, signal.SIGCONT)
    return any((cells / path.parent.name / path.name).exists() for path in stopped)


def _trainers(node: Path) -> list[int]:
    """Return the processes of a node that train, which its fork servers have started."""
    commands = marked(f"{NODE}={node}")
    return [pid for pid in commands if "forkserver" in commands.get(parent(pid) or 0, "")]


def _signal(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to processes, except those that have ended."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def cluster() -> Iterator[tuple[str, list[Path], Mapping[str, str]]]:
    """The address of a head without cores, the folders of two nodes of one core, each with a cache of its own, and what
    whoever connects to it has in the environment."""
    top = Path(tempfile.mkdtemp(prefix="lm-ray-"))
    folders, port, secret = [top / name for name in ("head", "1", "2")], free_port(), token()
    address = f"127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for folder in folders:
            head = folder is folders[0]
            own = ["--head", f"--port={port}", f"--temp-dir={top / 'ray'}", "--include-dashboard=false"]
            which = [*own, "--num-cpus=0", *_clients()] if head else [f"--address={address}", "--num-cpus=1"]
            started.append(_start(folder, [*which, f"--object-store-memory={MEMORY}", *PORTS, "--block"], secret))
            _wait(started[-1], folder)
        yield address, folders[1:], secret
    finally:
        for folder in folders:
            _lose(folder)
        for process in started:
            process.wait()
        shutil.rmtree(top, ignore_errors=True)


def token() -> dict[str, str]:
    """What the processes of a cluster know each other by, of its own and in no file.

    Without, a head takes the one that Ray has left in `~/.ray` when a program started a cluster; what joins the head
    takes none by itself, and is turned away.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _clients() -> list[str]:
    """A free port for connections from outside, which a head listens for where it can."""
    return [f"--ray-client-server-port={free_port()}"] if importlib.util.find_spec("grpc") is not None else []


def _start(folder: Path, options: list[str], secret: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Starts a node; what it says goes into a file."""
    (folder / "tmp").mkdir(parents=True)
    own = {NODE: str(folder), "LM_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), **secret}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *options]
    with (folder / SAID).open("wb") as log:
        streams: dict[str, Any] = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(
            command, env={**environment, **own, "PYTHONPATH": path}, start_new_session=True, **streams
        )


def _wait(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Waits until a node says that it is there. Raises StuckError where it does not."""
    deadline = time.monotonic() + UP_SECONDS
    while "Ray runtime started" not in (said := (folder / SAID).read_text(encoding="utf-8", errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise StuckError(f"a node of the cluster did not start: {last_line(said)}")
        time.sleep(10 * LOOK_SECONDS)


def _lose(folder: Path) -> None:
    """Ends all processes of a node, and those that they were about to start."""
    while found := marked(f"{NODE}={folder}"):
        for pid in found:
            end(pid)
        time.sleep(LOOK_SECONDS)
