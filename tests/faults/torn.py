"""Files that are torn, as a machine that lost its power may leave them."""

import os
from pathlib import Path

from faults.place import StuckError
from faults.trial import ALL, Trial, kill, last_line


def checkpoint(trial: Trial) -> None:
    """Cuts the checkpoints of a run that was killed short; their cells begin anew."""
    trial.cut()
    for path in sorted((trial.place.out / "cells").glob(".*.work/last.ckpt")):
        tear(trial, path)
    trial.done()


def notes(trial: Trial) -> None:
    """Cuts short what a run that was killed left beside its checkpoints, of a cell that was trained to its end too."""
    process = trial.place.start()
    if not trial.place.until(lambda: any((trial.place.out / "cells").glob(".*.work/outcome.json")), process):
        raise StuckError("no cell was seen between the end of its training and its record")
    kill(trial.place, process, ALL)
    for path in sorted((trial.place.out / "cells").glob(".*.work/*.json")):
        tear(trial, path)
    trial.done()


def record(trial: Trial) -> None:
    """Cuts the record of a finished cell short: the command names it, and trains it again once its folder is gone."""
    trial.done()
    path = trial.random.choice(sorted((trial.place.out / "cells").glob("[0-9a-f]*/record.json")))
    tear(trial, path)
    process = trial.place.start()
    said = trial.place.ended(process, None)
    if process.returncode == 0 or str(path) not in said:
        raise StuckError(f"a torn record was not named: {last_line(said)}")
    forget(trial, path.parent)
    trial.done()


def forget(trial: Trial, folder: Path) -> None:
    """Deletes a finished cell, as the command says to."""
    trial.finished.look()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    trial.finished.forget(folder.name)


def cache(trial: Trial) -> None:
    """Cuts the prepared text in the cache short, while no command runs; it is made again."""
    trial.cut()
    for path in sorted(trial.place.cache.glob("tokens/*/*.npy")):
        tear(trial, path)
    if "made again" not in trial.done():
        raise StuckError("a torn cache was taken for a sound one")


def journal(trial: Trial) -> None:
    """Cuts the last line of a search's journal short after a kill."""
    trial.cut()
    path = trial.place.report / "study.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    tear(trial, path, len(b"".join(lines[:-1])) + trial.random.randrange(1, len(lines[-1])))
    trial.done()


def tear(trial: Trial, path: Path, size: int | None = None) -> None:
    """Leaves the first `size` bytes of a file, a number drawn at random where it is not given."""
    os.truncate(path, trial.random.randrange(path.stat().st_size) if size is None else size)
    trial.hit(path.name if path.suffix != ".npy" else "prepared text")
