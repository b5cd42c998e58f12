"""Parse executors of a command line: `local`, `ray`, `ray://HOST:PORT`, `slurm:partition=gpu,time=60`.

No executor is imported, so that a typo is reported before anything starts.
"""

import importlib.util
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lm.config.plain import shown
from lm.config.tree import InputError, nearest

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "local": {},
    "ray": {"address": "HOST:PORT of a cluster that this machine is a node of", "memory": "MB of its object store"},
    "slurm": {
        "partition": "as sbatch takes it",
        "account": "as sbatch takes it",
        "qos": "as sbatch takes it",
        "constraint": "as sbatch takes it",
        "exclude": "as sbatch takes it",
        "time": "minutes, H:M:S or D-H:M:S for a job; one that needs longer goes on from its checkpoint",
        "mem": "memory of a job, such as 8GB",
        "cpus": "cores of a job, each a thread",
        "gpus": "devices of a job",
        "executor": "slurm, or local: jobs without SLURM, on this machine",
    },
}
"""Options of each executor after its name."""

PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""Package that each executor but the local one needs, in an extra of its own name."""

WHOLE = ("memory", "cpus", "gpus")
"""Options that are whole numbers from 1."""

LEAST_MEMORY = 80
"""Smallest object store of Ray in MB."""

REACH_SECONDS = 5.0
"""Time limit of a connection to the address of a cluster."""

TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
HOST_PORT = re.compile(r"[\w.-]+:[0-9]{1,5}")
PLAIN = re.compile(r"[\w.:&|*()\[\]/+-]+")
"""Values that go into a batch script unquoted."""


@dataclass(frozen=True)
class ExecutorSpec:
    """Name and options of an executor."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


def parse_executor(value: object, where: str = "--executor") -> ExecutorSpec:
    """Parse the text of an executor and check that its package is installed.

    Args:
        value: as on a command line.
        where: name of the option or argument, for messages.

    Raises:
        InputError: if there is no such executor or option, or its package is not installed.
    """
    text = value if isinstance(value, str) else ""
    name, _, rest = text.partition(":")
    if name not in OPTIONS:
        wrong = shown(name if text else value)
        raise InputError(
            f"{where}: no executor {wrong}.{nearest(name, list(OPTIONS))} Choose from {', '.join(OPTIONS)}"
        )
    if name == "ray" and rest.startswith("//"):
        options = {"address": text}
        if not HOST_PORT.fullmatch(rest[2:]):
            raise InputError(f"{where} {text}: expected ray://HOST:PORT, as in ray://head.example:10001")
    else:
        options = _options(name, rest, f"{where} {name}")
    _check(name, options, f"{where} {name}")
    if name == "slurm" and options.get("executor") != "local" and shutil.which("sbatch") is None:
        raise InputError(f"{where} slurm: no sbatch on this machine; give the command where SLURM's commands are")
    outside = options.get("address", "").startswith("ray://")
    for package in filter(None, (PACKAGES.get(name), "grpc" if outside else None)):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{where} {name} needs {package}: pip install 'lm-ablations[{name}]'")
    return ExecutorSpec(name, options)


def usable(value: object, loggers: Sequence[str], where: str = "--executor", of_loggers: str = "--logger") -> str:
    """Return the executor if it can train the cells, after a check that it can be reached.

    Args:
        value: as on a command line.
        loggers: names of the loggers of the runs.
        where: name of the option or argument of the executor, for messages.
        of_loggers: name of the option or argument of the loggers.

    Raises:
        InputError: if there is no such executor, it cannot be reached, or it does not support loggers.
    """
    spec = parse_executor(value, where)
    if spec.name == "ray" and loggers:
        raise InputError(
            f"{of_loggers}: what is logged on a node of a Ray cluster stays there; expected another {where}"
        )
    reach(spec.options.get("address"), f"{where} ray")
    return str(value)


def reach(address: str | None, where: str = "--executor ray") -> None:
    """Check that something listens at the address of a cluster, as Ray would wait long. Raises InputError."""
    if address is None or address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"{where}: {address} cannot be reached ({error}); is the cluster up?") from None


def _options(name: str, text: str, where: str) -> dict[str, str]:
    """Parse KEY=VALUE,KEY=VALUE."""
    options: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        choices = OPTIONS[name]
        if key not in choices:
            listed = f"Choose from {', '.join(choices)}" if choices else "It takes none"
            raise InputError(f"{where}: no option {shown(key)}.{nearest(key, list(choices))} {listed}")
        if not equals or not value:
            raise InputError(f"{where}: {key}: expected {key}=VALUE, {choices[key]}")
        if key in options:
            raise InputError(f"{where}: {key} is given twice")
        options[key] = value
    return options


def _check(name: str, options: Mapping[str, str], where: str) -> None:
    """Check the values of the options. Raises InputError."""
    for key, value in options.items():
        if key in WHOLE and not (value.isascii() and value.isdecimal() and len(value) < 9 and int(value)):
            raise InputError(f"{where}: {key}: expected a whole number from 1, found {shown(value)}")
        if not PLAIN.fullmatch(value):
            raise InputError(f"{where}: {key}: expected {OPTIONS[name][key]}, found {shown(value)}")
    if int(options.get("memory", LEAST_MEMORY)) < LEAST_MEMORY:
        raise InputError(f"{where}: memory: expected {LEAST_MEMORY} MB or more, found {options['memory']}")
    if "memory" in options and "address" in options:
        raise InputError(f"{where}: memory is of a cluster started for the purpose; one with an address has its own")
    address = options.get("address", "auto").removeprefix("ray://")
    if address != "auto" and not HOST_PORT.fullmatch(address):
        raise InputError(f"{where}: address: expected HOST:PORT or auto, found {shown(address)}")
    if options.get("executor", "slurm") not in ("slurm", "local"):
        raise InputError(f"{where}: executor: expected slurm or local, found {shown(options['executor'])}")
    if "time" in options:
        minutes(options["time"], where)
    if "mem" in options and not re.fullmatch(r"[0-9]+\s*[KMGT]B?", options["mem"], re.IGNORECASE):
        raise InputError(f"{where}: mem: expected a number with its unit, such as 8GB, found {shown(options['mem'])}")


def minutes(text: str, where: str = "--executor slurm") -> int:
    """Convert a time as sbatch takes it (M, M:S, H:M:S or D-H[:M[:S]]) to whole minutes. Raises InputError."""
    match = TIME.fullmatch(text)
    if match is None or len(text) > 20:
        raise InputError(f"{where}: time: expected minutes, H:M:S or D-H:M:S, found {shown(text)}")
    days, *parts = (None if part is None else int(part) for part in match.groups())
    fields = [part for part in parts if part is not None]
    if days is not None:
        hours, mins, seconds = [*fields, 0, 0][:3]
    elif len(fields) == 3:
        hours, mins, seconds = fields
    else:
        hours, (mins, seconds) = 0, [*fields, 0][:2]
    total = (((days or 0) * 24 + hours) * 60 + mins) * 60 + seconds
    if total <= 0:
        raise InputError(f"{where}: time: expected more than nothing, found {shown(text)}")
    return -(-total // 60)
