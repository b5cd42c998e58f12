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
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from lm import __version__
from lm.config.fingerprint import dotted_classes, source_files
from lm.config.imported import add_module_folder, import_object
from lm.config.plain import shown
from lm.config.tree import InputError, path_name
from lm.data.cache import cache_folder, ensure_entry
from lm.execution.executor import Executor, Job, Message, Outcome, disk_message, require_whole
from lm.execution.factory import HOST_PORT
from lm.execution.local import RemoteWorker
from lm.execution.machine import cores, env_threads, threads_each
from lm.store.files import PARTIAL_CHECKPOINT, disk_error, temporary_folder, write_atomic
from lm.store.leases import LostError
from lm.store.locks import FIRST_SECONDS, BackoffReporter
from lm.store.side_files import PROGRESS_FILE as PROGRESS
from lm.store.store import Store
from lm.training.cell import identity
from lm.training.identified import Cell
from lm.training.process import Execution

with contextlib.suppress(ImportError):  # `parse_executor` names the package that is missing
    import ray
    from ray.exceptions import RayError, RayTaskError

GRACE_SECONDS = 15.0  # time in which cells end before their actors are killed
STARTS = 5  # actors of a cell that may be lost before it begins, as on a node that has gone without the cluster knowing
MEMORY_MB, LEAST_MEMORY = 500, 80  # object store of a cluster that this process starts, in MB, and the smallest one
REACH_SECONDS = 5.0  # time limit of a connection to the address of a cluster
POLL_SECONDS, ANSWER_SECONDS = 0.5, 0.05  # in which messages are collected; while an answer is due

PIECE = 32 * 2**20  # bytes of a file that are sent at a time
OWN = (PARTIAL_CHECKPOINT, PROGRESS)  # files of a work folder that are not sent, as they belong to one attempt
MARKS = ("last.ckpt", "outcome.json")  # files whose change is a reason to send all changes
Files = Sequence[tuple[str, Sequence[Any]]]  # names of files below a folder, each with the references of its pieces
Letter = tuple[list[Message], dict[str, bytes]]  # messages of a cell, the last of them maybe its end; changed files


@dataclass(frozen=True)
class Order:
    """A cell with what a node needs: files of its text and an earlier attempt, and user modules by name and file."""

    cell: Cell
    execution: Execution
    name: str
    threads: int
    text: Files
    work: Files
    code: Sequence[tuple[str, str, bytes]]
    version: str = __version__


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
            closing = [job.actor.close.remote() for job in self.jobs if job.has_started]
            ray.wait(closing, num_returns=len(closing), timeout=GRACE_SECONDS) if closing else None
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


# at the sender -------------------------------------------------------------------------------------------------------


def files_below(folder: Path, put: Callable[[bytes], Any], leave: Sequence[str] = ()) -> Files:
    """Pass each piece of the files in a folder, except hidden ones, to `put`."""
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not _hidden(name) and str(name) not in leave:
            with path.open("rb") as file:
                files.append((name.as_posix(), [put(piece) for piece in iter(lambda: file.read(PIECE), b"")]))
    return files


def code_of(cell: Cell) -> list[tuple[str, str, bytes]]:
    """Return the user modules of a cell by name. Raises InputError if one has changed since it was planned."""
    files: dict[str, Path] = {}
    for name in dotted_classes(cell.config):
        files |= source_files(import_object(name, name))
    return [(module, path.name, path.read_bytes()) for module, path in sorted(files.items())]


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write received files, the outcome last but one and the record last."""
    last = ("outcome.json", "record.json")
    for name in sorted(files, key=lambda name: (name in last, name)):
        write_atomic(folder / name, files[name])


# on the node ---------------------------------------------------------------------------------------------------------


class CellTrainer:
    """Actor that trains one cell after the other, each in a folder of its own; user modules stay importable."""

    def __init__(self) -> None:
        self.own = tempfile.TemporaryDirectory(prefix="lm-ray-", dir=temporary_folder(), ignore_cleanup_errors=True)

    def start(self, order: Order, get: Callable[[Any], Any]) -> Letter:
        """Start a cell and return an empty letter. Raises InputError if it cannot be trained here."""
        host = socket.gethostname()
        if order.version != __version__:
            hint = f"has lm {__version__}, and cells come from {order.version}; install the same there"
            raise InputError(f"{host}: {hint}")
        os.environ["OMP_NUM_THREADS"] = str(order.threads)
        sys.modules["__main__"].__file__ = None  # training processes would run it, and it is Ray's
        self.folder = tempfile.TemporaryDirectory(dir=self.own.name, ignore_cleanup_errors=True)
        self.store = Store(Path(self.folder.name))
        self.cell = unpack_cell(order, get, Path(self.own.name, "code"))
        if isinstance(self.cell, Cell) and identity(self.cell.config, self.cell.facts) != self.cell.id:
            raise InputError(
                f"{host}: would compute another cell than was planned; install there the version of lm that is "
                "installed here, and none of the modules that the configuration names"
            )
        work = self.store.work(self.cell.id)
        unpack(order.work, get, work)
        self.changes, self.worker = Changes(work), RemoteWorker(self.store, 1)
        self.worker.submit(self.cell, order.execution, order.name)
        return [], {}

    def take(self) -> Letter:
        """Return the messages of the next moment with the changed files."""
        messages = self.worker.take_messages(ANSWER_SECONDS if self.worker.awaits_answer else POLL_SECONDS)
        work = self.store.work(self.cell.id)
        if self.worker.jobs:
            return messages, self.changes.take(work, whole=False)
        finished = self.store.directory(self.cell.id) if self.store.finished(self.cell.id) else work
        files = self.changes.take(finished, whole=True)
        self.close()
        return messages, files

    def answer(self, goes_on: bool) -> None:
        """Answer the last validation."""
        self.worker.answer_last(goes_on)

    def close(self) -> None:
        """End the training, if any, and delete the folder of the cell."""
        self.worker.close()
        self.folder.cleanup()


def unpack_cell(order: Order, get: Callable[[Any], bytes], code: Path) -> Cell:
    """Write the files of an order, user modules into `code`, and return the cell with the paths of this machine."""
    for module, name, content in order.code:
        parts = module.split(".")
        path = code.joinpath(*(parts if name == "__init__.py" else parts[:-1]), name)
        if not path.is_file() or path.read_bytes() != content:  # a file written again would count as changed
            write_atomic(path, content)
    if order.code:
        add_module_folder(code)
    cell = order.cell
    if cell.facts is not None and order.text:
        source = Path(cell.facts.folder)
        folder = cache_folder() / path_name(source.parent.name, "text") / path_name(source.name, "text")
        ensure_entry(folder, {}, lambda staging: unpack(order.text, get, staging))
        cell = replace(cell, facts=replace(cell.facts, folder=str(folder.resolve())))
    return cell


def unpack(files: Files, get: Callable[[Any], bytes], folder: Path) -> None:
    """Write files below a folder."""
    for name, parts in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(map(get, parts))


def _hidden(path: Path) -> bool:
    """Return True if a part of the path begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


class Changes:
    """Changes in the folder of a cell since the last call; the other side has the files that it starts with."""

    def __init__(self, folder: Path) -> None:
        self.sent = _stamps(folder)

    def take(self, folder: Path, whole: bool) -> dict[str, bytes]:
        """Return the changed files: the progress alone, unless there is a new checkpoint or `whole` is set."""
        stamps = _stamps(folder)
        changed = {name for name, stamp in stamps.items() if self.sent.get(name) != stamp}
        if not (whole or changed & set(MARKS)):
            changed &= {PROGRESS}
        contents: dict[str, bytes] = {}
        for name in sorted(changed):
            with contextlib.suppress(FileNotFoundError):  # replaced or renamed meanwhile; the next call sends it
                contents[name] = (folder / name).read_bytes()
                self.sent[name] = stamps[name]
        return contents


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return time, size and number of each file below a folder that is sent."""
    stamps = {}
    for parent, _, files in os.walk(folder):
        for path in (Path(parent, name) for name in files):
            name = path.relative_to(folder)
            if not _hidden(name) and PARTIAL_CHECKPOINT not in name.parts:
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    stamps[name.as_posix()] = stat.st_mtime_ns, stat.st_size, stat.st_ino
    return stamps
