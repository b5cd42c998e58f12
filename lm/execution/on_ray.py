"""Executor of a Ray cluster without a shared disk: an actor a cell, whose files go through Ray's object store.

This process alone writes into the store of cells and holds the locks of the cells. Ray sends objects between its
processes as pickles: a cluster is trusted as far as the user's own account.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.execution.executor import Executor, Job, Outcome, disk_message, require_whole
from lm.execution.factory import HOST_PORT
from lm.execution.machine import cores, env_threads, threads_each
from lm.execution.ray_task import (
    OWN,
    CellTrainer,
    Files,
    Letter,
    Order,
    code_of,
    files_below,
    write_files,
)
from lm.store.files import disk_error, temporary_folder
from lm.store.leases import LostError
from lm.store.locks import FIRST_SECONDS, BackoffReporter
from lm.store.store import Store
from lm.training.identified import Cell
from lm.training.process import Execution

with contextlib.suppress(ImportError):  # `parse_executor` names the package that is missing
    import ray
    from ray.exceptions import RayError, RayTaskError

GRACE_SECONDS = 15.0  # time in which cells end before their actors are killed
STARTS = 5  # actors of a cell that may be lost before it begins, as on a node that has gone without the cluster knowing
MEMORY_MB, LEAST_MEMORY = 500, 80  # object store of a cluster that this process starts, in MB, and the smallest one
REACH_SECONDS = 5.0  # time limit of a connection to the address of a cluster


@dataclass(eq=False)
class OnRay(Job):
    """A submitted cell of this executor."""

    lock: ExitStack | None = None  # the cell's lock, None until it is held
    needs: dict[str, float] = field(default_factory=dict)  # cores and devices of its actor
    actor: Any = None  # None while there is none
    letter: Any = None  # Ray's reference to the next letter of the actor
    order: Order | None = None  # with references that the actor may still fetch
    has_started: bool = False
    early: int = 0  # actors lost before the cell had started
    waits: BackoffReporter = field(default_factory=lambda: BackoffReporter(FIRST_SECONDS))


class Ray(Executor):
    """Executor of actors on the nodes of a Ray cluster, or of one to be started with a core for each thread."""

    package = "ray"
    options: ClassVar[Mapping[str, str]] = {
        "address": "HOST:PORT of a cluster that this machine is a node of",
        "memory": "MB of its object store",
    }
    no_loggers = "what is logged on a node of a Ray cluster stays there"

    def __init__(self, store: Store, capacity: int, options: Mapping[str, str] | None = None) -> None:
        super().__init__(store, capacity, options)
        self.texts: dict[str, Files] = {}
        self.idle: list[tuple[dict[str, float], Any]] = []  # actors without a cell, with what they hold of a node
        self.connected = connect(self.settings, max(cores(), capacity * self.threads_each(self.settings, capacity)))
        self.open = True
        self.gpus = ray.cluster_resources().get("GPU", 0) > 0

    def close(self) -> None:
        """End all actors and disconnect from the cluster."""
        if not self.open:
            return
        self.open = False
        with contextlib.suppress(RayError, ConnectionError):
            begun = [job.actor.close.remote() for job in self.jobs if job.has_started]
            ray.wait(begun, num_returns=len(begun), timeout=GRACE_SECONDS) if begun else None
        for job in self.jobs:
            self._release(job)
        self.jobs.clear()
        self._end_idle()
        self.texts.clear()
        if self.connected:
            disconnect()

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if isinstance(error := raised[1], ConnectionError):  # from outside; Ray ends a process on a node that is lost
            raise InputError(f"--executor ray: the cluster was lost: {last_line(error)}") from None

    def _start(self, cell: Cell, execution: Execution, name: str) -> OnRay:
        return OnRay(cell, execution, name)

    # what a command line asks for

    @classmethod
    def packages(cls, options: Mapping[str, str]) -> list[str]:
        """Return the packages that the options need."""
        return ["ray", "grpc"] if options.get("address", "").startswith("ray://") else ["ray"]

    @classmethod
    def check_options(cls, options: Mapping[str, str], where: str) -> None:
        """Raise InputError for options that do not fit together."""
        require_whole(options, ("memory",), where)
        if int(options.get("memory", LEAST_MEMORY)) < LEAST_MEMORY:
            raise InputError(f"{where}: memory: expected {LEAST_MEMORY} MB or more, found {options['memory']}")
        if "memory" in options and "address" in options:
            hint = "one with an address has its own"
            raise InputError(f"{where}: memory is of a cluster started for the purpose; {hint}")
        address = options.get("address", "auto").removeprefix("ray://")
        if address != "auto" and not HOST_PORT.fullmatch(address):
            raise InputError(f"{where}: address: expected HOST:PORT or auto, found {shown(address)}")

    @classmethod
    def check_reachable(cls, options: Mapping[str, str], where: str) -> None:
        """Check that something listens at the address of the cluster, as Ray would wait long. Raises InputError."""
        address = options.get("address", "auto")
        if address != "auto":
            host, _, port = address.removeprefix("ray://").rpartition(":")
            try:
                socket.create_connection((host, int(port)), REACH_SECONDS).close()
            except (OSError, OverflowError, UnicodeError) as error:
                raise InputError(f"{where}: {address} cannot be reached ({error}); is the cluster up?") from None

    @classmethod
    def threads_each(cls, options: Mapping[str, str], workers: int) -> int:
        """Return the number of threads of each cell."""
        return env_threads() or 1 if "address" in options else threads_each(workers)

    @classmethod
    def default_capacity(cls, options: Mapping[str, str], cells: int, search: bool) -> int | None:
        """Return a cell per GPU of the cluster, or by threads without any; at most one per cell."""
        if "address" not in options:
            return None
        connected = connect(options, 1)
        try:
            resources = ray.cluster_resources()
            by_threads = int(resources.get("CPU", 0)) // cls.threads_each(options, 1)
            return min(cells, max(1, int(resources.get("GPU", 0)) or by_threads))
        finally:
            if connected:
                disconnect()

    # from one event to the next

    def _listen(self, seconds: float) -> None:
        for job in [job for job in self.jobs if job.lock is None]:
            self._lock_and_start(job)
        letters = {job.letter: job for job in self.jobs}
        if letters:
            ray.wait(list(letters), timeout=seconds)
        for letter in ray.wait(list(letters), num_returns=len(letters), timeout=0)[0] if letters else ():
            self._receive(letters[letter])
        for job in list(self.jobs):
            if not job.has_started and job.waits.should_report():
                needs = ", ".join(f"{count:zg} {name}" for name, count in job.needs.items())
                line = f"waiting for a node of the Ray cluster with {needs} free, and a worker there"
                self._on_message(job, ("waiting", line))

    def _lock_and_start(self, job: OnRay) -> None:
        """Acquire the lock of the cell, unless another process has it, and start the cell unless it is recorded."""
        lock, cell = ExitStack(), job.cell.id
        if not lock.enter_context(self.store.claim(cell)):
            lock.close()
            self._end(job, Outcome.LOCKED_ELSEWHERE)
        else:
            job.lock = lock
            self.store.complete(cell)
            if self.store.pending(cell, job.execution.retrain):
                self._start_actor(job)
            else:
                self.store.drop(cell)
                self._end(job, Outcome.RECORDED, self.store.record(cell))

    def _needs(self, job: OnRay) -> dict[str, float]:
        """Return the cores and devices that the actor of a cell needs."""
        settings = job.cell.config["trainer"]
        needs = {"CPU": getattr(job.execution, "threads", None) or 1}
        if self.gpus and settings.get("accelerator") != "cpu":
            devices = settings["devices"]
            needs["GPU"] = devices if isinstance(devices, int) and devices > 0 else 1
        return needs

    def _start_actor(self, job: OnRay) -> None:
        """Give the cell and its files to an idle actor, or to a new one with the cores and devices that it needs."""
        cell, job.needs, job.has_started = job.cell, self._needs(job), False
        text: Files = []
        if cell.facts is not None:
            if cell.facts.folder not in self.texts:
                self.texts[cell.facts.folder] = files_below(Path(cell.facts.folder), ray.put, ("sums.json",))
            text = self.texts[cell.facts.folder]
        work, threads = files_below(self.store.work(cell.id), ray.put, OWN), int(job.needs["CPU"])
        job.order = Order(cell, job.execution, job.name, threads, text, work, code_of(cell))
        job.waits.restart()
        fitting = [idle for idle in self.idle if idle[0] == job.needs]
        if fitting:
            self.idle.remove(fitting[0])
            job.actor = fitting[0][1]
        else:
            self._end_idle()  # what they hold may be what is missing
            kind = ray.remote(CellTrainer).options(num_cpus=threads, num_gpus=job.needs.get("GPU", 0))
            job.actor = kind.remote()
        job.letter = job.actor.start.remote(job.order, ray.get)

    def _end_idle(self) -> None:
        for _, actor in self.idle:
            end_actor(actor)
        self.idle.clear()

    def _receive(self, job: OnRay) -> None:
        """Handle the next letter of an actor, or the error that came in its place."""
        try:
            letter: Letter = ray.get(job.letter)
        except RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            if (broken := disk_error(error.cause)) is not None:
                self._end(job, Outcome.INTERRUPTED, broken=disk_message(broken))
            elif not job.has_started:
                raise InputError(f"a node of the Ray cluster cannot train cells: {last_line(error)}") from None
            else:
                self._on_actor_lost(job, f"{type(error.cause).__name__}: {error.cause}")
        except RayError as error:
            self._on_actor_lost(job, f"its Ray worker was lost ({type(error).__name__})")
        else:
            job.has_started = True
            self._handle_letter(job, letter)

    def _handle_letter(self, job: OnRay, letter: Letter) -> None:
        """Write the files of a letter into the store, and handle its messages."""
        messages, files = letter
        try:
            write_files(files, self.store.work(job.cell.id))
            for kind, *values in messages:
                if kind == "ended":
                    self.idle.append((job.needs, job.actor))
                    job.actor = None
                    if not all(other.has_started for other in self.jobs):  # an actor waits for what this one holds
                        self._end_idle()
                    self._handle_end(job, *values)
                    return
                self._on_message(job, (kind, *values))
            job.letter = job.actor.take.remote()
        except LostError as error:  # this process was stopped for long, and another has the cell
            self._on_message(job, ("waiting", str(error)))
            self._end(job, Outcome.LOCKED_ELSEWHERE)
        except OSError as error:
            if (broken := disk_error(error)) is None:
                raise
            self._end(job, Outcome.INTERRUPTED, broken=disk_message(broken))

    def _handle_end(self, job: OnRay, value: str, step: int, broken: Sequence[Any] | None) -> None:
        """Handle the outcome of a cell on its node, whose files are here."""
        outcome, job.step = Outcome(value), max(job.step, step)
        if outcome is Outcome.RECORDED:
            self.store.complete(job.cell.id)
            self._end(job, outcome, self.store.record(job.cell.id))
        elif outcome is Outcome.PRUNED:
            self.store.drop(job.cell.id)
            self._end(job, outcome)
        elif broken is None:
            self._on_actor_lost(job, "what trained it was ended from outside")
        else:
            self._end(job, outcome, broken=broken)

    def _on_actor_lost(self, job: OnRay, cause: str) -> None:
        """Handle the loss of an actor: start the cell again, or end it. One that had not started has lost nothing."""
        early = not job.has_started
        job.early += early
        if (early and job.early < STARTS) or self._on_worker_lost(job, cause):
            end_actor(job.actor)
            self._start_actor(job)

    def _send(self, job: OnRay, goes_on: bool) -> None:
        job.actor.answer.remote(goes_on)

    def _release(self, job: OnRay) -> None:
        """Release the lock of the cell, and kill its actor if the cell has not ended there."""
        if job.lock is not None:
            job.lock.close()
        end_actor(job.actor)
        job.lock, job.actor, job.order = None, None, None


def end_actor(actor: Any) -> None:
    """Kill an actor, if there is one."""
    with contextlib.suppress(RayError, ConnectionError):
        if actor is not None:
            ray.kill(actor)


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which names the cause on the node."""
    return next(line.strip() for line in reversed([type(error).__name__, *str(error).splitlines()]) if line.strip())


# the connection, of which Ray has one per process --------------------------------------------------------------------

_folder: list[str] = []  # folder of a cluster that this process has started


def connect(options: Mapping[str, str], cpus: int) -> bool:
    """Connect to a cluster, or start one with so many cores here; return False if connected. Raises InputError."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = options.get("address")
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            os.environ.setdefault("RAY_worker_niceness", "0")  # as `local`; Ray's own is for nodes that do more
            _folder.append(tempfile.mkdtemp(prefix="lm-ray-", dir=temporary_folder()))
            memory = int(options.get("memory", MEMORY_MB)) * 2**20
            own: Any = {"num_cpus": cpus, "object_store_memory": memory, "_temp_dir": _folder[0]}
            own["include_dashboard"] = False
        else:
            Ray.check_reachable(options, "--executor ray")
            own = {}
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except BaseException as error:
        disconnect()
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        message = " ".join(str(error).split())[:300]
        raise InputError(f"--executor {address or 'ray'}: {message or type(error).__name__}") from None
    finally:
        with contextlib.suppress(ValueError):  # in another thread Ray has set none
            signal.signal(signal.SIGTERM, before)
    return True


def disconnect() -> None:
    """Shut down the connection, and a cluster that this process has started, and delete its folder."""
    ray.shutdown()
    for folder in _folder:
        shutil.rmtree(folder, ignore_errors=True)
    _folder.clear()
