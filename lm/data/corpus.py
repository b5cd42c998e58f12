"""Sources of text. A corpus yields documents; every document belongs to exactly one split."""

import contextlib
import functools
import glob
import hashlib
import itertools
import os
import re
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.config.plain import clipped
from lm.config.tree import InputError, nearest
from lm.data.public import download_hint
from lm.data.text_files import COMPRESSED, Document, Piece, read_pieces

SPLITS = ("train", "validation", "test")
LONGEST_PATH = 500  # characters that a message shows of it
MAX_FILES = 100_000  # paths that a glob may match; more are a mistake, such as a whole file system

Splits = dict[str, list[str]]
LEFT_OUT = {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages", "__pycache__"}


def expand_user(path: str) -> Path:
    """Expand `~` for a user's folder; a path with an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def fingerprint(splits: Splits) -> str:
    """Compute the SHA-256 of all documents with their boundaries and splits."""
    digest = hashlib.sha256()
    for name in SPLITS:
        digest.update(f"{name}:{len(splits[name])}\n".encode())
        for document in splits[name]:
            data = document.encode("utf-8", errors="surrogatepass")
            digest.update(f"{len(data)}\n".encode() + data)
    return digest.hexdigest()


class Corpus(ABC):
    """A source of text."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Yield the texts, in a fixed order."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the texts in pieces, for text of any size."""
        return ((document, True) for document in self.documents())

    def split_pieces(self, fractions: Sequence[float]) -> Mapping[str, Iterable[Piece]] | None:
        """Return the pieces of each split of a source that has splits of its own; None where shares divide it."""
        own = self.splits(fractions)
        return None if own is None else {name: [(text, True) for text in texts] for name, texts in own.items()}

    revision: str | None = None  # of a source that has several

    def pin(self) -> None:  # noqa: B027
        """Fix the revision of a source that may change elsewhere."""

    def count_bytes(self) -> int | None:
        """Return the bytes of the text, where they are known before it is read."""
        return None

    def state(self) -> Any:
        """Return what changes whenever the text may, as JSON holds it; None for a text that is read at each start."""
        return None

    def splits(self, fractions: Sequence[float]) -> Splits | None:
        """Return train, validation and test documents of a source that has splits of its own; None where shares do."""
        return None

    def entropy_rate(self) -> float | None:
        """Return the exact nats per character of the best predictor of a long text; None where unknown."""
        return None


@functools.cache
def _sources(root: Path) -> list[Path]:
    """List the Python files below a folder by the hash of their relative paths; once, as it takes longest."""
    names: list[Path] = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        names += [(Path(folder) / name).relative_to(root) for name in files if name.endswith(".py")]
    names = [name for name in names if name.name not in LEFT_OUT]
    return sorted(names, key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())


class StdlibText(Corpus):
    """Python sources of the running interpreter's standard library: real text, present on every machine.

    A document is the beginning of a file. They come in the order of the SHA-256 of their relative path, so that each
    split is a sample of the whole; tables (encodings, pydoc_data) and tests are left out.

    Args:
        size: characters in all, at most.
        longest: characters of one document, at most, so that no file is most of a split.
    """

    def __init__(self, size: int = 2_000_000, longest: int = 20_000) -> None:
        for name, value in (("size", size), ("longest", longest)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1 character")
        self.size, self.longest = size, longest

    def documents(self) -> Iterator[str]:
        """Yield the sources of the standard library until the size is reached."""
        root = Path(sysconfig.get_paths()["stdlib"])
        remaining = self.size
        for name in _sources(root):
            try:
                text = (root / name).read_text(encoding="utf-8")[: min(remaining, self.longest)]
            except UnicodeDecodeError:
                continue  # a handful of sources declare another encoding
            yield text
            remaining -= len(text)
            if remaining <= 0:
                return


def files_of(patterns: str | list[str], name: str, folders: bool = False) -> list[Path]:
    """List the files that paths or globs name, sorted, perhaps also folders; `name` is the setting that holds them.

    Raises InputError for a pattern that names none.
    """
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        literal, globbed = expand_user(pattern), []
        exists = os.path.exists if folders else os.path.isfile
        with contextlib.suppress(OSError, ValueError, re.error):  # a NUL, or a name too long
            globbed = list(itertools.islice(glob.iglob(str(literal), recursive=True), MAX_FILES + 1))
        if len(globbed) > MAX_FILES:
            path = clipped(repr(str(literal)), LONGEST_PATH)
            raise InputError(f"{name}: {path} matches over {MAX_FILES:,} paths; name fewer")
        matches = [literal] if exists(literal) else [path for path in sorted(map(Path, globbed)) if exists(path)]
        if not matches and os.path.lexists(literal):
            raise InputError(f"{name}: {clipped(repr(pattern), LONGEST_PATH)} is not a plain file")
        if not matches:
            folder = Path(pattern).parent
            siblings = [str(p) for p in folder.iterdir()] if os.path.isdir(folder) else []
            hint = download_hint(pattern) or nearest(pattern, siblings)
            where = "" if literal.is_absolute() else f" from the folder {Path.cwd()}"
            raise InputError(f"{name}: no file matches {clipped(repr(pattern), LONGEST_PATH)}{where}.{hint}")
        paths.extend(matches)
    return list(dict.fromkeys(paths))


class LocalText(Corpus):
    """Text files by path or glob: .txt (or any plain text), .jsonl, .parquet; also .gz, .bz2, .xz, .zst, .zip and .tar.

    Args:
        path: a file or glob, or several.
        field: the field of each JSON line, or the column of a parquet file, that holds the text.
        document: what one document of a plain text file is. One file alone is cut at the ends of lines in any case.
    """

    def __init__(self, path: str | list[str], field: str = "text", document: Document = "file") -> None:
        self.patterns = [path] if isinstance(path, str) else list(path)
        self.field, self.document = field, document

    def files(self) -> list[Path]:
        """List the files that the patterns name, sorted. Raises InputError for a pattern that names none."""
        return files_of(self.patterns, "data.corpus.path")

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents of all files in order, in pieces."""
        for path in self.files():
            yield from read_pieces(path, self.field, self.document)

    def documents(self) -> Iterator[str]:
        """Yield the documents of all files in order."""
        parts: list[str] = []
        for text, last in self.pieces():
            parts.append(text)
            if last:
                yield "".join(parts)
                parts.clear()

    def count_bytes(self) -> int | None:
        """Return the bytes of the text; None where files hold anything else or are packed."""
        files = self.files()
        plain = not any(
            {*path.suffixes} & {".jsonl", ".parquet", ".tgz", ".tar", ".zip", *COMPRESSED} for path in files
        )
        return sum(path.stat().st_size for path in files) if plain else None

    def state(self) -> Any:
        """Return path, size and time of each file."""
        return [
            [str(path.absolute()), status.st_size, status.st_mtime_ns]
            for path in self.files()
            for status in [path.stat()]
        ]
