"""The executors by name. One whose package is large or rare is imported when it is asked for."""

from collections.abc import Callable, Mapping

from lm.config.tree import InputError
from lm.execution.executor import Executor
from lm.execution.executor_spec import parse_executor
from lm.execution.local import Local
from lm.execution.machine import threads_each, threads_said
from lm.store.locks import Say, to_stderr
from lm.store.store import Store

Options = Mapping[str, str]
Maker = Callable[[Store, int, Say, Options], Executor]


def _local(store: Store, capacity: int, say: Say, options: Options) -> Executor:
    return Local(store, capacity, say)


def _ray(store: Store, capacity: int, say: Say, options: Options) -> Executor:
    from lm.execution.on_ray import Ray

    return Ray(store, capacity, say, options, threads_each(capacity))


def _slurm(store: Store, capacity: int, say: Say, options: Options) -> Executor:
    from lm.execution.on_slurm import Slurm

    return Slurm(store, capacity, say, options, _slurm_threads(options))


EXECUTORS: Mapping[str, Maker] = {"local": _local, "ray": _ray, "slurm": _slurm}
"""Each made from the store, how many cells may be in its hands, whom to tell what keeps it from starting one, and what
was said of it."""


def make_executor(text: str, store: Store, capacity: int, say: Say = to_stderr) -> Executor:
    """The executor that a text asks for. Raises InputError where there is none, or it cannot be started."""
    asked = parse_executor(text)
    return EXECUTORS[asked.name](store, capacity, say, asked.options)


MOST_JOBS = 1000
"""In one array, as SLURM comes."""


def capacity(text: str, cells: int, search: bool = False) -> int | None:
    """How many of these cells the executor trains at a time, where that is not for this machine to say.

    Raises:
        InputError: where a cluster cannot be reached; for a `search` that could have all its trials in a queue, and
            learn from none.
    """
    asked = parse_executor(text)
    if asked.name == "slurm":
        if search:
            raise InputError(
                "--executor slurm: a search needs --workers N, its cells in the queue or at work at a time"
            )
        return min(cells, MOST_JOBS)
    if asked.name == "ray" and "address" in asked.options:
        from lm.execution.ray_cluster import cluster_capacity

        return min(cells, cluster_capacity(asked.options, threads(text, 1)))
    return None


def threads(text: str, workers: int) -> int:
    """Threads of a cell where `workers` are trained at a time; on other machines what the environment says, or one."""
    asked = parse_executor(text)
    if asked.name == "local" or (asked.name == "ray" and "address" not in asked.options):
        return threads_each(workers)
    return _slurm_threads(asked.options) if asked.name == "slurm" else threads_said() or 1


def _slurm_threads(options: Options) -> int:
    return int(options.get("cpus", threads_said() or 1))
