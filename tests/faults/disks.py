"""A disk that is full, and a folder that cannot be written to, in the middle of a run."""

import os
import subprocess

from faults.place import Place, StuckError
from faults.trial import Trial, last_line

MIB = 2**20
SMALL_MIB = 64
"""Of the disk that is filled: several times what a run leaves."""


def no_mounting() -> str:
    """Why no disk of one's own can be mounted here; nothing where it can."""
    if os.geteuid() != 0:
        return "needs root, to mount a small disk"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    return "" if done.returncode == 0 else "needs the right to mount a small disk"


def mount(*words: str) -> None:
    """Raises StuckError where the system refuses."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise StuckError(f"{' '.join(words)}: {done.stderr.strip()}")


LARGEST_BYTES = 100_000
"""Of a file where files are limited: less than a checkpoint."""


def limit(trial: Trial) -> None:
    """Let no file become as large as a checkpoint after a kill; the command says so and ends, and goes on without."""
    place = trial.place
    trial.cut()
    code = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({LARGEST_BYTES}, {LARGEST_BYTES}))\n"
    process = place.start(place.begins_with(place.folder / "limited", code))
    said = place.ended(process, UNDONE)
    trial.hit("the size of files")
    last = last_line(said)
    if "File too large" not in last or "Traceback" in said:
        raise StuckError(f"a limit on the size of files was not named: {last}")
    trial.done()


UNDONE = 1
"""The exit code of a command that a disk stopped."""


def full(trial: Trial) -> None:
    """Fills the disk of the results after the first checkpoint; the command says so and ends, and goes on with room."""
    place = trial.place
    mount("mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "lm-faults", str(place.out))
    try:
        process = trial.begun()
        _fill(place)
        trial.hit("the disk of the results")
        said = place.ended(process, None)
        if process.returncode == 0 or "No space left" not in said:
            raise StuckError(f"a full disk was not named: {last_line(said)}")
        (place.out / BALLAST).unlink()
        trial.done()
        _bring_down(place)
    finally:
        subprocess.run(["umount", "-l", str(place.out)], capture_output=True)


BALLAST = "ballast"


def _fill(place: Place) -> None:
    with (place.out / BALLAST).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB // 16))
        except OSError:
            return


def _bring_down(place: Place) -> None:
    """Copies the results from the small disk to where it was mounted."""
    aside = place.folder / "copied"
    mount("cp", "-a", str(place.out), str(aside))
    mount("umount", "-l", str(place.out))
    place.out.rmdir()
    aside.rename(place.out)


def read_only(trial: Trial) -> None:
    """Takes away the right to write into the results after the first checkpoint, and gives it back for the next."""
    place = trial.place
    process = trial.begun()
    mount("mount", "--bind", str(place.out), str(place.out))
    try:
        mount("mount", "-o", "remount,bind,ro", str(place.out))
        trial.hit("the folder of the results")
        said = place.ended(process, None)
    finally:
        subprocess.run(["umount", "-l", str(place.out)], capture_output=True)
    if process.returncode == 0 or "Read-only file system" not in said:
        raise StuckError(f"a folder that cannot be written to was not named: {last_line(said)}")
    trial.done()
