"""How many threads a cell gets: what the user said, or a share of the cores."""

import pytest
from helpers import Patch

from lm.execution.machine import threads_each


@pytest.mark.parametrize(
    ("environment", "workers", "expected"),
    [
        ({}, 1, 8),
        ({}, 3, 2),
        ({}, 20, 1),
        ({"OMP_NUM_THREADS": "1"}, 1, 1),
        ({"OMP_NUM_THREADS": "3"}, 8, 3),
        ({"MKL_NUM_THREADS": "2"}, 1, 2),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}, 1, 4),
        ({"OMP_NUM_THREADS": "2,4"}, 1, 2),
        ({"OMP_NUM_THREADS": "99999999999"}, 1, 8),
        ({"OMP_NUM_THREADS": "0"}, 2, 4),
        ({"OMP_NUM_THREADS": "many"}, 2, 4),
        ({"OMP_NUM_THREADS": ""}, 2, 4),
    ],
)
def test_threads_come_from_the_environment_or_the_cores(
    monkeypatch: Patch, environment: dict[str, str], workers: int, expected: int
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("lm.execution.machine.cores", lambda: 8)
    assert threads_each(workers) == expected
