"""What a cell changes in its process beside its files, put back before the next: a cell is to find what a fresh process
would have.

What cannot be put back is told, and the process takes no other cell.
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
"""Attributes that are read and set as such."""

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
    (lambda: _folder(), lambda before: None if before is None else os.chdir(before)),
    (lambda: dict(os.environ), lambda before: _environment(before)),
    (lambda: signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0), lambda _: signal.setitimer(signal.ITIMER_REAL, 0.0)),
)
"""How something is read, and how it is set to what was read."""

C = ctypes.CDLL(None)

LIBRARIES = frozenset(("concurrent", "lm", "multiprocessing", "torch", "tqdm"))
"""Whose threads may go on: those of a compiler and of its progress, and the one that watches over the parent."""


@contextmanager
def restore_process_state() -> Iterator[list[str]]:
    """Puts back what a block has changed in this process, and fills a list with what it left and cannot be put back.

    After an exception nothing is put back: the process is to end of it.
    """
    left: list[str] = []
    streams = [_kept(number) for number in (1, 2)]
    flags = [(holder, name, getattr(holder, name)) for holder, name in FLAGS]
    switches = [(read, put, read()) for read, put in SWITCHES]
    drawn, loggers, handlers = _drawn(), _loggers(), _handlers()
    threads = set(threading.enumerate())
    with warnings.catch_warnings():
        yield left
        gc.collect()  # what that says is of the cell
        _flush()
    for number, kept in zip((1, 2), streams, strict=True):
        os.dup2(kept, number)
        os.close(kept)
    for read, put, value in switches:  # the first of which sets some of the flags
        _put_back(left, put, read, value)
    for holder, name, value in flags:
        _put_back(left, functools.partial(setattr, holder, name), functools.partial(getattr, holder, name), value)
    torch.set_flush_denormal(False)  # which nobody can read
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    for logger, state in loggers:
        vars(logger).update({name: list(value) if isinstance(value, list) else value for name, value in state.items()})
    logging.root.setLevel(logging.root.level)  # which also forgets what any of them derived from a level
    _draw_again(drawn)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(torch.initial_seed())
        torch.cuda.empty_cache()
    if (trim := getattr(C, "malloc_trim", None)) is not None:  # of glibc, which keeps what it may need again
        trim(0)
    left += [f"the thread {one.name}" for one in threading.enumerate() if one not in threads and not _of_library(one)]
    left += [f"the process {one.pid}" for one in multiprocessing.active_children()]


def _put_back(left: list[str], put: Callable[[Any], Any], read: Callable[[], Any], value: Any) -> None:
    """Sets something to what it was, if it is anything else; notes where that cannot be done."""
    try:
        if read() != value:
            put(value)
    except (RuntimeError, ValueError, OSError) as error:
        left.append(str(error))


def _kept(number: int) -> int:
    """A copy of an open file, or of one that swallows everything where it is closed."""
    try:
        return os.dup(number)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _flush() -> None:
    """Has all that was printed written, by code in C too."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    C.fflush(None)


def _folder() -> str | None:
    """The working directory, which may be gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _drawn() -> tuple[Any, ...]:
    """How far the generators of random numbers are that everybody shares."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _draw_again(drawn: tuple[Any, ...]) -> None:
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    torch.set_rng_state(drawn[2])


def _loggers() -> list[tuple[logging.Logger, dict[str, Any]]]:
    """All that log, with what they do with it; one that comes later is as its module has made it."""
    every = [logging.root, *logging.root.manager.loggerDict.values()]
    names = ("level", "propagate", "disabled", "handlers", "filters")
    return [
        (one, {name: value.copy() if isinstance(value := getattr(one, name), list) else value for name in names})
        for one in every
        if isinstance(one, logging.Logger)
    ]


def _handlers() -> dict[int, Any]:
    """Of every signal that can be handled, what it does; not of those that other than Python code handles."""
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {
        number: handler
        for number, handler in found.items()
        if handler is not None and number not in (signal.SIGKILL, signal.SIGSTOP)
    }


def _of_library(thread: threading.Thread) -> bool:
    """Whether a thread is one of a library's, which works when it is asked to."""
    target = getattr(thread, "_target", None)
    module = type(thread).__module__ if target is None else getattr(target, "__module__", "")
    return isinstance(thread, threading._DummyThread) or str(module).split(".")[0] in LIBRARIES
