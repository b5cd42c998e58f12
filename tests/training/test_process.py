"""The process that trains a cell."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, torch
from lm.training.process import keep_freed_memory

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: without huge pages, of which a fault clears hundreds

def step():
    return [torch.empty(10_000_000).fill_(1.0) for _ in range(5)]  # 200 MB

if {kept}: keep_freed_memory()
for _ in range(3): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / 2e9)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
@pytest.mark.parametrize(
    ("kept", "own", "again"), [(False, {}, 1), (True, {}, 0), (True, {"MALLOC_ARENA_MAX": "4"}, 1)]
)
def test_memory_of_one_step_is_that_of_the_next(kept: bool, own: dict[str, str], again: int) -> None:
    """The share of it that the system clears again, where a step needs 200 MB; a user's own settings stay."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", FAULTS.format(kept=kept)]
    done = subprocess.run(command, env={**given, **own}, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(again, abs=0.05)
