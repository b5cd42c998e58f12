"""Streams of the hub: what is read, up to how many tokens, from where after a kill, and when a connection is lost."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pandas as pd
import pytest
from helpers import Patch
from huggingface_hub import constants
from messages import CheckMessage, Refused

from lm.config.tree import InputError
from lm.data import cache, hub, shards, streaming
from lm.data.corpus import SPLITS
from lm.data.hub import HubText
from lm.data.mixture import prepare
from lm.data.tokenizer import BPE, Bytes, Tokenizer
from lm.data.tokens import Tokens

pytestmark = [pytest.mark.usefixtures("cache"), pytest.mark.slow]  # a process of its own reads each stream
SHARES = (0.6, 0.2, 0.2)
TEXTS = [f"document {number} {'abc ' * (number % 50)}" for number in range(400)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parquet files, as a dataset of the hub has them."""
    place = tmp_path / "dataset" / "data" / "python"
    place.mkdir(parents=True)
    for number, start in enumerate((0, 250)):
        texts = TEXTS[start : start + 250]
        pd.DataFrame({"text": texts, "id": range(len(texts))}).to_parquet(place / f"train-{number}-of-2.parquet")
    return tmp_path / "dataset"


def split_of(text: str) -> str:
    """Return the split of a document, by the hash of its content."""
    share = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 2**64
    return SPLITS[(share >= SHARES[0]) + (share >= SHARES[0] + SHARES[1])]


def expected(texts: list[str]) -> dict[str, str]:
    """Return the text of each split."""
    return {name: "".join(text for text in texts if split_of(text) == name) for name in SPLITS}


def read(corpus: HubText) -> dict[str, str]:
    """Return the text that was prepared of each split."""
    tokens, decode = Tokens(prepare(corpus, Bytes(), SHARES)), Bytes().train(()).decode
    return {name: decode(ids[:].tolist()) for name, ids in tokens.split.items()}


@pytest.mark.extra
def test_a_stream_holds_documents_by_the_hash_of_their_content(folder: Path) -> None:
    assert read(HubText(str(folder), streaming=True)) == expected(TEXTS)
    assert read(HubText(str(folder), streaming=True, data_dir="data/python")) == expected(TEXTS)


@pytest.mark.extra
def test_the_document_that_reaches_the_tokens_is_the_last(folder: Path) -> None:
    sizes = np.cumsum([len(text) for text in TEXTS])
    tokens = int(sizes[123]) - 2
    found = read(HubText(str(folder), streaming=True, tokens=tokens))
    assert found == expected(TEXTS[:124])


@pytest.mark.extra
def test_a_tokenizer_learns_from_the_beginning_of_a_stream(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(streaming, "LEARNT_BYTES", 1)
    monkeypatch.setattr(streaming, "BATCH", 1000)
    facts = prepare(HubText(str(folder), streaming=True), BPE(300), SHARES)
    assert sum(facts.bytes.values()) == sum(map(len, TEXTS))
    assert sum(facts.documents.values()) == len(TEXTS)


@pytest.mark.extra
def test_a_known_stream_is_not_read_again(folder: Path, monkeypatch: Patch) -> None:
    facts = prepare(HubText(str(folder), streaming=True), Bytes(), SHARES)
    monkeypatch.setattr(streaming, "HubStream", lambda *_: pytest.fail("read again"))
    assert prepare(HubText(str(folder), streaming=True), Bytes(), SHARES) == facts


@pytest.mark.extra
@pytest.mark.parametrize("kind", [Bytes(), pytest.param(BPE(300), marks=pytest.mark.extra)], ids=["bytes", "bpe"])
def test_a_folder_whose_files_changed_is_streamed_again(folder: Path, kind: Tokenizer) -> None:
    before = prepare(HubText(str(folder), streaming=True), kind, SHARES)
    changed = [f"another {text}" for text in TEXTS[:150]]
    pd.DataFrame({"text": changed, "id": 0}).to_parquet(folder / "data" / "python" / "train-1-of-2.parquet")
    after = prepare(HubText(str(folder), streaming=True), kind, SHARES)
    assert sum(after.bytes.values()) == sum(map(len, [*TEXTS[:250], *changed]))
    assert after.fingerprint != before.fingerprint


def test_a_killed_stream_goes_on_where_it_was(folder: Path, monkeypatch: Patch) -> None:
    for owner, name, value in ((streaming, "BATCH", 2000), (shards, "SHARD_TOKENS", 4000), (cache, "KEPT_BYTES", 1)):
        monkeypatch.setattr(owner, name, value)
    taken, original = list[str](), hub.HubStream._read

    def counted(self: hub.HubStream, endpoint: str) -> Iterator[Any]:
        for documents, state in original(self, endpoint):
            taken.extend(documents)
            yield documents, state
            if taken[0] == TEXTS[0] and len(taken) > 200:
                raise KeyboardInterrupt

    monkeypatch.setattr(hub.HubStream, "_read", counted)
    with pytest.raises(KeyboardInterrupt):
        read(HubText(str(folder), streaming=True))
    taken.clear()
    assert read(HubText(str(folder), streaming=True)) == expected(TEXTS)
    assert TEXTS.index(taken[0]) > 100, "what was written before the kill is not read again"


@pytest.mark.extra
def test_a_column_that_is_not_there_is_one_line(folder: Path, refused: Refused) -> None:
    with refused():
        read(HubText(str(folder), field="txt", streaming=True))


# a hub on this machine ------------------------------------------------------------------------------------------------


def described(path: Path, folder: Path) -> dict[str, Any]:
    """Describe a file or a folder as the hub does."""
    name = str(path.relative_to(folder))
    kind = {"type": "directory"} if path.is_dir() else {"type": "file", "size": path.stat().st_size}
    return {"path": name, "oid": name, **kind}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as is asked of a dataset of parquet files, until it is lost."""

    protocol_version = "HTTP/1.1"
    folder: ClassVar[Path]
    commit: ClassVar[str] = "c" * 40
    silent_at: ClassVar[str] = ""  # the file from which on nothing is answered
    back: ClassVar[threading.Event]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        """Answer with the revision, the list of files, or a file or some of it."""
        Hub.asked.append(f"{self.command} {self.path}")
        if self.command == "GET" and Hub.silent_at and Hub.silent_at in self.path:
            Hub.back.clear()
        Hub.back.wait()
        path = self.path.partition("?")[0].replace("%2F", "/")
        files = {str(file.relative_to(self.folder)): file for file in sorted(self.folder.rglob("*.parquet"))}
        name = path.rpartition(f"/datasets/a/b/resolve/{self.commit}/")[2]
        if path == "/":
            self.answer(b"")
        elif path.startswith("/api/datasets/a/b/tree/"):
            place = self.folder.joinpath(*path.split("/")[7:])
            found = sorted(place.rglob("*") if "recursive=true" in self.path.lower() else place.glob("*"))
            self.answer(json.dumps([described(of, self.folder) for of in found]).encode(), 200 if found else 404)
        elif path.startswith("/api/datasets/a/b/paths-info/"):
            self.answer(json.dumps([described(of, self.folder) for of in files.values()]).encode())
        elif path in (
            "/api/datasets/a/b",
            f"/api/datasets/a/b/revision/{self.commit}",
            "/api/datasets/a/b/revision/main",
        ):
            siblings = [{"rfilename": name} for name in files]
            self.answer(json.dumps({"id": "a/b", "sha": self.commit, "siblings": siblings}).encode())
        elif name in files:
            self.answer(files[name].read_bytes())
        else:
            self.answer(b"", 404)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def answer(self, content: bytes, status: int = 200) -> None:
        """Send the content, or the range of it that is asked for."""
        if self.command == "POST":
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
        size, span = len(content), self.headers.get("Range")
        if span and content:
            first, last = span.removeprefix("bytes=").split("-")
            content = content[int(first) : int(last) + 1 if last else None]
            status = 206
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(content) - 1}/{size}")
        for key, value in (("X-Repo-Commit", self.commit), ("ETag", '"e"'), ("Content-Length", str(len(content)))):
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(folder: Path, monkeypatch: Patch) -> Iterator[type[Hub]]:
    """Serve the dataset a/b on loopback."""
    Hub.folder, Hub.silent_at, Hub.back, Hub.asked = folder, "", threading.Event(), []
    Hub.back.set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{served.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        for owner in (datasets.config, constants):
            monkeypatch.setattr(owner, "HF_HUB_OFFLINE", False)
        yield Hub
        Hub.silent_at = ""
        Hub.back.set()
        served.shutdown()


@pytest.mark.extra
def test_a_hub_stream_stays_with_the_commit_first_read(server: type[Hub], monkeypatch: Patch) -> None:
    corpus = HubText("a/b", streaming=True)
    assert read(corpus) == expected(TEXTS)
    assert corpus.revision == Hub.commit
    assert all(f"/resolve/{Hub.commit}/" in asked for asked in Hub.asked if "/resolve/" in asked)
    monkeypatch.setattr(Hub, "commit", "d" * 40)
    later = HubText("a/b", streaming=True)
    assert read(later) == expected(TEXTS)
    assert later.revision == "c" * 40


@pytest.mark.extra
def test_a_lost_hub_is_one_line_and_loses_nothing_read(
    server: type[Hub], monkeypatch: Patch, check_message: CheckMessage
) -> None:
    for owner, name, value in ((streaming, "BATCH", 2000), (shards, "SHARD_TOKENS", 4000), (cache, "KEPT_BYTES", 1)):
        monkeypatch.setattr(owner, name, value)
    Hub.silent_at = "train-1"
    with pytest.raises(InputError) as caught:
        read(HubText("a/b", streaming=True))
    assert "\n" not in str(caught.value)
    check_message(re.sub(r"127\.0\.0\.1:\d+|\d+(?= s\))", "N", str(caught.value)))
    Hub.silent_at = ""
    Hub.back.set()
    taken, original = list[str](), streaming._Reader.take

    def counted(self: streaming._Reader, documents: list[str], *more: Any) -> None:
        taken.extend(documents)
        original(self, documents, *more)

    monkeypatch.setattr(streaming._Reader, "take", counted)
    assert read(HubText("a/b", streaming=True)) == expected(TEXTS)
    assert 0 < len(taken) < len(TEXTS)
