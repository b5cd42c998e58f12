"""`lm dashboard`: pages that are made again as records change, and a server that shows these and nothing else."""

import contextlib
import html
import http.client
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from helpers import refused
from messages import CheckMessage, RefusedCommand
from records import IMAGE, SCRIPT, MakeExperiment, record

from lm.report.web import board as boards
from lm.report.web.board import Board, curve, optuna_commands
from lm.report.web.serve import Server
from lm.store.side_files import ProgressFile, progress_saver
from lm.store.store import Store

Said = pytest.CaptureFixture[str]

CELLS = {"base": [2.0, 2.1, None], "better": [1.8, "failed", None]}

SLOW = 300
"""Connections that never finish what they ask."""


def ended(folder: Path, cell: str, nll: float, seed: int) -> None:
    Store(folder.parent).finish(cell, record(cell, nll, seed))


def test_the_page_shows_progress_above_the_report(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    page = Board(experiment(CELLS).parent).page(None)
    assert "<td>6</td>" in page
    check_message(re.findall("<li>([^<]*better/1[^<]*)</li>", page))
    assert 'src="report?experiment=demo"' in page


def test_a_report_is_made_again_only_when_its_records_change(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, count = experiment(CELLS), itertools.count(1)
    board = Board(folder)
    monkeypatch.setattr(board, "_made", lambda name: f"page {next(count)}")
    before = board.version("demo")
    assert [board.report("demo"), board.report("demo"), board.version("demo")] == ["page 1", "page 1", before]
    ended(folder, "better-2", 1.7, 2)
    assert board.version("demo") != before
    assert board.report("demo") == "page 2"
    with pytest.raises(KeyError):
        board.report("../demo")


def test_hostile_titles_notes_arms_and_errors_stay_text(hostile: MakeExperiment) -> None:
    nasty = f"{IMAGE}{SCRIPT}"
    folder = hostile(title=nasty, notes=nasty)
    store = Store(folder.parent)
    shutil.rmtree(store.directory("script-0"))
    store.finish("script-0", {**record("script-0", "failed", 0), "error": f"RuntimeError: {nasty}"})
    board = Board(folder.parent)
    status = board.status()
    assert f"demo/{SCRIPT}/0: failed: RuntimeError: {nasty}" in html.unescape(status)
    for shown in (status, board.page("demo"), board.report("demo")):
        assert IMAGE not in shown
        assert SCRIPT not in shown
    folder.rename(folder.with_name(IMAGE))
    assert board.names() == [IMAGE]
    for shown in (board.page(None), board.page(IMAGE)):
        assert "<img" not in shown
        assert html.escape(IMAGE) in shown


def test_an_experiment_that_cannot_be_read_is_told_of(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    folder = experiment(CELLS)
    (folder / "experiment.json").write_text("[]")
    board = Board(folder.parent)
    check_message(re.findall("<p>(.*?)</p>", board.report("demo")))
    check_message(re.findall("<li>(.*?)</li>", board.status()))


def test_a_search_has_its_page_and_its_command(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    out = experiment(CELLS).parent
    (out / "my search").mkdir()
    (out / "my search" / "study.json").write_text("{}")
    (out / "my search" / "study.journal").write_text("")
    board = Board(out)
    assert optuna_commands(board) == [f"optuna-dashboard '{out / 'my search' / 'study.journal'}'"]
    check_message(re.findall("<p>(.*?)</p>", board.report("my search")))


@pytest.mark.parametrize("arguments", [["nowhere"], ["out", "--port", "70000"]], ids=" ".join)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(experiment(CELLS).parent.parent)
    refused_command(["dashboard", *arguments])


def test_an_address_that_is_none_is_one_line(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(experiment(CELLS).parent.parent)
    refused(capsys, ["dashboard", "out", "--host", "256.1.1.1", "--port", "0"], "256.1.1.1")


@contextlib.contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[Server]:
    with Server(Board(folder), host, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def asked(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer, whatever its status."""
    request = Request(f"http://127.0.0.1:{server.port}{path}", method=method, headers=headers)
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


@pytest.mark.slow
def test_it_serves_the_page_how_things_stand_and_the_report(experiment: MakeExperiment) -> None:
    folder = experiment(CELLS)
    with serving(folder.parent) as server:
        assert server.address == f"http://127.0.0.1:{server.port}/"
        status, headers, page = asked(server, "/")
        assert status == 200
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        assert "<iframe" in page
        _, first, text = asked(server, "/status?experiment=demo")
        assert "better/1: failed" in text
        status, headers, report = asked(server, "/report?experiment=demo")
        assert status == 200
        assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
        assert "A demonstration" in report
        ended(folder, "better-2", 1.7, 2)
        assert asked(server, "/status?experiment=demo")[1]["X-Report-Version"] != first["X-Report-Version"]
        assert asked(server, "/report?experiment=demo")[2] != report
        status, headers, nothing = asked(server, "/", "HEAD")
        assert (status, nothing) == (200, "")
        assert int(headers["Content-Length"]) > 1000


@pytest.mark.slow
def test_it_serves_nothing_else(experiment: MakeExperiment, capsys: Said) -> None:
    out = experiment(CELLS).parent
    (out / "secret.txt").write_text("secret")
    with serving(out) as server:
        for path in ("/secret.txt", "/out/", "/demo", "/report", "/cells/", "/report?experiment=../demo"):
            assert asked(server, path)[0] == 404, path
        for name in ("evil.example", f"evil.example:{server.port}", "", "127.0.0.1:1", "localhost.evil.example", "["):
            assert asked(server, "/", Host=name)[0] == 421, name
        for name in (f"localhost:{server.port}", f"[::1]:{server.port}", "127.0.0.1"):
            assert asked(server, "/", Host=name)[0] == 200, name
        for line, status in REFUSED.items():
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
                lines = [line, f"Host: 127.0.0.1:{server.port}", "Connection: close", "", ""]
                with contextlib.suppress(ConnectionError):  # it may have hung up before the end of a long line
                    connection.sendall("\r\n".join(lines).encode())
                answer = connection.makefile("rb").read(20_000)
            assert f" {status} ".encode() in answer.partition(b"\r\n")[0], line[:40]
            assert b"secret\n" not in answer
    assert capsys.readouterr().err == ""


REFUSED = {
    "GET /../secret.txt HTTP/1.1": 404,
    "GET /%2e%2e%2fsecret.txt HTTP/1.1": 404,
    "GET /..%5csecret.txt HTTP/1.1": 404,
    "GET /report/../../secret.txt HTTP/1.1": 404,
    "GET //secret.txt HTTP/1.1": 404,
    "GET /%00secret.txt HTTP/1.1": 404,
    "GET /report?experiment=%2e%2e/secret.txt HTTP/1.1": 404,
    "GET /report?experiment=demo%00 HTTP/1.1": 404,
    "GET /status?experiment= HTTP/1.1": 200,
    **{f"{method} / HTTP/1.1": 501 for method in ("POST", "PUT", "DELETE", "OPTIONS", "MKCOL")},
    "CONNECT evil.example:443 HTTP/1.1": 501,
    f"GET /{'x' * 70_000} HTTP/1.1": 414,
}
"""Requests for something else, as they are sent, and the status of the answer."""


def answered(server: Server, *lines: str) -> int:
    """The status of the answer to a request of these lines, as they are."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        return int(connection.makefile("rb").readline().split()[1])


def test_a_request_names_this_server_once(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    with serving(tmp_path) as server:
        here, evil = f"127.0.0.1:{server.port}", f"evil.example:{server.port}"
        assert answered(server, "GET /nothing HTTP/1.1", f"Host: {here}") == 404
        for hosts in ([], [here, evil], [evil, here], [here, here]):
            assert answered(server, "GET /nothing HTTP/1.1", *(f"Host: {host}" for host in hosts)) == 400, hosts
        for target in (
            f"http://{here}/nothing",
            "*",
            "status",
        ):
            assert answered(server, f"GET {target} HTTP/1.1", f"Host: {here}") == 400, target
            assert answered(server, f"HEAD {target} HTTP/1.1", f"Host: {here}") == 400, target


@pytest.mark.extra
def test_three_hundred_slow_connections_keep_nobody_from_an_answer(experiment: MakeExperiment, capsys: Said) -> None:
    assert Server.request_queue_size >= SLOW, "else each that comes too early tries again seconds later"
    with serving(experiment(CELLS).parent) as server, contextlib.ExitStack() as stack:
        for _ in range(SLOW):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        assert asked(server, "/")[0] == 200
        assert asked(server, "/status?experiment=demo")[0] == 200
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_elsewhere_a_token_is_asked_for(experiment: MakeExperiment) -> None:
    with serving(experiment(CELLS).parent, "0.0.0.0") as server:
        assert len(server.token) >= 32
        assert server.address.endswith(f":{server.port}/{server.token}/")
        other = server.token[:-1] + ("y" if server.token.endswith("x") else "x")
        for path in ("/", "/status", f"/{other}/", f"/{server.token}", "/%C3%A9" + "x" * 40):
            assert asked(server, path)[0] == 404
        assert asked(server, f"/{server.token}/")[0] == 200
        assert asked(server, f"/{server.token}/status")[0] == 200
        assert asked(server, f"/{server.token}/", Host=f"evil.example:{server.port}")[0] == 421


@pytest.mark.slow
def test_malformed_requests_and_faults_are_one_line(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, capsys: Said, check_message: CheckMessage
) -> None:
    with serving(experiment(CELLS).parent) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("BREW", "/")
        assert connection.getresponse().status == 501
        connection.close()

        def broken(name: str) -> str:
            raise ValueError("no page")

        monkeypatch.setattr(server.board, "_made", broken)
        status, _, text = asked(server, "/report?experiment=demo")
        assert status == 500
    check_message(capsys.readouterr().err)
    check_message(text)


def listen() -> None:
    """Undoes what a background job inherits: Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 130)],
)
def test_a_signal_ends_it_with_one_line(
    experiment: MakeExperiment, number: int, code: int, check_message: CheckMessage
) -> None:
    folder = experiment(CELLS)
    environment = {**os.environ, "PYTHONPATH": str(Path(boards.__file__).parents[3])}
    command = [sys.executable, "-m", "lm", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=listen
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("dashboard: http://127.0.0.1:")
        with urlopen(said.split()[1], timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    check_message(errors.strip())


@pytest.mark.extra
def test_a_browser_reloads_the_report_after_a_finished_cell(experiment: MakeExperiment) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="a browser is driven by playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium and no google-chrome here")
    folder, said, urls = experiment(CELLS), list[str](), list[str]()
    free = ["--no-sandbox"] if os.geteuid() == 0 else []
    with serving(folder.parent) as server, driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=free)
        page: Any = browser.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: urls.append(request.url))
        page.goto(server.address)
        row = page.frame_locator("#report").locator("#comparison tbody tr", has_text="better")
        row.wait_for()
        before = row.inner_text()
        ended(folder, "better-2", 1.5, 2)
        page.wait_for_function(
            "old => { const rows = [...document.getElementById('report').contentDocument.querySelectorAll("
            "'#comparison tbody tr')]; return rows.some(row => row.innerText.startsWith('better')) && "
            "!rows.some(row => row.innerText === old); }",
            arg=before,
        )
        browser.close()
    assert said == []
    assert all(url.startswith((server.address, "data:", "blob:")) for url in urls)


def test_a_running_cell_is_drawn_up_to_now(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    folder = experiment(CELLS)
    store, board = Store(folder.parent), Board(folder)
    store.work("better-2").mkdir()
    report = progress_saver(store.work("better-2"), lambda *_: None)
    monkeypatch.setattr("lm.store.side_files.SECONDS_BETWEEN", 0.0)
    with store.lock("better-2"):
        report(10, 100, 4.0)
        report(20, 100, 3.0)
        first = board.status()
        report(50, 100, 2.5)
        second = board.status()
    assert 'points="36.0,0.0 72.0,120.0"' in first
    check_message(re.findall("<figcaption>(.*?)</figcaption>", first))
    assert 'points="36.0,0.0 72.0,80.0 180.0,120.0"' in second
    assert "<polyline" not in board.status()
    progress = ProgressFile(format=1, step=3, steps=0, loss=None, pace=None, at=0.0, curve=[])
    assert curve("x", progress) == "", "a cell without a curve is a line of text"
    assert 'points="360.0,0.0"' in curve("<x>", {**progress, "curve": [(3, 2.0)]})
    assert "<strong>&lt;x&gt;</strong>" in curve("<x>", {**progress, "curve": [(3, 2.0)]})
