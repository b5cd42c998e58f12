"""A shortened quickstart on every executor: the same records and the same table, whatever trains the cells."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm
import yaml
from faults.outcome import measured, table
from helpers import RUN
from postgres import free_port
from undrawn import UNDRAWN

from lm.execution.signal_handling import INTERRUPTED

pytestmark = [pytest.mark.extra, pytest.mark.timeout(3000)]

OWN = """
import time
from lm.model.norm import LayerNorm

class Slow(LayerNorm):
    def forward(self, x_btd):
        time.sleep(0.015)
        return super().forward(x_btd)
"""
"""A class of a user's own, which travels with the cell; it takes its time, so that a node can be lost meanwhile."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
SMALL = {"object_store_memory": 80 * 2**20}


def write(folder: Path) -> Path:
    (folder / "slow_parts.py").write_text(OWN)
    settings = {"max_steps": 24, "log_every_n_steps": 3, "val_check_interval": 12}
    base = {**RUN, "trainer": {**RUN["trainer"], **settings}}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    path = folder / "small.yaml"
    common = {"model.norm": "slow_parts.Slow"}
    arms = {"post": {"model.block": "PostNorm"}, "pre": {"model.block": "PreNorm"}}
    tree = {"base": "base.yaml", "baseline": "post", "common": common, "arms": arms, "seeds": [0, 1]}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def start(spec: Path, out: Path, executor: str, **more: str) -> "subprocess.Popen[str]":
    """The command in a process group of its own, as a terminal would start it, with more in its environment."""
    fixed = ["--underpowered", "--checkpoint-seconds", "0", "--workers", "2", "--executor", executor]
    command = [*UNDRAWN, "ablate", str(spec), "--out", str(out), *fixed]
    return subprocess.Popen(
        command,
        env={**os.environ, **ENVIRONMENT, **more},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """What the command said; it is to have ended with this code."""
    said = process.communicate()[1]
    assert process.returncode == code, said
    return said


def same(out: Path, whole: Path) -> bool:
    assert len(measured(whole)) == 4
    assert measured(out) == measured(whole)
    assert table(out / "small") == table(whole / "small")
    names = {path.name for path in (out / "cells").iterdir()}
    assert names == {path.name for path in (whole / "cells").iterdir()}
    return True


def resumed(out: Path) -> bool:
    """Whether a cell was resumed from its checkpoint."""
    return any(json.loads(path.read_text())["provenance"]["resumed"] for path in out.glob("cells/*/record.json"))


def until(done: Callable[[], Any], process: "subprocess.Popen[str]") -> None:
    """Waits for something that the command does."""
    while not done():
        assert process.poll() is None, ended(process)
        time.sleep(0.05)


def alive(group: int) -> bool:
    """Whether a process of a group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def checkpoints(out: Path) -> list[Path]:
    return list((out / "cells").glob(".*.work/last.ckpt"))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def whole(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the executor of this machine, which nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    ended(start(spec, out, "local"))
    return out


# Ray -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ray_cluster(**head: Any) -> Iterator[Any]:
    """A cluster of one node, with such options."""
    utils = pytest.importorskip("ray.cluster_utils", reason="needs ray: pip install 'lm-ablations[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        made = utils.Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **SMALL, **head})
        try:
            yield made
        finally:
            made.shutdown()


def test_ray_with_a_lost_node_gives_the_same_table(spec: Path, whole: Path, tmp_path: Path) -> None:
    """A head without cores and two nodes of one core, each with a cache of its own."""
    out = tmp_path / "out"
    with ray_cluster(num_cpus=0) as cluster:
        for number in (1, 2):
            cluster.add_node(num_cpus=1, env_vars={"LM_CACHE": str(tmp_path / f"cache{number}")}, **SMALL)
        process = start(spec, out, f"ray:address={cluster.address}")
        until(lambda: len(checkpoints(out)) == 2, process)
        cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
        ended(process)
    assert resumed(out)
    assert same(out, whole)
    assert list(tmp_path.glob("cache[12]/tokens/*/train.npy"))


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs grpcio: pip install 'lm-ablations[ray]'")
def test_ray_from_outside_resumes_after_ctrl_c(spec: Path, whole: Path, tmp_path: Path) -> None:
    out, port = tmp_path / "out", free_port()
    cache = {"LM_CACHE": str(tmp_path / "cache")}
    with ray_cluster(num_cpus=2, ray_client_server_port=port, env_vars=cache):
        while not listened_to(port):
            time.sleep(0.1)
        process = start(spec, out, f"ray://127.0.0.1:{port}")
        until(lambda: checkpoints(out), process)
        os.killpg(process.pid, signal.SIGINT)
        ended(process, INTERRUPTED)
        assert checkpoints(out)
        ended(start(spec, out, f"ray://127.0.0.1:{port}"))
    assert same(out, whole)
    assert list(tmp_path.glob("cache/tokens/*/train.npy"))


def listened_to(port: int) -> bool:
    """Whether somebody takes connections at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'lm-ablations[ray]'")
def test_ctrl_c_ends_a_started_cluster_and_cells_resume(spec: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(spec, out, "ray:memory=80")
    until(lambda: checkpoints(out), process)
    os.killpg(process.pid, signal.SIGINT)
    ended(process, INTERRUPTED)
    while alive(process.pid):  # Ray's own processes take a moment to go
        time.sleep(0.1)
    ended(start(spec, out, "local"))
    assert same(out, whole)


# SLURM ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs submitit: pip install '...[slurm]'")
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGKILL], ids=["preempted", "killed"])
def test_a_preempted_or_killed_job_resumes_from_its_checkpoint(
    number: signal.Signals, spec: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(spec, out, "slurm:executor=local,cpus=1")
    until(lambda: checkpoints(out), process)
    (folder,) = (out / "cells").glob(".slurm-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    for job in jobs(folder):  # one of them has the checkpoint
        os.kill(job, number)
    said = ended(process)
    assert "ended as" in said or number == signal.SIGUSR2
    for folder in (out / "cells").glob(".slurm-*"):  # of a job that was killed, what it had printed stays
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() or path.is_symlink() else path.rmdir()
        folder.rmdir()
    assert same(out, whole)


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs submitit: pip install '...[slurm]'")
def test_requeued_jobs_of_a_real_slurm_give_the_same_table(spec: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with slurm.serving() as environment:
        process = start(spec, out, "slurm:partition=cpu,time=0:30:00,cpus=1", **environment)
        until(lambda: checkpoints(out), process)
        running = slurm.said(["squeue", "-h", "-t", "R", "-o", "%A"], environment).split()
        assert running
        for job in running:  # one of them has the checkpoint
            slurm.said(["scontrol", "requeue", job], environment)
        until(lambda: "BeginTime" in slurm.said(["squeue", "-h", "-o", "%r"], environment), process)
        for job in running:  # which SLURM would do of itself after two minutes
            slurm.said(["scontrol", "update", f"JobId={job}", "StartTime=now"], environment)
        ended(process)
        assert not slurm.said(["squeue", "-h"], environment)
    assert resumed(out)
    assert same(out, whole)


def jobs(folder: Path) -> list[int]:
    """Processes that carry out errands of this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"submitit.core._submit" in line and str(folder / "submitit").encode() in line:
            found.append(int(entry.name))
    return sorted(found)
