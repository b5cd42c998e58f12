"""Several processes of one cell: shares resumed and made whole again, and what becomes of a cell when one dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN, known
from messages import CheckMessage

from lm.config.tree import Tree, override
from lm.training.ranks import RankError, RankSupervisor, is_peer_failure, supervise_ranks

DIES = '''
import os, signal
from pathlib import Path
from lightning.pytorch import Callback

class Dies(Callback):
    """Ends the process of a rank at a step, once for each word of DIES: `rank:step:how`."""
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for index, word in enumerate(os.environ["DIES"].split()):
            rank, step, how = word.split(":")
            flag = Path(__file__).with_name(f"died-{index}")
            if (trainer.global_rank, batch_idx) != (int(rank), int(step)) or flag.exists():
                continue
            flag.touch()
            if how == "raises":
                raise ValueError("a fault of rank's own")
            os.kill(os.getpid(), signal.SIGKILL)
'''

TWO: Tree = {"trainer.devices": 2, "trainer.accelerator": "cpu"}


class Place:
    """A folder in which cells of two processes are trained, some of which die."""

    def __init__(self, folder: Path, changes: Tree) -> None:
        self.folder, self.out = folder, folder / "out"
        (folder / "dies.py").write_text(DIES)
        tree = override(RUN, {**TWO, "trainer.callbacks": [{"class_path": "dies.Dies", "harmless": True}], **changes})
        (folder / "run.yaml").write_text(yaml.safe_dump(tree))

    def fit(self, dies: str = "", *more: str) -> int:
        """The exit code of a run of the command line."""
        command = [sys.executable, "-m", "lm", "fit", "run.yaml", "--out", "out", "--checkpoint-seconds", "0", *more]
        path = os.pathsep.join([str(self.folder), *filter(None, sys.path)])
        environment = {**os.environ, "DIES": dies, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with open(self.folder / "said.txt", "w") as output:
            done = subprocess.run(command, cwd=self.folder, env=environment, stdout=output, stderr=output, timeout=300)
        return done.returncode

    def found(self) -> tuple[dict[str, Any], list[str], dict[str, torch.Tensor]]:
        """Record, learning curve and weights of the one finished cell."""
        (record,) = self.out.glob("cells/[0-9a-f]*/record.json")
        weights = torch.load(record.with_name("last.ckpt"), weights_only=True)["state_dict"]
        return json.loads(record.read_text()), record.with_name("history.csv").read_text().splitlines(), weights

    def record(self) -> dict[str, Any]:
        (record,) = self.out.glob("cells/[0-9a-f]*/record.json")
        found: dict[str, Any] = json.loads(record.read_text())
        return found


def assert_same(place: Place, whole: Place) -> None:
    """The same record but for times, the same curve and weights, to the last bit."""
    (found, curve, weights), (expected, other_curve, other_weights) = place.found(), whole.found()
    assert found["status"] == "ok"
    assert found["provenance"]["resumed"]
    for name in ("id", "metrics", "evaluations", "reliability", "pairing", "initial", "final", "steps"):
        assert found[name] == expected[name], name
    assert curve == other_curve
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(value, other_weights[name]) for name, value in weights.items())


@pytest.mark.extra
def test_a_sharded_run_resumed_after_a_kill_is_the_same(tmp_path: Path) -> None:
    """All of it: also the test split and other lengths, which are measured of the one file at the end."""
    changes = {"trainer.strategy": "fsdp2", "evaluate.lengths": [8, 16]}
    whole, killed = (Place(tmp_path / name, changes) for name in made(tmp_path, "whole", "killed"))
    assert whole.fit() == 0, (tmp_path / "whole" / "said.txt").read_text()
    assert killed.fit("0:7:dies") == -signal.SIGKILL
    assert killed.fit() == 0, (tmp_path / "killed" / "said.txt").read_text()
    assert_same(killed, whole)
    assert set(killed.record()["evaluations"]) == {"test", "lengths"}


PLAIN = {
    "model.position": "Alibi",
    "model.heads": 4,
    "model.attention": {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2}},
    "model.mlp": "ReGLU",
    "model.block": "PostNorm",
}
"""A decoder that tensor parallelism carries out, unlike the usual one in most of its parts."""


@pytest.mark.extra
def test_a_tensor_parallel_run_resumed_equals_one_process(tmp_path: Path) -> None:
    """Dropout draws the same numbers, as the processes read the same rows."""
    changes = {**PLAIN, "evaluate.lengths": [8, 16], "model.dropout": 0.1}
    names = made(tmp_path, "one", "shared")
    one = Place(tmp_path / names[0], {**changes, "trainer.devices": 1})
    shared = Place(tmp_path / names[1], {**changes, "trainer.strategy": "tensor_parallel", "trainer.devices": 2})
    assert one.fit() == 0, (tmp_path / "one" / "said.txt").read_text()
    assert shared.fit("0:7:dies") == -signal.SIGKILL
    assert shared.fit() == 0, (tmp_path / "shared" / "said.txt").read_text()
    (found, _, weights), (expected, _, other_weights) = shared.found(), one.found()
    assert found["provenance"]["resumed"] == 1
    for name in ("id", "pairing", "evaluated"):
        assert found[name] == expected[name], name
    assert found["reliability"]["count"] == expected["reliability"]["count"]
    assert found["cost"]["parameters"] == expected["cost"]["parameters"]
    for name in expected["metrics"].keys() - {"noise_scale"}:
        assert found["metrics"][name] == pytest.approx(expected["metrics"][name], rel=1e-9), name
    for when in ("initial", "final"):
        assert numbers_of(found[when]) == pytest.approx(numbers_of(expected[when]), rel=1e-9, abs=1e-12)
    for name, value in weights.items():
        torch.testing.assert_close(value, other_weights[name], rtol=1e-9, atol=1e-12)


def numbers_of(seen: Any, name: str = "") -> dict[str, float]:
    """What was seen inside a model, layer by layer and head by head, each number by its place."""
    if isinstance(seen, (int, float)):
        return {name: seen}
    parts = seen.items() if isinstance(seen, dict) else enumerate(seen)
    return {place: number for at, part in parts for place, number in numbers_of(part, f"{name}.{at}").items()}


@pytest.mark.extra
def test_one_process_resumes_a_sharded_run_of_two(tmp_path: Path) -> None:
    place, alone = (Place(tmp_path / name, {"trainer.strategy": "fsdp2"}) for name in made(tmp_path, "two", "one"))
    assert place.fit("0:7:dies") == -signal.SIGKILL
    one = ("--trainer.devices", "1", "--trainer.strategy", "auto")
    assert place.fit("", *one) == 0, (tmp_path / "two" / "said.txt").read_text()
    assert alone.fit("", *one) == 0
    (found, _, weights), (expected, _, other_weights) = place.found(), alone.found()
    assert found["provenance"]["resumed"]
    for name in ("nll", "ece", "perplexity", "gradient_norm", "test_nll"):
        assert found["metrics"][name] == pytest.approx(expected["metrics"][name], rel=1e-9), name
    for name, value in weights.items():
        torch.testing.assert_close(value, other_weights[name], rtol=1e-9, atol=1e-12)


def made(folder: Path, *names: str) -> tuple[str, ...]:
    for name in names:
        (folder / name).mkdir()
    return names


@pytest.mark.extra
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("how", ["dies", "raises"])
def test_a_rank_that_dies_fails_the_cell_with_its_error(
    tmp_path: Path, strategy: str, how: str, check_message: CheckMessage
) -> None:
    place = Place(tmp_path, {"trainer.strategy": strategy})
    assert place.fit(f"1:3:{how}") == 1
    record = place.record()
    assert record["status"] == "failed"
    check_message(record["error"])
    died = (tmp_path / "died-0").stat().st_mtime
    assert 0 <= record["provenance"]["finished"] - died < 60
    assert not list(place.out.glob("cells/.*.work"))


@pytest.mark.extra
def test_two_nodes_under_torchrun_train_one_cell(tmp_path: Path) -> None:
    """Two launchers, each with one process, that meet at a port of this machine."""
    nodes, one = (Place(tmp_path / name, {"trainer.strategy": "fsdp2"}) for name in made(tmp_path, "nodes", "one"))
    assert one.fit("", "--trainer.devices", "1", "--trainer.strategy", "auto") == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "static", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    path = os.pathsep.join([str(nodes.folder), *filter(None, sys.path)])
    environment = {**os.environ, "DIES": "", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    fit = ["-m", "lm", "fit", "run.yaml", "--out", "out", "--trainer.devices", "1", "--trainer.num_nodes", "2"]
    running = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), *fit], cwd=nodes.folder, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    output = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], output
    found, expected = nodes.found()[0], one.found()[0]
    assert found["cost"]["world_size"] == 2
    assert found["id"] == expected["id"]
    for name in ("nll", "ece", "perplexity", "gradient_norm", "test_nll"):
        assert found["metrics"][name] == pytest.approx(expected["metrics"][name], rel=1e-9), name


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# without processes of a cell -----------------------------------------------------------------------------------------


def test_errors_caused_by_a_dead_peer_are_recognised() -> None:
    assert is_peer_failure(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:12"))
    assert is_peer_failure(torch.distributed.DistBackendError("NCCL error"))
    assert not is_peer_failure(ValueError("connection is a word of mine"))
    assert not is_peer_failure(RuntimeError("shapes do not fit"))


def test_an_error_of_the_first_process_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), supervise_ranks(tmp_path, lambda output: None):
        raise ValueError("mine")


def test_the_error_of_a_rank_replaces_the_lost_connection(tmp_path: Path, check_message: CheckMessage) -> None:
    def says() -> None:
        (tmp_path / "ranks").mkdir()
        (tmp_path / "ranks" / "2.json").write_text("{")
        (tmp_path / "ranks" / "3.json").write_text('{"error": "ValueError: its own"}')
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RankError) as found, supervise_ranks(tmp_path, print):
        says()
    check_message(str(found.value))
    assert "closed by peer" in str(found.value.__cause__)


HANGS = """
import subprocess, sys, time
from pathlib import Path
from lm.training import ranks
ranks.PATIENCE = 0.2
with ranks.supervise_ranks(Path(sys.argv[1]), lambda error: Path(sys.argv[1], "error").write_text(error)):
    lives = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    dies = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    from lightning.pytorch.strategies.launchers import subprocess_script
    subprocess_script._launch_process_observer([lives, dies])
    print(lives.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.extra
def test_a_first_process_that_hangs_gives_the_cell_up(tmp_path: Path, check_message: CheckMessage) -> None:
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert time.monotonic() - start < 80
    check_message(said := (tmp_path / "error").read_text())
    assert done.stderr.strip().endswith(said.removeprefix("RankError: "))
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(done.stdout), 0)
        assert Path(f"/proc/{int(done.stdout)}/stat").read_text().split()[2] == "Z", "the other one was ended too"


def test_a_supervisor_reports_which_rank_died_and_how(check_message: CheckMessage) -> None:
    class Ended:
        def __init__(self, code: int | None) -> None:
            self.code = code

        def poll(self) -> int | None:
            return self.code

    def cause(*codes: int | None) -> str | None:
        watch = RankSupervisor(Path("nowhere"), print)
        watch.processes = [Ended(code) for code in codes]  # type: ignore[misc]
        return watch.cause()

    assert cause(None, 0) is None
    for codes in ((None, 4), (-9,)):
        check_message(known(cause(*codes)))
