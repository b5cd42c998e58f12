"""How much of this machine the cells may have at a time."""

import os


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerators() -> int:
    """CUDA devices on this machine."""
    import torch

    return torch.cuda.device_count()


def default_workers(cells: int) -> int:
    """One worker per accelerator, or per core where there is none, and no more than there are cells."""
    return max(1, min(cells, accelerators() or cores()))


def threads_said() -> int | None:
    """Threads by the environment, whose variables count in the order in which torch heeds them, of a list the first."""
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first[:9]):
            return int(first[:9])
    return None


def threads_each(workers: int) -> int:
    """Threads that each of `workers` may use: what the environment says, up to all cores, or else its share of them."""
    said = threads_said()
    return max(1, cores() // workers) if said is None else min(said, cores())
