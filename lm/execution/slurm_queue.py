"""Jobs of submitit: those of SLURM, or processes of this machine in their place."""

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from lm.config.tree import InputError
from lm.execution.executor_spec import minutes

MINUTES = 60
"""Default time limit of a job. A cell that takes longer goes on in the next job."""

TIMEOUTS = 10_000
"""Number of times that a job may go on after its time limit."""

STATES = {
    "PENDING": True, "CONFIGURING": True, "RUNNING": True, "COMPLETING": True, "SUSPENDED": True, "REQUEUED": True,
    "REQUEUE_HOLD": True, "REQUEUE_FED": True, "RESIZING": True, "SIGNALING": True, "STOPPED": True, "STAGE_OUT": True,
    "RESV_DEL_HOLD": True, "SPECIAL_EXIT": True,
}  # fmt: skip
"""States of a job that goes on or will."""

COMMAND_SECONDS = 60.0
"""Time limit of a command of SLURM."""


class Queue:
    """Queue of jobs that are submitted together as one array.

    Args:
        options: see `lm.execution.executor_spec`.
        folder: of submitit's files.
        at_a_time: jobs that run at a time.
        threads: of a job.

    Raises:
        InputError: if SLURM is not available.
    """

    def __init__(self, options: Mapping[str, str], folder: Path, at_a_time: int, threads: int) -> None:
        self.real = options.get("executor", "slurm") == "slurm"
        try:
            kind: Any = submitit.SlurmExecutor if self.real else submitit.LocalExecutor
            self.executor = kind(folder, max_num_timeout=TIMEOUTS)
        except RuntimeError as error:
            raise InputError(f"--executor slurm: {error}") from None
        time_each = minutes(options["time"]) if "time" in options else MINUTES
        if self.real:
            plain = {name: options[name] for name in ("partition", "account", "qos", "constraint", "exclude", "mem")
                     if name in options}  # fmt: skip
            if "gpus" in options:
                plain["gpus_per_node"] = int(options["gpus"])  # type: ignore[assignment]
            self.executor.update_parameters(
                job_name="lm", time=time_each, cpus_per_task=threads, nodes=1, ntasks_per_node=1,
                array_parallelism=at_a_time, stderr_to_stdout=True, **plain,
            )  # fmt: skip
        else:
            gpus = {"gpus_per_node": int(options["gpus"])} if "gpus" in options else {}
            self.executor.update_parameters(timeout_min=time_each, stderr_to_stdout=True, **gpus)

    def submit(self, tasks: Sequence[Any]) -> list[Any]:
        """Submit tasks and return their jobs. Raises InputError if SLURM refuses them."""
        try:
            if len(tasks) == 1:
                return [self.executor.submit(tasks[0])]
            with self.executor.batch():
                jobs = [self.executor.submit(task) for task in tasks]
            return jobs
        except (OSError, subprocess.SubprocessError, submitit.core.utils.FailedJobError) as error:
            message = " ".join(str(error).split())[:300]
            raise InputError(f"--executor slurm: the jobs were refused: {message}") from None

    def states(self, jobs: Sequence[Any]) -> dict[str, str] | None:
        """Return the state of each job by its id, `GONE` for an unknown one; None if SLURM does not answer."""
        if not self.real:
            return {job.job_id: "RUNNING" if not _over(job) else "COMPLETED" for job in jobs}
        command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        states = dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)
        return {job.job_id: states.get(job.job_id, "GONE") for job in jobs}

    def cancel(self, jobs: Sequence[Any]) -> None:
        """Cancel jobs, pending and running ones."""
        if self.real and jobs:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = ["scancel", *(job.job_id for job in jobs)]
                subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
        elif jobs:
            for job in jobs:
                job.cancel(check=False)

    def wait_until_gone(self, jobs: Sequence[Any], seconds: float) -> None:
        """Wait until jobs have ended, at most so many seconds."""
        deadline = time.monotonic() + seconds
        while jobs and time.monotonic() < deadline:
            states = self.states(jobs)
            jobs = [job for job in jobs if states is None or states[job.job_id] in STATES]
            time.sleep(0.1 if not self.real else 1.0)


def _over(job: Any) -> bool:
    """Return True if a process in the place of a job has exited."""
    return job._process is None or job._process.poll() is not None
