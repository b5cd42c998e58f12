"""Sources of text. A corpus yields documents; every document belongs to exactly one split."""

import contextlib
import functools
import glob
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import sysconfig
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from lm.config.plain import shown
from lm.config.tree import InputError, nearest
from lm.data.public import download_hint

SPLITS = ("train", "validation", "test")
MAX_FILES = 100_000  # paths that a glob may match; more are a mistake, such as a whole file system

Splits = dict[str, list[str]]
LEFT_OUT = {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages", "__pycache__"}
ANSWER_SECONDS = 4.0  # seconds in which the Hugging Face hub answers, or counts as out of reach


def expand_user(path: str) -> Path:
    """Expand `~` for a user's folder; a path with an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def read_unzipped(path: Path) -> bytes:
    """Read a file, and decompress it if its name ends in .gz."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def split_documents(documents: Sequence[str], fractions: Sequence[float]) -> Splits:
    """Split documents into train, validation and test by shares of all characters, in order, without cutting one."""
    total = sum(map(len, documents))
    bounds = list(itertools.accumulate(fraction * total for fraction in fractions))
    splits: Splits = {name: [] for name in SPLITS}
    position, current = 0, 0
    for document in documents:
        while current < len(SPLITS) - 1 and position >= bounds[current] - 1e-9:
            current += 1
        splits[SPLITS[current]].append(document)
        position += len(document)
    return splits


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

    def splits(self, fractions: Sequence[float]) -> Splits:
        """Return train, validation and test documents; by default split by share of characters, in corpus order.

        A text that is one document is cut at the ends of lines: else no split but the first would have any of it.
        """
        documents = [document for document in self.documents() if document]
        if not documents:
            raise InputError(f"data.corpus: {type(self).__name__} holds no text")
        if len(documents) == 1:
            lines = split_documents(documents[0].splitlines(keepends=True), fractions)
            return {name: ["".join(part)] if part else [] for name, part in lines.items()}
        return split_documents(documents, fractions)

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


class LocalText(Corpus):
    """Text files by path or glob: .txt (or any plain text), .jsonl, .parquet, each also .gz.

    Args:
        path: a file or glob, or several.
        field: the field of each JSON line, or the column of a parquet file, that holds the text.
        document: what one document of a plain text file is. One file alone is cut at the ends of lines in any case.
    """

    def __init__(
        self, path: str | list[str], field: str = "text", document: Literal["file", "line", "paragraph"] = "file"
    ) -> None:
        self.patterns = [path] if isinstance(path, str) else list(path)
        self.field, self.document = field, document

    def files(self) -> list[Path]:
        """List the files that the patterns name, sorted. Raises InputError for a pattern that names none."""
        paths: list[Path] = []
        for pattern in self.patterns:
            literal, globbed = expand_user(pattern), []
            with contextlib.suppress(OSError, ValueError, re.error):  # a NUL, or a name too long
                globbed = list(itertools.islice(glob.iglob(str(literal), recursive=True), MAX_FILES + 1))
            if len(globbed) > MAX_FILES:
                problem = f"{shown(str(literal))} matches over {MAX_FILES:,} paths"
                raise InputError(f"data.corpus.path: {problem}; name fewer")
            matches = [path for path in sorted(map(Path, globbed)) if os.path.isfile(path)]
            matches = [literal] if os.path.isfile(literal) else matches
            if not matches:
                folder = Path(pattern).parent
                siblings = [str(p) for p in folder.iterdir()] if os.path.isdir(folder) else []
                hint = download_hint(pattern) or nearest(pattern, siblings)
                raise InputError(f"data.corpus.path: no file matches {shown(pattern)}.{hint}")
            paths.extend(matches)
        return list(dict.fromkeys(paths))

    def documents(self) -> Iterator[str]:
        """Yield the documents of all files in order."""
        for path in self.files():
            yield from self._read(path)

    def _read(self, path: Path) -> Iterator[str]:
        kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if kind == ".parquet":
            yield from self._parquet(path)
            return
        try:
            text = read_unzipped(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"data.corpus.path: {path} is not UTF-8 text (byte {error.start})") from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"data.corpus.path: {path} cannot be read ({error})") from None
        if kind == ".jsonl":
            yield from self._json_lines(path, text)
        elif self.document == "line":
            yield from text.splitlines(keepends=True)
        elif self.document == "paragraph":
            yield from re.split(r"(?<=\n\n)(?=[^\n])", text)
        else:
            yield text

    def _json_lines(self, path: Path, text: str) -> Iterator[str]:
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            row = None
            try:
                row = json.loads(line)
                document = row[self.field]
                if not isinstance(document, str):
                    raise TypeError
                document.encode("utf-8")
                yield document
            except (ValueError, TypeError, KeyError, RecursionError):
                keys = list(row) if isinstance(row, dict) else []
                hint = f", it has {', '.join(keys)}.{nearest(self.field, keys)}" if keys else ""
                problem = f"is not a JSON object with a field {self.field!r}{hint}"
                raise InputError(f"data.corpus.field: {path}:{number} {problem}") from None

    def _parquet(self, path: Path) -> Iterator[str]:
        import pandas  # slow to import, and only this format needs it

        try:
            frame = pandas.read_parquet(io.BytesIO(read_unzipped(path)))
        except Exception as error:  # pyarrow has a family of its own; all mean an unreadable file
            raise InputError(f"data.corpus.path: {path} is not a readable parquet file ({error})") from None
        if self.field not in frame:
            columns = [str(c) for c in frame.columns]
            hint = f"{nearest(self.field, columns)} It has {', '.join(columns)}"
            raise InputError(f"data.corpus.field: {path} has no column {self.field!r}.{hint}")
        yield from (str(text) for text in frame[self.field].dropna())


def answers(address: str) -> bool:
    """Return True if the hub at an address answers within ANSWER_SECONDS."""
    answered, finished = threading.Event(), threading.Event()

    def send_request() -> None:
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        with contextlib.suppress(Exception):  # of whatever client the library uses
            get_session().head(address, timeout=ANSWER_SECONDS)
            answered.set()
        finished.set()

    threading.Thread(target=send_request, daemon=True).start()  # looking up a name heeds no timeout
    finished.wait(ANSWER_SECONDS)
    return answered.is_set()


class HubText(Corpus):
    """A dataset of the Hugging Face hub, through `datasets`, with the hub's own splits where it has them.

    Args:
        path: the dataset, e.g. `Salesforce/wikitext`.
        name: its configuration, e.g. `wikitext-2-raw-v1`.
        field: the column that holds the text.
    """

    def __init__(self, path: str, name: str | None = None, field: str = "text") -> None:
        self.path, self.name, self.field = path, name, field

    def _load(self) -> dict[str, list[str]]:
        """Load the texts by split, from the copy on this machine where the hub does not answer."""
        import datasets
        from huggingface_hub import constants

        datasets.disable_progress_bars()
        before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
        remote = not (Path(self.path).exists() or any(before))
        unreachable = remote and not answers(datasets.config.HF_ENDPOINT)
        try:
            if unreachable:  # the hub's own client would try for half a minute
                datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
            loaded = datasets.load_dataset(self.path, self.name)
        except Exception as error:  # of the hub, of its client, and of every reader of a file format
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if unreachable:
                reason = f"{datasets.config.HF_ENDPOINT} does not answer, and without it: {reason}"
            remedy = "Without a network use data.corpus=StdlibText, or LocalText with data.corpus.path=FILE"
            raise InputError(f"data.corpus: HubText cannot load {self.path!r} ({reason}). {remedy}") from None
        finally:
            datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
        for split, rows in loaded.items():
            if self.field not in rows.column_names:
                hint = f"{nearest(self.field, rows.column_names)} It has {', '.join(rows.column_names)}"
                raise InputError(f"data.corpus.field: {self.path!r} ({split}) has no column {self.field!r}.{hint}")
        return {str(split): [str(text) for text in rows[self.field]] for split, rows in loaded.items()}

    def documents(self) -> Iterator[str]:
        """Yield the documents of all splits of the dataset."""
        yield from itertools.chain.from_iterable(self._load().values())

    def splits(self, fractions: Sequence[float]) -> Splits:
        """Return the dataset's own splits, or split it where it has no validation split."""
        loaded = self._load()
        if {"train", "validation"} <= set(loaded):
            return {name: [text for text in loaded.get(name, []) if text] for name in SPLITS}
        return split_documents([t for texts in loaded.values() for t in texts if t], fractions)
