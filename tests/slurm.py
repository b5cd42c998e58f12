"""A SLURM of a test's own on this machine: munged, slurmctld and a slurmd of two cores, gone when the test is over."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo")
PATIENCE = 60.0
"""Seconds in which the node must have come to be idle."""

CONFIGURATION = """
ClusterName=lm
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
    """The environment in which commands find a running SLURM; skips the test where it cannot be had."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}, of Debian's munge, slurmctld, slurmd and slurm-client")
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, contextlib.ExitStack() as stack:
        place, host = Path(folder), socket.gethostname().partition(".")[0]
        place.chmod(0o755)
        key, settings = place / "munge.key", place / "slurm.conf"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for name in ("state", "spool"):
            (place / name).mkdir()
        values = {
            "host": host,
            "controller": free_port(),
            "node": free_port(),
            "user": getpass.getuser(),
            "place": place,
        }
        settings.write_text(CONFIGURATION.format(**values))
        environment = {**os.environ, "SLURM_CONF": str(settings)}
        files = {"key-file": key.name} | {f"{name}-file": f"munge.{name}" for name in ("pid", "log", "seed")}
        munge = ["munged", "--foreground", f"--socket={place}/munge.socket"]
        munge += [f"--{option}={place}/{name}" for option, name in files.items()]
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            stack.callback(_end, _start(command, environment, place))
            if command is munge:
                _until(lambda: (place / "munge.socket").exists(), place)
        _until(lambda: "idle" in said(["sinfo", "-h", "-o", "%T"], environment), place)
        yield {"SLURM_CONF": str(settings)}


def said(command: list[str], environment: dict[str, str]) -> str:
    """What a command of SLURM's prints."""
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True).stdout


def _start(command: list[str], environment: dict[str, str], place: Path) -> "subprocess.Popen[bytes]":
    with (place / f"{command[0]}.out").open("wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _until(done: Callable[[], bool], place: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            printed = " ".join(path.read_text(errors="replace")[-300:] for path in place.glob("*.out"))
            pytest.skip(f"no SLURM came up on this machine: {' '.join(printed.split())}")
        time.sleep(0.1)
