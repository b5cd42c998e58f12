"""Save and restore process-global state (RNGs, torch flags, environment, signals, loggers) between two cells.

What cannot be restored is reported, and the process trains no other cell.
"""

import ctypes
import functools
import gc
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic

FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cudnn, "enabled"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.mkldnn, "enabled"),
    (torch.backends.mkldnn, "deterministic"),
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
    (sys, "argv"),
    (sys, "stdin"),
    (sys, "stdout"),
    (sys, "stderr"),
    (sys, "excepthook"),
    (threading, "excepthook"),
    (logging.root.manager, "disable"),
)
"""Attributes that are read with getattr and restored with setattr."""

SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda _: torch.set_default_device(None)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(
        pair
        for device in ("cpu", "cuda")
        for pair in (
            (lambda d=device: torch.is_autocast_enabled(d), lambda on, d=device: torch.set_autocast_enabled(d, on)),
            (lambda d=device: torch.get_autocast_dtype(d), lambda kind, d=device: torch.set_autocast_dtype(d, kind)),
        )
    ),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (np.geterr, lambda how: np.seterr(**how)),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (gc.get_threshold, lambda numbers: gc.set_threshold(*numbers)),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (lambda: list(sys.path), lambda folders: sys.path.__setitem__(slice(None), folders)),
    (lambda: _working_directory(), lambda before: None if before is None else os.chdir(before)),
    (lambda: dict(os.environ), lambda before: _restore_environment(before)),
    (lambda: signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0), lambda _: signal.setitimer(signal.ITIMER_REAL, 0.0)),
)
"""Pairs of a function that reads a setting and one that restores it."""

C = ctypes.CDLL(None)

LIBRARIES = frozenset(("concurrent", "lm", "multiprocessing", "torch", "tqdm"))
"""Packages whose threads may stay: those of a compiler and its progress bar, and the one that watches the parent."""


@contextmanager
def restore_process_state() -> Iterator[list[str]]:
    """Restore on exit the process state that the block changed; yield a list of what could not be restored.

    The list is filled on exit. After an exception nothing is restored, as the process is about to end.
    """
    unrestored: list[str] = []
    saved_streams = [_duplicate(number) for number in (1, 2)]
    flags = [(holder, name, getattr(holder, name)) for holder, name in FLAGS]
    switches = [(read, restore, read()) for read, restore in SWITCHES]
    rng_state, loggers, handlers = _rng_state(), _save_loggers(), _signal_handlers()
    threads_before = set(threading.enumerate())
    with warnings.catch_warnings():
        yield unrestored
        gc.collect()  # warnings that this raises belong to the cell
        _flush()
    for number, saved_fd in zip((1, 2), saved_streams, strict=True):
        os.dup2(saved_fd, number)
        os.close(saved_fd)
    for read, restore, value in switches:  # the first of them sets some of the flags
        _restore(unrestored, restore, read, value)
    for holder, name, value in flags:
        _restore(unrestored, functools.partial(setattr, holder, name), functools.partial(getattr, holder, name), value)
    torch.set_flush_denormal(False)  # it cannot be read
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    for logger, state in loggers:
        vars(logger).update({name: list(value) if isinstance(value, list) else value for name, value in state.items()})
    logging.root.setLevel(logging.root.level)  # also clears the cached levels of all loggers
    _restore_rng(rng_state)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(torch.initial_seed())
        torch.cuda.empty_cache()
    if (trim := getattr(C, "malloc_trim", None)) is not None:  # glibc keeps freed memory
        trim(0)
    unrestored += [
        f"the thread {leftover.name}"
        for leftover in threading.enumerate()
        if leftover not in threads_before and not _is_library_thread(leftover)
    ]
    unrestored += [f"the process {leftover.pid}" for leftover in multiprocessing.active_children()]


def _restore(unrestored: list[str], write: Callable[[Any], Any], read: Callable[[], Any], value: Any) -> None:
    """Set a value back if it has changed; append the error to `unrestored` if that fails."""
    try:
        if read() != value:
            write(value)
    except (RuntimeError, ValueError, OSError) as error:
        unrestored.append(str(error))


def _duplicate(number: int) -> int:
    """Duplicate a file descriptor, or open the null device if it is closed."""
    try:
        return os.dup(number)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _flush() -> None:
    """Flush standard output and error, including the buffers of C."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    C.fflush(None)


def _working_directory() -> str | None:
    """Return the working directory, None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _restore_environment(before: dict[str, str]) -> None:
    """Restore the environment variables."""
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _rng_state() -> tuple[Any, ...]:
    """Return the states of the global random number generators of Python, NumPy and torch."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore_rng(state: tuple[Any, ...]) -> None:
    """Restore the states of the global random number generators."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def _save_loggers() -> list[tuple[logging.Logger, dict[str, Any]]]:
    """Return all loggers with copies of their settings; a logger created later keeps what its module sets."""
    candidates = [logging.root, *logging.root.manager.loggerDict.values()]
    names = ("level", "propagate", "disabled", "handlers", "filters")
    return [
        (logger, {name: value.copy() if isinstance(value := getattr(logger, name), list) else value for name in names})
        for logger in candidates
        if isinstance(logger, logging.Logger)
    ]


def _signal_handlers() -> dict[int, Any]:
    """Return the handler of each signal that can be handled, except handlers set outside Python."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {
        number: handler
        for number, handler in handlers.items()
        if handler is not None and number not in (signal.SIGKILL, signal.SIGSTOP)
    }


def _is_library_thread(thread: threading.Thread) -> bool:
    """Return True for a thread of a library, which works only when called."""
    target = getattr(thread, "_target", None)
    module = type(thread).__module__ if target is None else getattr(target, "__module__", "")
    return isinstance(thread, threading._DummyThread) or str(module).split(".")[0] in LIBRARIES
