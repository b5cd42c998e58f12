"""How many threads a cell gets: what the user said, or a share of the cores; and how many devices there are."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import Patch

from lm.execution import machine
from lm.execution.machine import accelerators, device_files, threads_each


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


def test_devices_without_files_in_linux_are_counted_without_torch(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    assert accelerators() == 3, "torch is imported already"
    for platform, count in (("linux", 0), ("win32", 3)):
        monkeypatch.setattr(machine, "sys", SimpleNamespace(platform=platform, modules={}))
        assert accelerators() == count
    monkeypatch.setattr(machine, "sys", SimpleNamespace(platform="linux", modules={}))
    for name in ("nvidiactl", "dxg", "kfd", "nvmap"):
        (tmp_path / name).touch()
        assert (accelerators(), device_files()) == (3, [name])
        (tmp_path / name).unlink()
    (tmp_path / "null").touch()
    assert accelerators() == 0


@pytest.mark.parametrize(
    ("devices", "gib", "cores", "cells", "step", "workers"),
    [
        (0, 0, 6, 100, 1e9, 6),
        (0, 0, 6, 4, math.inf, 4),
        (1, 80, 32, 100, math.inf, 1),
        (1, 80, 32, 100, 1e12, 1),
        (1, 80, 32, 100, 1e9, 16),
        (1, 80, 4, 100, 1e9, 4),
        (1, 80, 32, 3, 1e9, 3),
        (1, 6, 32, 100, 1e9, 6),
        (1, 0.5, 32, 100, 1e9, 1),
        (8, 80, 4, 100, 1e9, 8),
        (2, 24, 64, 100, 1e9, 32),
    ],
)
def test_small_cells_share_a_device(
    devices: int, gib: float, cores: int, cells: int, step: float, workers: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(machine, "accelerators", lambda: devices)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: properties)
    assert machine.default_workers(cells, step) == workers
