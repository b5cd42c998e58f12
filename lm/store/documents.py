"""The losses of a finished cell by document of its evaluation splits: small files beside its record.

Legend: d documents, or what else belongs together in the text.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.config.tree import InputError
from lm.store.formats import DOCUMENTS
from lm.store.record import DocumentsOf

FILE, TEST_FILE = "documents.npz", "test_documents.npz"
KEPT = {"nll": ("documents", FILE), "test_nll": ("test_documents", TEST_FILE)}
"""For each loss that is kept by document, what the record says of its file under which name, and the file's name."""

LARGEST = 2**20
"""Bytes; what training writes is a fifth of it at most."""


@dataclass(frozen=True)
class Documents:
    """Sums over the tokens of each document: nll_d in nats, float64, and tokens_d, int64."""

    kind: str
    each: int
    nll_d: NDArray[np.float64]
    tokens_d: NDArray[np.int64]


def packed(nll_d: NDArray[Any], tokens_d: NDArray[Any]) -> bytes:
    """The file, in which sums are float32 and tokens int32: 8 bytes a document."""
    stream = io.BytesIO()
    content = {"nll": nll_d.astype(np.float32), "tokens": tokens_d.astype(np.int32)}
    np.savez(stream, **DOCUMENTS.stamped(content))
    return stream.getvalue()


def described(content: bytes, kind: str, each: int, rows: int) -> DocumentsOf:
    """What a record says of its file."""
    return {"kind": kind, "each": each, "rows": rows, "sha256": hashlib.sha256(content).hexdigest()}


def read_documents(path: Path, record: Mapping[str, Any], quantity: str = "nll") -> Documents:
    """The losses by document behind a quantity, of a record that says it has them.

    Raises:
        InputError: for a file that is missing, or is not what training wrote.
    """
    said = record[KEPT[quantity][0]]
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path}: is larger than {LARGEST:,} bytes; no such file is")
        content = path.read_bytes()
        if described(content, said["kind"], said["each"], said["rows"]) != said:
            raise InputError(f"{path}: is not what training wrote: its hash differs from the record's")
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            if sum(part.file_size for part in parts.infolist()) > LARGEST:
                raise InputError(f"{path}: holds more than {LARGEST:,} bytes; no such file does")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = DOCUMENTS.read({"format": int(arrays["format"]), **{k: arrays[k] for k in ("nll", "tokens")}}, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__})") from None
    nll_d, tokens_d = found["nll"], found["tokens"]
    if not (nll_d.shape == tokens_d.shape == (said["rows"],)) or not np.isfinite(nll_d).all() or (tokens_d < 0).any():
        raise InputError(f"{path}: is damaged (not {said['rows']} documents of finite losses)")
    return Documents(str(said["kind"]), int(said["each"]), nll_d.astype(np.float64), tokens_d.astype(np.int64))
