"""Losses by document on disk: what is written is read, and what is not what training wrote is refused in one line."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import Refused

from lm.store.documents import described, packed, read_documents

NLL, TOKENS = np.array([1.5, 0.0, 1e5 / 3]), np.array([3, 0, 70_000])


def kept(folder: Path, content: bytes, **changes: Any) -> tuple[Path, dict[str, Any]]:
    path = folder / "documents.npz"
    path.write_bytes(content)
    return path, {"documents": {**described(content, "document", 1, 3), **changes}}


def test_documents_are_read_back_in_eight_bytes_each(tmp_path: Path) -> None:
    found = read_documents(*kept(tmp_path, packed(NLL, TOKENS)))
    assert found.nll_d == pytest.approx(NLL, rel=1e-7)
    assert found.tokens_d.tolist() == TOKENS.tolist()
    many = np.zeros(10_000)
    assert len(packed(many, many)) < 80_000 + 1_000
    assert packed(NLL, TOKENS) == packed(NLL.copy(), TOKENS.copy())


def test_a_damaged_a_missing_and_a_newer_file_are_refused(tmp_path: Path, refused: Refused) -> None:
    good = packed(NLL, TOKENS)
    path, record = kept(tmp_path, good)
    path.write_bytes(good[:-1] + b"\1")
    with refused():
        read_documents(path, record)
    with refused():
        read_documents(tmp_path / "none.npz", record)
    stream = io.BytesIO()
    np.savez(stream, format=99, nll=NLL, tokens=TOKENS)
    with refused():
        read_documents(*kept(tmp_path, stream.getvalue()))


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("run",)


def test_pickles_and_oversized_files_are_refused(tmp_path: Path, refused: Refused) -> None:
    stream = io.BytesIO()
    np.savez(stream, format=1, nll=np.array([Harmful()], dtype=object), tokens=TOKENS)
    with refused():
        read_documents(*kept(tmp_path, stream.getvalue()))
    with refused():
        read_documents(*kept(tmp_path, pickle.dumps({})))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("nll.npy", bytes(2**21))
    with refused():
        read_documents(*kept(tmp_path, stream.getvalue()))
    with refused():
        read_documents(*kept(tmp_path, bytes(2**21)))


@pytest.mark.parametrize(("nll", "tokens"), [(NLL[:2], TOKENS), (NLL, -TOKENS), (np.array([1.0, np.nan, 1.0]), TOKENS)])
def test_numbers_that_are_no_losses_are_refused(tmp_path: Path, nll: Any, tokens: Any, refused: Refused) -> None:
    with refused():
        read_documents(*kept(tmp_path, packed(nll, tokens)))
