"""Quantiles of durations, the matrix product's speed, energy counters."""

import functools
import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Patch

from lm.metrics.cost import Durations, Energy, matmul_peak, utilisation


def test_quantiles_are_those_of_all_durations_to_a_percent() -> None:
    values = np.random.default_rng(0).lognormal(-3, 1, 5000)
    durations = Durations()
    for value in values:
        durations.add(value)
    for share in (0.05, 0.5, 0.95):
        assert durations.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.011)


def test_counts_carry_over_and_extremes_have_a_bin() -> None:
    durations = Durations({10: 3})
    durations.add(0.0)
    durations.add(1e9)
    again = Durations(durations.counts)
    assert again.quantile(0.5) == durations.quantile(0.5) == pytest.approx(1e-5 * 1.01**10.5)
    assert sum(again.counts.values()) == 5
    assert Durations().quantile(0.5) is None


def test_the_peak_is_that_of_the_fastest_product(monkeypatch: Patch) -> None:
    durations = [0.5, 0.25, 0.125, 0.25, 1.0, 0.5]
    clock = itertools.accumulate(moment for duration in durations for moment in (1.0, duration))
    monkeypatch.setattr("lm.metrics.cost.time", SimpleNamespace(perf_counter=clock.__next__))  # not everybody's clock
    products: list[tuple[int, ...]] = []
    product = torch.Tensor.__matmul__

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        products.append((*a.shape, *b.shape))
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    measure = functools.cache(matmul_peak.__wrapped__)
    state = torch.get_rng_state()
    assert measure(torch.device("cpu"), torch.float32, 1) == 2 * 512**3 / 0.125
    assert measure(torch.device("cpu"), torch.float32, 1) == 2 * 512**3 / 0.125
    assert products == [(512, 512, 512, 512)] * len(durations), "measured once"
    assert torch.equal(torch.get_rng_state(), state), "what others draw does not depend on it"


def test_utilisation_is_a_share_of_all_peaks() -> None:
    assert utilisation(1000.0, 2e6, [4e9, 4e9]) == pytest.approx(0.25)
    assert utilisation(1000.0, None, [4e9]) is None
    assert utilisation(1000.0, 2e6, [0.0]) is None


def test_energy_is_the_difference_of_the_counters(tmp_path: Path) -> None:
    counters = [tmp_path / f"intel-rapl:{index}" / "energy_uj" for index in range(2)]
    for counter in counters:
        counter.parent.mkdir()
        counter.write_text("1000000\n")
    energy = Energy(torch.device("cpu"), tmp_path)
    counters[0].write_text("3500000\n")
    assert energy.joules() == pytest.approx(2.5)
    counters[1].write_text("0\n")  # wrapped around
    assert energy.joules() is None
    assert energy.joules() == 0.0
    assert Energy(torch.device("cpu"), tmp_path / "none").joules() is None


class FakeNVML(ModuleType):
    """NVIDIA's library with one device, whose counter stands at `millijoules`."""

    class NVMLError(Exception):
        """What the library raises."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.NVMLError.__module__ = "pynvml"
        self.millijoules: int | None = 5000
        self.known = True

    def nvmlInit(self) -> None:  # noqa: N802 - the names are the library's
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if not self.known:
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert handle == "GPU-one"
        if self.millijoules is None:
            raise self.NVMLError
        return self.millijoules


@pytest.fixture
def nvml(monkeypatch: Patch) -> FakeNVML:
    found = FakeNVML()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="one"))
    return found


def test_the_energy_of_a_gpu_is_its_counters(nvml: FakeNVML) -> None:
    energy = Energy(torch.device("cuda"))
    nvml.millijoules = 7500
    assert energy.joules() == pytest.approx(2.5)
    nvml.millijoules = None  # a device that stopped counting
    assert energy.joules() is None


def test_no_energy_without_nvml_or_known_device(nvml: FakeNVML, monkeypatch: Patch) -> None:
    nvml.known = False
    assert Energy(torch.device("cuda")).joules() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    assert Energy(torch.device("cuda")).joules() is None


def test_what_else_goes_wrong_with_a_gpu_is_not_hidden(nvml: FakeNVML, monkeypatch: Patch) -> None:
    def lost(_: object) -> None:
        raise RuntimeError("no such device")

    energy = Energy(torch.device("cuda"))
    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", lost)
    with pytest.raises(RuntimeError, match="no such device"):
        energy.joules()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lost)
    with pytest.raises(RuntimeError, match="no such device"):
        Energy(torch.device("cuda"))
