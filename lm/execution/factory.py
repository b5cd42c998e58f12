"""Factory of executors by name; one whose package is large or rare is imported on use."""

from collections.abc import Callable, Mapping

from lm.config.tree import InputError
from lm.execution.executor import Executor
from lm.execution.executor_spec import parse_executor
from lm.execution.local import Local
from lm.execution.machine import env_threads, threads_each
from lm.store.locks import LogLine, to_stderr
from lm.store.store import Store

Options = Mapping[str, str]
Maker = Callable[[Store, int, LogLine, Options], Executor]


def _local(store: Store, capacity: int, say: LogLine, options: Options) -> Executor:
    return Local(store, capacity, say)


def _ray(store: Store, capacity: int, say: LogLine, options: Options) -> Executor:
    from lm.execution.on_ray import Ray

    return Ray(store, capacity, say, options, threads_each(capacity))


def _slurm(store: Store, capacity: int, say: LogLine, options: Options) -> Executor:
    from lm.execution.on_slurm import Slurm

    return Slurm(store, capacity, say, options, _slurm_threads(options))


EXECUTORS: Mapping[str, Maker] = {"local": _local, "ray": _ray, "slurm": _slurm}
"""Constructors by name. Each takes the store, the capacity, a function for lines about delays, and the options."""


def make_executor(text: str, store: Store, capacity: int, say: LogLine = to_stderr) -> Executor:
    """Make the executor that a text names. Raises InputError if there is none or it cannot be started."""
    spec = parse_executor(text)
    return EXECUTORS[spec.name](store, capacity, say, spec.options)


MOST_JOBS = 1000
"""Jobs in one array, by SLURM's default."""


def capacity(text: str, cells: int, search: bool = False) -> int | None:
    """Return how many of these cells the executor trains at a time, None if this machine decides.

    Raises:
        InputError: if a cluster cannot be reached, or for a `search` by SLURM, whose trials would all be queued at once
            and learn from none.
    """
    spec = parse_executor(text)
    if spec.name == "slurm":
        if search:
            raise InputError(
                "--executor slurm: a search needs --workers N, its cells in the queue or at work at a time"
            )
        return min(cells, MOST_JOBS)
    if spec.name == "ray" and "address" in spec.options:
        from lm.execution.ray_cluster import cluster_capacity

        return min(cells, cluster_capacity(spec.options, threads(text, 1)))
    return None


def threads(text: str, workers: int) -> int:
    """Return the threads of a cell with `workers` at a time; of the environment, or one, on other machines."""
    spec = parse_executor(text)
    if spec.name == "local" or (spec.name == "ray" and "address" not in spec.options):
        return threads_each(workers)
    return _slurm_threads(spec.options) if spec.name == "slurm" else env_threads() or 1


def _slurm_threads(options: Options) -> int:
    return int(options.get("cpus", env_threads() or 1))
