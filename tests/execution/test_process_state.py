"""What a cell may change in its process, and what the next one finds."""

import ctypes
import gc
import io
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from lm.execution import process
from lm.execution.process_state import restore_process_state
from lm.store.store import LOG
from lm.training import provenance

BREAKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "random of Python": (lambda: random.seed(7), random.getstate),
    "random of numpy": (lambda: np.random.seed(7), lambda: np.random.get_state(legacy=False)["state"]["key"].tolist()),
    "random of torch": (lambda: torch.manual_seed(7), lambda: torch.get_rng_state().tolist()),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.get_deterministic_debug_mode,
    ),
    "precision of products": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32),
    ),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")),
    "autocast to": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
    ),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "kernels": (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
    "errors of numpy": (lambda: np.seterr(all="raise"), np.geterr),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: list(warnings.filters)),
    "level of a logger": (
        lambda: logging.getLogger("lightning").setLevel(1),
        lambda: logging.getLogger("lightning").level,
    ),
    "what a logger derived from another's level": (
        lambda: logging.getLogger("lightning").setLevel(1),
        lambda: logging.getLogger("lightning.of_a_test").isEnabledFor(1),
    ),
    "handlers of a logger": (
        lambda: logging.root.addHandler(logging.NullHandler()),
        lambda: list(logging.root.handlers),
    ),
    "all loggers": (lambda: logging.disable(logging.CRITICAL), lambda: logging.root.manager.disable),
    "signals": (
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGUSR1),
    ),
    "arguments": (lambda: setattr(sys, "argv", ["other"]), lambda: sys.argv),
    "folders of modules": (lambda: sys.path.insert(0, "nowhere"), lambda: list(sys.path)),
    "a variable": (lambda: os.environ.update(LM_LEFT="1"), lambda: dict(os.environ)),
    "no variable": (lambda: os.environ.pop("PATH"), lambda: dict(os.environ)),
    "the folder": (lambda: os.chdir("/"), os.getcwd),
    "streams": (lambda: setattr(sys, "stdout", sys.stderr), lambda: sys.stdout),
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning")
    gc.freeze()  # or the objects of all tests would be looked through in each
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", BREAKS)
def test_what_a_cell_changes_the_next_does_not_find(name: str) -> None:
    change, look = BREAKS[name]
    before = look()
    with restore_process_state() as left:
        change()
        assert look() != before
    assert look() == before
    assert not left


def test_each_cell_has_its_own_words_in_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(1, "w", closefd=False) as buffered:
        monkeypatch.setattr(sys, "stdout", buffered)
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            with restore_process_state():
                process._log(tmp_path / name)
                sys.stdout.write(f"Python-{name} ")  # without an end, so that it stays in a buffer
                ctypes.CDLL(None).printf(f"C-{name} ".encode())
        print("afterwards", flush=True)
    for name in ("one", "two"):
        assert sorted((tmp_path / name / LOG).read_text().split()) == [f"C-{name}", f"Python-{name}"]
    assert capfd.readouterr().out == "afterwards\n"


def test_an_alarm_does_not_go_off_in_the_next_cell() -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 0)  # of who runs the tests
    try:
        with restore_process_state():
            signal.setitimer(signal.ITIMER_REAL, 3600)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_what_cannot_be_put_back_is_told() -> None:
    over = threading.Event()
    with restore_process_state() as left:
        threading.Thread(target=over.wait, name="polling", daemon=True).start()
    over.set()
    assert "the thread polling" in left


def test_a_thread_of_a_library_may_stay() -> None:
    with restore_process_state() as left, ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with restore_process_state() as inside:
            ThreadPoolExecutor(1).submit(int).result()
            list(tqdm([None], file=io.StringIO()))  # as a compiler does, which leaves a thread
    assert left == inside == []


def test_what_an_exception_leaves_is_left() -> None:
    before = torch.get_default_dtype()

    def raises() -> None:
        with restore_process_state():
            torch.set_default_dtype(torch.float64)
            raise RuntimeError

    try:
        with pytest.raises(RuntimeError):
            raises()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)


# what is kept of a cell ----------------------------------------------------------------------------------------------


class Doubles(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.slow
def test_compiled_code_is_kept_for_the_same_shape_and_forgotten_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append("")
        return graph.forward

    def run(shape: int) -> None:
        process._reset_compiler(shape)
        model = Doubles()
        model.compile(backend=backend)
        model(torch.ones(1, shape))

    torch.compiler.reset()
    monkeypatch.setattr(process, "_last", [])
    for _ in range(10):
        run(2)
    assert len(compiled) == 1
    for shape in range(3, 13):  # beyond the eighth, and from the second on with a size that varies
        run(shape)
    assert len(compiled) == 11
    run(12)
    assert len(compiled) == 11


def test_the_peak_is_of_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    held = bytearray(2**27)
    high = provenance.peak_memory()
    assert high is not None
    assert high > len(held) / 2**20
    del held
    provenance.forget_peak()
    if Path("/proc/self/clear_refs").exists():
        low = provenance.peak_memory()
        assert low is not None
        assert low < high
    monkeypatch.setattr(provenance, "_peak_before", [0.0])
    monkeypatch.setattr(Path, "write_text", refused)
    provenance.forget_peak()
    assert provenance.peak_memory() is None, "of which of the two nobody can say"


def refused(*_: Any, **__: Any) -> None:
    raise OSError
