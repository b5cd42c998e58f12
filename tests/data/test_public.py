"""Public data: fetched whole or not at all, and known by its checksums."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from helpers import RUN, Capture, Patch
from messages import CheckMessage, Refused, RefusedCommand

from lm.cli import main
from lm.config.reading import shipped_files
from lm.config.tree import override
from lm.data import public
from lm.data.public import DATASETS, File, digest, download, download_hint, download_to
from lm.training.cell import check

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = b"To be\n" * 40_000, b"or not\n"


class Server(BaseHTTPRequestHandler):
    """Answers as the path asks for."""

    asked: list[str] = []

    def do_GET(self) -> None:
        Server.asked.append(self.path)
        name = self.path.removeprefix("/")
        if name.startswith("to-"):
            self.send_response(302)
            self.send_header("Location", {"to-first": "/first", "to-ftp": "ftp://127.0.0.1/first"}[name])
            self.end_headers()
            return
        content = {"first": FIRST, "second": SECOND, "longer": FIRST + b"!", "other": FIRST[:-1] + b"!"}.get(name)
        if name == "cut":
            content = FIRST
        self.send_response(404 if content is None else 200)
        if content is not None:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):  # a reader that has had enough
            self.wfile.write((content or b"")[: 1000 if name == "cut" else None])

    def log_message(self, *_: object) -> None:
        pass


def file(name: str, address: str, content: bytes) -> File:
    return File(name, address, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def server(monkeypatch: Patch) -> Iterator[str]:
    """The address of a server on this machine, which `play` is fetched from."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as serving:
        threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_address[1]}"
        Server.asked = []
        monkeypatch.setattr(public, "_SCHEMES", ("http",))
        play(monkeypatch, f"{address}/first", f"{address}/second")
        yield address
        serving.shutdown()


def play(patch: Patch, *addresses: str) -> None:
    """Makes up data of two files."""
    files = tuple(
        file(name, address, content)
        for name, address, content in zip(("one.txt", "two.txt"), addresses, (FIRST, SECOND), strict=True)
    )
    patch.setattr(public, "DATASETS", {**DATASETS, "play": replace(DATASETS["gpt2"], files=files)})


def nowhere(patch: Patch) -> None:
    play(patch, "https://unused.invalid/one", "https://unused.invalid/two")


def test_what_is_fetched_is_what_the_checksums_say(
    server: str, tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    assert main(["data", "play", "--to", str(tmp_path / "data")]) == 0
    folder = tmp_path / "data" / "play"
    assert (folder / "one.txt").read_bytes() == FIRST
    assert (folder / "two.txt").read_bytes() == SECOND
    assert sorted(path.name for path in folder.iterdir()) == ["one.txt", "two.txt"]
    check_message(capsys.readouterr().err)
    (folder / "two.txt").unlink()
    before = (folder / "one.txt").stat().st_mtime_ns
    assert main(["data", "play", "--to", str(tmp_path / "data")]) == 0
    assert (folder / "one.txt").stat().st_mtime_ns == before
    assert Server.asked == ["/first", "/second", "/second"]


@pytest.mark.parametrize(
    "path",
    ["missing", "longer", "other", "cut", "to-ftp"],
)
def test_wrong_file_is_one_line_and_not_written(
    server: str, path: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture, check_message: CheckMessage
) -> None:
    play(monkeypatch, f"{server}/first", f"{server}/second")
    broken = replace(public.DATASETS["play"].files[0], name="three.txt", address=f"{server}/{path}")
    files = (*public.DATASETS["play"].files, broken)
    monkeypatch.setattr(public, "DATASETS", {"play": replace(DATASETS["gpt2"], files=files)})
    assert main(["data", "play", "--to", str(tmp_path / "data")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    check_message(said.replace(server, "SERVER"))
    assert not (tmp_path / "data").exists()


def test_a_server_may_redirect_to_an_address_of_its_kind(server: str) -> None:
    assert download(file("one", f"{server}/to-first", FIRST)) == FIRST


def test_without_a_network_there_is_one_line(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, refused_command: RefusedCommand
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    nowhere(monkeypatch)
    refused_command(["data", "play", "--to", tmp_path / "data"])
    assert list(tmp_path.iterdir()) == []


def test_only_encrypted_addresses_are_opened(refused: Refused) -> None:
    for address in ("http://127.0.0.1/x", "file:///etc/hostname", "ftp://127.0.0.1/x"):
        with refused():
            download(file("one", address, b""))
    handlers = {type(one).__name__ for one in public._opener().handlers}  # type: ignore[attr-defined]
    assert "HTTPSHandler" in handlers
    assert not handlers & {"HTTPHandler", "FTPHandler", "FileHandler"}
    for data in DATASETS.values():
        assert all(one.address.startswith("https://") and len(one.sha256) == 64 for one in data.files)


def test_files_at_hand_are_taken_where_their_checksums_agree(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, check_message: CheckMessage
) -> None:
    nowhere(monkeypatch)
    hand = tmp_path / "hand"
    (hand / "play").mkdir(parents=True)
    (hand / "one.txt").write_bytes(FIRST)
    (hand / "play" / "two.txt").write_bytes(SECOND)
    assert main(["data", "play", "--from", str(hand), "--to", str(tmp_path / "data")]) == 0
    assert digest(tmp_path / "data" / "play" / "one.txt") == hashlib.sha256(FIRST).hexdigest()
    capsys.readouterr()
    assert main(["data", "play", "--from", str(hand), "--to", str(tmp_path / "data")]) == 0
    check_message(capsys.readouterr().err)


def test_a_file_that_differs_is_named_with_both_checksums(
    tmp_path: Path, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    nowhere(monkeypatch)
    hand, into = tmp_path / "hand", tmp_path / "data"
    hand.mkdir()
    (hand / "one.txt").write_bytes(FIRST)
    (hand / "two.txt").write_bytes(b"that is")
    refused_command(["data", "play", "--from", hand, "--to", into])
    assert not into.exists()
    assert main(["data", "play", "--from", str(hand), "--to", str(into), "--any"]) == 0
    assert main(["data", "play", "--from", str(hand), "--to", str(into), "--any"]) == 0
    assert (into / "play" / "two.txt").read_bytes() == b"that is"
    refused_command(["data", "play", "--to", into])


@pytest.mark.parametrize(
    "arguments",
    [
        ["tinyshakespear"],
        ["play", "--any"],
        ["--from", "x"],
        ["play", "--from", "."],
        ["play", "--to", "file"],
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    nowhere(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    refused_command(["data", *arguments])


def test_what_there_is_is_listed(capsys: Capture) -> None:
    assert main(["data"]) == 0
    text = capsys.readouterr().out
    for name, data in DATASETS.items():
        assert f"{name}: {data.about}\n" in text
        assert data.licence in text
        assert data.source in text


@pytest.mark.parametrize("name", list(DATASETS))
def test_the_reference_data_is_what_the_checksums_say(name: str, shared: Path, tmp_path: Path) -> None:
    if not (shared / name).is_dir():
        pytest.skip(f"{name} is not in {shared}")
    assert len(download_to(name, tmp_path, shared)) == len(DATASETS[name].files)


def test_missing_file_is_answered_with_its_download_command(check_message: CheckMessage) -> None:
    check_message([download_hint(path) for path in ("data/gpt2/vocab.bpe", "my data/multi30k/val.en.gz")])
    assert download_hint("data/gpt2/other.txt") == download_hint("input.txt") == download_hint("") == ""


@pytest.mark.parametrize("name", ["nanogpt_char", "mini_transformer", "multi30k", "ways", "translation_multi30k"])
def test_a_shipped_experiment_without_text_names_the_download(
    name: str, tmp_path: Path, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    refused_command(["ablate", name, "--plan", "--underpowered"])
    notes = yaml.safe_load(shipped_files("experiment")[name].read_text(encoding="utf-8"))["notes"]
    assert "`lm data " in notes


@pytest.mark.slow
def test_no_page_names_a_file_that_a_visitor_lacks() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.rglob("experiments/**/*.yaml")]
    assert not [page for page in pages if "../shared" in page.read_text(encoding="utf-8")]


def test_cell_id_does_not_depend_on_path_of_text(tmp_path: Path) -> None:
    found = set()
    for place in ("a.txt", "b/c.txt"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"line {number} of a text\n" for number in range(400)))
        corpus = {"class_path": "LocalText", "init_args": {"path": str(path), "document": "line"}}
        found.add(check(override(RUN, {"data.corpus": corpus, "data.tokenizer": "Characters"})).id)
    assert len(found) == 1
