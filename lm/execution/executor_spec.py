"""Executors as they are asked for on a command line: `local`, `ray`, `ray://HOST:PORT`, `slurm:partition=gpu,time=60`.

It imports none of them, so that a wrong word is answered before anything starts.
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
"""What each executor takes after its name."""

PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""What each executor but the local one needs, in an extra of its own name."""

WHOLE = ("memory", "cpus", "gpus")
"""Options that are whole numbers from 1."""

LEAST_MEMORY = 80
"""MB that Ray takes for an object store."""

REACH_SECONDS = 5.0
"""In which the machine of a cluster's address takes a connection."""

TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
HOST_PORT = re.compile(r"[\w.-]+:[0-9]{1,5}")
PLAIN = re.compile(r"[\w.:&|*()\[\]/+-]+")
"""What goes into a batch script as it is."""


@dataclass(frozen=True)
class ExecutorSpec:
    """An executor by its name, with what was said of it."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


def parse_executor(given: object, where: str = "--executor") -> ExecutorSpec:
    """The executor that is asked for at `where`.

    Raises:
        InputError: where there is none of that name, it takes no such option, or its package is not installed.
    """
    text = given if isinstance(given, str) else ""
    name, _, rest = text.partition(":")
    if name not in OPTIONS:
        wrong = shown(name if text else given)
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


def usable(given: object, loggers: Sequence[str], where: str = "--executor", of_loggers: str = "--logger") -> str:
    """What trains the cells, where it can.

    Args:
        given: what is asked for at `where`.
        loggers: that are asked for at `of_loggers`, by name.
        where: the option or the argument.
        of_loggers: the same of the loggers.

    Raises:
        InputError: where there is no executor of that name, it cannot be reached, or loggers do not go with it.
    """
    asked = parse_executor(given, where)
    if asked.name == "ray" and loggers:
        raise InputError(
            f"{of_loggers}: what is logged on a node of a Ray cluster stays there; expected another {where}"
        )
    reach(asked.options.get("address"), f"{where} ray")
    return str(given)


def reach(address: str | None, where: str = "--executor ray") -> None:
    """Raises InputError where nothing listens at a cluster's address, for which Ray would wait long."""
    if address is None or address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"{where}: {address} cannot be reached ({error}); is the cluster up?") from None


def _options(name: str, text: str, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        known = OPTIONS[name]
        if key not in known:
            choices = f"Choose from {', '.join(known)}" if known else "It takes none"
            raise InputError(f"{where}: no option {shown(key)}.{nearest(key, list(known))} {choices}")
        if not equals or not value:
            raise InputError(f"{where}: {key}: expected {key}=VALUE, {known[key]}")
        if key in found:
            raise InputError(f"{where}: {key} is given twice")
        found[key] = value
    return found


def _check(name: str, options: Mapping[str, str], where: str) -> None:
    """Raises InputError for a value that cannot be."""
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
    """A time as sbatch takes it, in whole minutes: M, M:S, H:M:S or D-H[:M[:S]]. Raises InputError."""
    found = TIME.fullmatch(text)
    if found is None or len(text) > 20:
        raise InputError(f"{where}: time: expected minutes, H:M:S or D-H:M:S, found {shown(text)}")
    days, *parts = (None if part is None else int(part) for part in found.groups())
    given = [part for part in parts if part is not None]
    if days is not None:
        hours, least, seconds = [*given, 0, 0][:3]
    elif len(given) == 3:
        hours, least, seconds = given
    else:
        hours, (least, seconds) = 0, [*given, 0][:2]
    whole = (((days or 0) * 24 + hours) * 60 + least) * 60 + seconds
    if whole <= 0:
        raise InputError(f"{where}: time: expected more than nothing, found {shown(text)}")
    return -(-whole // 60)
