"""The folder of a small run: what it trains, the command that does so, and the processes that this starts."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lm.config.tree import InputError, Tree
from lm.store.files import write_atomic
from lm.store.locks import ENDED, process_status

EXPERIMENT, SWEEP = "small", "search"
CELLS, TRIALS, STEPS = 4, 3, 30
"""Of the experiment, of the search, and of each cell."""

MARK = "LM_CHAOS"
"""In the environment of every process of a run: the folder of the run."""

LOOK_SECONDS = 0.005
"""Between two looks at what a run does."""

MOST_SECONDS = 1800.0
"""A command that takes longer hangs."""

GONE_SECONDS = 60.0
"""For processes that nobody listens to any more to end."""


class StuckError(Exception):
    """A command that did not do what was waited for, in words."""


@dataclass
class Place:
    """A folder with an experiment, its results, a cache and a folder for temporary files, for one run alone."""

    folder: Path
    sweep: bool = False
    more: tuple[str, ...] = ("--workers", "2")
    given: int = 0
    """Commands so far."""
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out, self.cache, self.temporary = (self.folder / name for name in ("out", "cache", "tmp"))
        for made in (self.out, self.cache, self.temporary):
            made.mkdir(parents=True)
        for name, tree in files().items():
            write_atomic(self.folder / f"{name}.yaml", yaml.safe_dump(tree, sort_keys=False))

    @property
    def name(self) -> str:
        """Of what is run."""
        return SWEEP if self.sweep else EXPERIMENT

    @property
    def report(self) -> Path:
        """The folder of the table."""
        return self.out / self.name

    def command(self) -> list[str]:
        """What a person would type."""
        kind = "sweep" if self.sweep else "ablate"
        asked = [str(self.folder / f"{self.name}.yaml"), "--out", str(self.out), "--checkpoint-seconds", "0"]
        return [sys.executable, "-P", "-m", "lm", kind, *asked, *self.more]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Of the command."""
        own = {MARK: str(self.folder), "LM_CACHE": str(self.cache), "TMPDIR": str(self.temporary)}
        return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **own, **more}

    def begins_with(self, folder: Path, code: str) -> dict[str, str]:
        """Return an environment in which every process runs `code` as it starts; `folder` is made to hold it."""
        write_atomic(folder / "sitecustomize.py", code)
        return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def start(self, more: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Gives the command; what it says goes into a file, to which nobody need listen."""
        self.given += 1
        with self.log(self.given).open("wb") as log:
            streams: dict[str, Any] = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
            process = subprocess.Popen(
                self.command(), env=self.environment(more or {}), start_new_session=True, cwd=self.folder, **streams
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        """What one of the commands has said."""
        return self.folder / f"said{number}.txt"

    def said(self, process: "subprocess.Popen[bytes]") -> str:
        """What a command has said so far."""
        return self.log(1 + self.started.index(process)).read_text(encoding="utf-8", errors="replace")

    def ended(self, process: "subprocess.Popen[bytes]", code: int | None = 0) -> str:
        """Waits for a command to end; returns what it said. Raises StuckError where its exit code is not `code`."""
        try:
            found = process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise StuckError(f"command {self.given} was still at work after {MOST_SECONDS:z.0f} s") from None
        said = self.said(process)
        if code is not None and found != code:
            last = " ".join(said.strip().splitlines()[-1:]) or "no word"
            raise StuckError(f"command {self.given} ended with code {found}, not {code}: {last}")
        return said

    def until(self, seen: Callable[[], Any], process: "subprocess.Popen[bytes]") -> bool:
        """Waits until something is seen; says whether it was, before the command ended."""
        deadline = time.monotonic() + MOST_SECONDS
        while not seen():
            if process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise StuckError(f"command {self.given} was still at work after {MOST_SECONDS:z.0f} s")
            time.sleep(LOOK_SECONDS)
        return True

    # its processes

    def processes(self) -> dict[int, str]:
        """Those that run, and the words of their commands."""
        return marked(f"{MARK}={self.folder}")

    def left_alive(self) -> list[str]:
        """Processes that do not end though the command has, in words; waits for those that are about to."""
        deadline = time.monotonic() + GONE_SECONDS
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(10 * LOOK_SECONDS)
        return [f"process {pid}: {words[:80]}" for pid, words in sorted(found.items())]

    def close(self) -> None:
        """Ends whatever still runs."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in self.processes():
            end(pid)


def files() -> dict[str, Tree]:
    """The experiment, the search, and the configuration that both begin with: the quickstart's, much smaller."""
    corpus = {"class_path": "StdlibText", "init_args": {"size": 200_000, "longest": 2000}}
    base = {
        "base": "char_tiny",
        "data": {"init_args": {"corpus": corpus, "context": 32, "batch_size": 4}},
        "model": {"init_args": {"layers": 1, "width": 32}},
        "optim": {"schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 1, "final": 0.1}}},
        "trainer": {
            "accelerator": "cpu",
            "max_steps": STEPS,
            "log_every_n_steps": 2,
            "val_check_interval": STEPS // 2,
            "limit_val_batches": 1,
        },
    }
    arms = {"post_norm": {"model.block": "PostNorm"}, "pre_norm": {"model.block": "PreNorm"}}
    return {
        "base": base,
        EXPERIMENT: {"base": "base.yaml", "baseline": "post_norm", "seeds": 2, "confirmatory": False, "arms": arms},
        SWEEP: {
            "base": "base.yaml",
            "space": {"optim.lr": {"choices": [1e-3, 3e-3, 1e-2]}},
            "trials": TRIALS,
            "sampler": "grid",  # of which a search that is taken up draws the same values
        },
    }


def require_linux() -> None:
    """Raises InputError where processes cannot be found by what they were started with."""
    if not Path("/proc/self/environ").exists():
        raise InputError("make faults finds processes below /proc, as Linux has it, and there is none here")


def marked(words: str) -> dict[int, str]:
    """Processes with these words in their environment, but those that have ended, and the words of their commands."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                words.encode() in (entry / "environ").read_bytes().split(b"\0")
                and process_status(int(entry.name)) not in ENDED
            ):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
    return found


def parent(pid: int) -> int | None:
    """The process that started another; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def end(pid: int) -> None:
    """Ends a process at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
