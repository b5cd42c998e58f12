"""Files of a results folder: written whole or not at all, read with errors that name them; disks, links and CSV."""

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, require_regular
from lm.store.leases import guarding_lease
from lm.store.locks import is_of_exited_process, process_signature

# errors of disks -----------------------------------------------------------------------------------------------------

DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
DISK_ERRORS = frozenset((*DISK_FULL, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE))
"""Errors of a disk, which any run may meet at any time and which are no result of it."""

PATH_ERRORS = frozenset((errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG))
"""Errors of a path, which last until the user changes it or what lies there."""


def disk_error(error: BaseException | None) -> OSError | None:
    """Return the error of a disk that caused an error; None without one."""
    visited: list[BaseException] = []
    while error is not None and error not in visited:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            return error
        visited.append(error)
        error = error.__cause__
    return None


def with_path(error: OSError, path: object) -> OSError:
    """Return an error with the path of its file, which the system leaves out if writing fails."""
    return OSError(error.errno, error.strerror or str(error), str(path))


def explain_disk_error(error: OSError, then: str) -> str:
    """Explain an error of a file, with its path, in one line; `then` is the effect of another try once it is solved."""
    where = "" if error.filename is None else f"{error.filename}: "
    remedy = "; make room" if error.errno in DISK_FULL else ""
    if error.errno == errno.EFBIG:
        remedy = "; allow larger files: `ulimit -f` shows the limit, and a file system may have one"
    return f"{where}{error.strerror}{remedy}{f'; {then}' if error.errno in DISK_ERRORS else ''}"


def temporary_folder() -> str:
    """Return the folder for temporary files; raise InputError if none of the system's can be used."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        tried = error.strerror.partition("[")[2].rstrip("]") if error.strerror else ""
        problem = f"TMPDIR: temporary files can be written nowhere, tried {tried or 'all folders there are'}"
        remedy = "make room, or name a folder that can be written to, as in TMPDIR=/var/tmp"
        raise InputError(f"{problem}; {remedy}") from None


# writing -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _staging(path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield the folder in which `path` is written first, and the check of the lease before it is renamed into place."""
    lease = guarding_lease(path.parent)
    check = (lambda: None) if lease is None else lease.check
    try:
        yield path.parent if lease is None else lease.staging_dir(path.parent), check
    except OSError as error:  # of a copy, the second file is the one being written
        if isinstance(error, FileNotFoundError | FileExistsError):  # a successor removed the folder, or did meanwhile
            check()
        raise with_path(error, error.filename2 or path) from error


def write_atomic(path: Path, content: str | bytes, sync: bool = True) -> None:
    """Write a file under another name and rename it, never half; raise LostError if its lease was taken over.

    Without `sync`, which waits for the disk, a machine that fails soon after may leave a damaged file.
    """
    with _staging(path) as (folder, check):
        folder.mkdir(parents=True, exist_ok=True)
        prefix = f".{path.name}."
        for name in os.listdir(folder) if folder == path.parent else ():  # a staging directory is removed as a whole
            if name.startswith(prefix) and is_of_exited_process(name.removeprefix(prefix).partition(".")[0]):
                (folder / name).unlink(missing_ok=True)  # left by a killed process of this machine
        temporary = folder / f"{prefix}{process_signature()}.{secrets.token_hex(4)}"
        try:
            with open(temporary, "xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            check()
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def to_json(value: Any) -> str:
    """Format a value as indented JSON with a final newline; refuse NaN, as null stands for a missing number."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return a tree of values with None for each number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list) else value


def read_json(path: Path) -> Any:
    """Read the JSON file at `path`; raise InputError with the path, if there is none."""
    try:
        require_regular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


def holds_mapping(path: Path) -> bool:
    """Return True for a file of JSON that holds a mapping, which one cut short does not."""
    try:
        return isinstance(read_json(path), dict)
    except InputError:
        return False


# checkpoints ---------------------------------------------------------------------------------------------------------

PARTIAL_CHECKPOINT = "saving.ckpt"  # name of a checkpoint that is being written


def remove(path: Path) -> None:
    """Remove the file or the folder at `path`, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def save_checkpoint(trainer: Any, path: Path) -> None:
    """Write a Lightning checkpoint, whole or not at all; raise LostError if its lease was taken over."""
    with _staging(path) as (folder, check):  # the lease is of the first process, alone
        if trainer.is_global_zero:
            remove(folder / PARTIAL_CHECKPOINT)  # of an attempt that was killed
        partial = Path(trainer.strategy.broadcast(str(folder / PARTIAL_CHECKPOINT)))
        trainer.save_checkpoint(partial)
        if trainer.is_global_zero:
            check()
            os.replace(partial, path)


def is_intact(checkpoint: Path) -> bool:
    """Return True if the file of a checkpoint agrees with the checksums that torch keeps of its parts."""
    try:
        with zipfile.ZipFile(checkpoint) as parts:
            return parts.testzip() is None
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return False


# CSV that no spreadsheet runs ----------------------------------------------------------------------------------------

MARK = "'"
"""First character of an escaped cell.

A spreadsheet runs a cell that begins with =, +, -, @, a tab or an end of line as a formula. As OWASP advises ("CSV
Injection"), such a text gets a leading apostrophe, and a spreadsheet shows it as text. Numbers stay as they are.
"""

_RUNS = re.compile(rf"{MARK}*[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001 - spreadsheets take wide signs too
_PLAIN = re.compile(r"-|[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|nan)")
"""Numbers, and the dash that tables show for a missing one: a spreadsheet runs neither."""


def escape_formula(text: str) -> str:
    """Return a text with a leading apostrophe if a spreadsheet would run it, else the text.

    A text that looks escaped is escaped once more, so that `unescape_formula` returns each text as it was.

    >>> escape_formula("=1+1"), escape_formula("-0.5"), escape_formula("glu"), escape_formula("'=1+1")
    ("'=1+1", '-0.5', 'glu', "''=1+1")
    """
    return MARK + text if _RUNS.match(text) and not _PLAIN.fullmatch(text) else text


def unescape_formula(text: str) -> str:
    """Return a text as it was before `escape_formula`.

    >>> unescape_formula("'=1+1"), unescape_formula("'quoted'")
    ('=1+1', "'quoted'")
    """
    return text[1:] if text.startswith(MARK) and _RUNS.match(text) else text


def escape_cell(cell: object) -> object:
    """Return a cell of any type, a text as `escape_formula` writes it."""
    return escape_formula(cell) if isinstance(cell, str) else cell


def read_csv_rows(content: str | Iterable[str], delimiter: str = ",", strict: bool = False) -> list[list[str]]:
    """Read the rows of CSV, with its texts as they were before escaping; if strict, raise csv.Error."""
    lines = io.StringIO(content) if isinstance(content, str) else content
    return [[unescape_formula(cell) for cell in row] for row in csv.reader(lines, delimiter=delimiter, strict=strict)]


def curve_csv(rows: Mapping[int, Mapping[str, float]]) -> str:
    """Format a learning curve as CSV: a row for each step, a column for each quantity measured at any step."""
    columns = list(dict.fromkeys(name for step in sorted(rows) for name in rows[step]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *map(escape_formula, columns)])
    writer.writerows([step, *(rows[step].get(name, "") for name in columns)] for step in sorted(rows))
    return text.getvalue()


# links ---------------------------------------------------------------------------------------------------------------


def require_own(out: Path, names: Sequence[str]) -> None:
    """Raise InputError if something in a folder of results leads outside: a link out of it, a pipe, a device.

    A link that stays inside is followed, and its target checked too. The folder itself may be a link. `names` are those
    of the files and folders in it to check, down to the last file; they may be missing.
    """
    top, visited = os.path.realpath(out), set[str]()
    waiting = [os.path.join(top, name) for name in names]
    while waiting:
        path = waiting.pop()
        if os.path.islink(path):
            target = os.path.realpath(path)
            if os.path.commonpath((target, top)) != top:
                place = f"{out / os.path.relpath(path, top)}: is a link that leads out of {out}"
                remedy = "expected a folder that holds its own files: put what it leads to in its place"
                raise InputError(f"{place}; {remedy}")
            path = target
        if path in visited:
            continue
        visited.add(path)
        with contextlib.suppress(OSError), os.scandir(path) as entries:  # missing, or no folder: its reader reports it
            for entry in entries:
                if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        if not stat.S_ISREG(os.lstat(entry.path).st_mode):
                            other = out / os.path.relpath(entry.path, top)
                            raise InputError(f"{other}: is neither a file nor a folder; remove it")
