"""Losses of a finished cell by document of its evaluation splits, and scores by item of its tasks: small files.

They lie beside its record. Legend: d documents, or what else belongs together in the text, or items.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.config.tree import InputError
from lm.store.files import write_atomic
from lm.store.formats import DOCUMENTS
from lm.store.record import DocumentsOf

if TYPE_CHECKING:  # NumPy takes long to load, and many commands need no losses by document
    import numpy as np
    from numpy.typing import NDArray

FILE, TEST_FILE = "documents.npz", "test_documents.npz"
KEPT = {"nll": ("documents", FILE), "test_nll": ("test_documents", TEST_FILE)}
"""Per loss: the key of its file in the record, and the name of the file."""

ITEM = "item"  # the kind of what is kept of a task's quantity, such as acc@my_task

LARGEST = 2**20  # bytes of a file; training writes a fifth of it at most


@dataclass(frozen=True)
class Documents:
    """Sums over the tokens of each document: nll_d in nats, float64, and tokens_d, int64."""

    kind: str
    each: int
    nll_d: "NDArray[np.float64]"
    tokens_d: "NDArray[np.int64]"


def file_of(quantity: str) -> str:
    """Return the name of the file with the losses or scores behind a quantity."""
    return KEPT[quantity][1] if quantity in KEPT else f"{quantity}.npz"


def entry_of(record: Mapping[str, Any], quantity: str) -> Any:
    """Return the entry of a record on that file; None without one."""
    return record.get(KEPT[quantity][0]) if quantity in KEPT else (record.get("items") or {}).get(quantity)


def kept_quantities(record: Mapping[str, Any]) -> list[str]:
    """Return the quantities whose losses by document, or scores by item, a record lists."""
    return [quantity for quantity in (*KEPT, *(record.get("items") or {})) if entry_of(record, quantity)]


def write_items(folder: Path, scores: "Mapping[str, NDArray[np.float64]]") -> dict[str, DocumentsOf]:
    """Write the scores (d,) of the items behind each quantity, unless they are too many; return their entries."""
    import numpy as np

    entries = dict[str, DocumentsOf]()
    for quantity, scores_d in scores.items():
        content = packed(scores_d, np.ones(len(scores_d)))
        if len(content) <= LARGEST:
            write_atomic(folder / file_of(quantity), content)
            entries[quantity] = described(content, ITEM, 1, len(scores_d))
    return entries


def packed(nll_d: "NDArray[Any]", tokens_d: "NDArray[Any]") -> bytes:
    """Return the content of the file; sums are float32 and tokens int32, 8 bytes a document."""
    import numpy as np

    stream = io.BytesIO()
    content = {"nll": nll_d.astype(np.float32), "tokens": tokens_d.astype(np.int32)}
    np.savez(stream, **DOCUMENTS.stamped(content))
    return stream.getvalue()


def described(content: bytes, kind: str, each: int, rows: int) -> DocumentsOf:
    """Return the entry of the record on the file: its kind, sizes and checksum."""
    return {"kind": kind, "each": each, "rows": rows, "sha256": hashlib.sha256(content).hexdigest()}


def read_documents(path: Path, record: Mapping[str, Any], quantity: str = "nll") -> Documents:
    """Read the losses by document that a record lists; raise InputError for a missing or changed file."""
    import numpy as np

    entry = entry_of(record, quantity)
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path}: is larger than {LARGEST:,} bytes; no such file is")
        content = path.read_bytes()
        if described(content, entry["kind"], entry["each"], entry["rows"]) != entry:
            raise InputError(f"{path}: is not what training wrote: its hash differs from the record's")
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            if sum(part.file_size for part in parts.infolist()) > LARGEST:
                raise InputError(f"{path}: holds more than {LARGEST:,} bytes; no such file does")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            stored = {"format": int(arrays["format"]), "nll": arrays["nll"], "tokens": arrays["tokens"]}
        columns = DOCUMENTS.read(stored, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__})") from None
    nll_d, tokens_d = columns["nll"], columns["tokens"]
    if not (nll_d.shape == tokens_d.shape == (entry["rows"],)) or not np.isfinite(nll_d).all() or (tokens_d < 0).any():
        raise InputError(f"{path}: is damaged (not {entry['rows']} documents of finite losses)")
    return Documents(str(entry["kind"]), int(entry["each"]), nll_d.astype(np.float64), tokens_d.astype(np.int64))
