"""The faults by name: what each does to a run, and why it may have to be left out here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from faults import disks, kills, others, torn
from faults.trial import Trial
from lm.config.tree import InputError, nearest


@dataclass(frozen=True)
class Fault:
    """A fault: `about` says in a line what it does."""

    name: str
    about: str
    inject: Callable[[Trial], None]  # disturbs a run and gives the command until it is done; raises StuckError
    lacking: Callable[[], str] = lambda: ""  # why it cannot be done here, in words; nothing where it can
    sweep: bool = False  # whether a search is disturbed, in the place of an experiment
    more: tuple[str, ...] = ("--workers", "2")  # options of the command
    many: bool = False  # whether it is done again and again, until there were as many as were asked for


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kills", "processes of commands killed at moments drawn at random", kills.kills, many=True),
        Fault("checkpoint", "checkpoints cut short after a kill", torn.checkpoint),
        Fault("resumed", "processes of cells killed after their first checkpoint", kills.resumed, many=True),
        Fault("notes", "all else in work folders cut short after a kill", torn.notes),
        Fault("record", "the record of a finished cell cut short", torn.record),
        Fault("cache", "prepared text in the cache cut short", torn.cache),
        Fault("journal", "the journal of a search cut short after a kill", torn.journal, sweep=True),
        Fault("limit", "no file may be as large as a checkpoint, after a kill", disks.limit),
        Fault("full", "a full disk after the first checkpoint", disks.full, disks.no_mounting),
        Fault("read-only", "results that cannot be written any more", disks.read_only, disks.no_mounting),
        Fault("clock", "the clock set back by a day after a kill", others.clock),
        Fault("two", "two commands at once", others.together, more=("--workers", "1")),
        Fault("three", "three commands at once", others.three, more=("--workers", "1")),
        Fault("leases", "leases removed while two commands run", others.leases, more=("--workers", "1")),
        Fault("two-killed", "two commands at once, one of them killed", others.two, more=("--workers", "1")),
        Fault("stopped", "all processes stopped for a minute, and woken", others.stopped),
    )
}


def chosen(names: Sequence[str]) -> list[Fault]:
    """The faults of these names, all of them where none is given. Raises InputError for one that is not there."""
    for name in names:
        if name not in FAULTS:
            raise InputError(f"--faults: no {name!r}.{nearest(name, list(FAULTS))} Choose from {', '.join(FAULTS)}")
    return [fault for name, fault in FAULTS.items() if not names or name in names]
