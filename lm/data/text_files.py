"""Text in files of any size, plain or compressed, alone or in archives, as documents in pieces.

A piece is some text and whether its document ends there. No document is in memory as a whole unless it is a line, a
paragraph, a JSON line or a row of parquet.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from lm.config.tree import InputError, nearest

Piece = tuple[str, bool]
Document = Literal["file", "line", "paragraph"]

CHUNK = 2**16  # bytes that are read at once
OVERLAP = 4  # characters that an end of a line or a paragraph looks back on, at most
OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED = (*OPENERS, ".zst")
# what readers raise for a damaged, encrypted or unknown file; RuntimeError and its NotImplementedError are of zipfile
UNREADABLE = (
    OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError,
)  # fmt: skip
PARAGRAPH = re.compile(r"(?<=\n\n)(?=[^\n])|(?<=\n\r\n)(?=[^\r\n])")


def decompressed(file: IO[bytes], suffix: str) -> Any:
    """Return a stream of the content of a file whose name ends with `suffix`."""
    if suffix == ".zst":
        import pyarrow  # slow to import, and only this format needs it

        unpacked: Any = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
        return io.BufferedReader(unpacked, CHUNK)
    return OPENERS[suffix](file) if suffix in OPENERS else file


def read_unzipped(path: Path) -> bytes:
    """Read a file, and decompress it if its name says that it is compressed."""
    with path.open("rb") as file:
        return bytes(decompressed(file, path.suffix).read())


def opened(path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield name and stream of a file, or of each file in an archive: .zip in the order of names, .tar in its own."""
    bare = path.with_suffix("") if path.suffix in COMPRESSED else path
    with path.open("rb") as file:
        if bare.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                for member in sorted(archive.infolist(), key=lambda member: member.filename):
                    if not member.is_dir():
                        with archive.open(member) as inner:
                            name = Path(member.filename)
                            yield path / name, decompressed(inner, name.suffix)
        elif bare.suffix in (".tar", ".tgz"):
            suffix = ".gz" if bare.suffix == ".tgz" else path.suffix
            with tarfile.open(fileobj=decompressed(file, suffix), mode="r|") as archive:
                for entry in archive:
                    if entry.isfile() and (stream := archive.extractfile(entry)) is not None:
                        name = Path(entry.name)
                        yield path / name, decompressed(stream, name.suffix)
        else:
            yield path, decompressed(file, path.suffix)


def read_pieces(path: Path, field: str, document: Document) -> Iterator[Piece]:
    """Yield the documents of a file in pieces; raise InputError for one that cannot be read."""
    try:
        for name, stream in opened(path):
            kind = Path(name.stem).suffix if name.suffix in COMPRESSED else name.suffix
            if kind == ".parquet":
                yield from ((text, True) for text in parquet_texts(name, stream, field))
            elif kind == ".jsonl":
                yield from json_lines(name, stream, field)
            else:
                yield from text_pieces(name, stream, document)
    except UNREADABLE as error:
        raise InputError(f"data.corpus.path: {path} cannot be read ({error})") from None


def text_pieces(path: Path, stream: Any, document: Document) -> Iterator[Piece]:
    """Yield the documents of a stream of plain text."""
    chunks = decoded(path, stream)
    if document != "file":
        cut = PARAGRAPH.split if document == "paragraph" else lambda text: text.splitlines(keepends=True)
        yield from cut_chunks(chunks, cut)
        return
    previous = next(chunks, "")
    for chunk in chunks:
        yield previous, False
        previous = chunk
    yield previous, True


def decoded(path: Path, stream: Any) -> Iterator[str]:
    """Yield the text of a stream of UTF-8."""
    decoder, before = codecs.getincrementaldecoder("utf-8")(), 0
    while True:
        data = stream.read(CHUNK)
        pending = len(decoder.getstate()[0])
        try:
            yield decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            place = before - pending + error.start
            raise InputError(f"data.corpus.path: {path} is not UTF-8 text (byte {place})") from None
        before += len(data)
        if not data:
            return


def cut_chunks(chunks: Iterator[str], cut: Callable[[str], list[str]]) -> Iterator[Piece]:
    """Yield the documents that `cut` makes of a text in chunks; it keeps all characters."""
    rest = ""
    for chunk in chunks:
        *documents, rest = cut(rest + chunk) or [""]
        for document in documents:
            yield document, True
        if len(rest) > CHUNK:  # a long document, given away but for what the next cut looks back on
            yield rest[:-OVERLAP], False
            rest = rest[-OVERLAP:]
    *documents, rest = cut(rest) or [""]
    yield from ((document, True) for document in [*documents, rest])


def json_lines(path: Path, stream: Any, field: str) -> Iterator[Piece]:
    """Yield a field of each line of a stream of JSON lines."""
    before = 0
    for number, data in enumerate(stream, 1):
        row = None
        try:
            line = data.decode("utf-8")
            if line.strip():
                row = json.loads(line)
                document = row[field]
                if not isinstance(document, str):
                    raise TypeError
                document.encode("utf-8")
                yield document, True
        except UnicodeDecodeError as error:
            raise InputError(f"data.corpus.path: {path} is not UTF-8 text (byte {before + error.start})") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            keys = list(row) if isinstance(row, dict) else []
            hint = f", it has {', '.join(keys)}.{nearest(field, keys)}" if keys else ""
            problem = f"is not a JSON object with a field {field!r}{hint}"
            raise InputError(f"data.corpus.field: {path}:{number} {problem}") from None
        before += len(data)


@contextlib.contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises for a file in a block into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # pyarrow has a family of its own; all mean an unreadable file
        reason = " ".join(str(error).split())
        raise InputError(f"data.corpus.path: {path} is not a readable parquet file ({reason})") from None


def parquet_columns(path: Path, stream: Any, field: str) -> Iterator[Any]:
    """Yield batches of a column of a parquet file."""
    from pyarrow import parquet  # slow to import, and only this format needs it

    with readable_parquet(path):
        seekable = isinstance(stream, io.BufferedReader) and stream.seekable()
        file = parquet.ParquetFile(stream if seekable else io.BytesIO(stream.read()))
        names = file.schema_arrow.names
        if field not in names:
            hint = f"{nearest(field, names)} It has {', '.join(names)}"
            raise InputError(f"data.corpus.field: {path} has no column {field!r}.{hint}")
        for batch in file.iter_batches(batch_size=1024, columns=[field]):
            yield batch.column(0)


def count_parquet_rows(path: Path) -> int:
    """Count the rows of a parquet file."""
    from pyarrow import parquet

    with readable_parquet(path):
        return int(parquet.ParquetFile(path).metadata.num_rows)


def parquet_texts(path: Path, stream: Any, field: str) -> Iterator[str]:
    """Yield the rows of a text column of a parquet file that hold something."""
    for column in parquet_columns(path, stream, field):
        yield from texts_of(column.drop_null().to_pylist(), field, path)


def texts_of(values: Iterable[Any], field: str, place: object) -> Iterator[str]:
    """Yield the values of a column that are there. Raises InputError for one that is no text."""
    for value in values:
        if value is None or value != value:  # NaN stands for nothing too
            continue
        if not isinstance(value, str):
            problem = f"{field!r} of {place} holds {type(value).__name__} values"
            raise InputError(f"data.corpus.field: {problem}; expected a column of text")
        yield value
