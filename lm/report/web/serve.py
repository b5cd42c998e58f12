"""The read-only server behind `lm dashboard`."""

import contextlib
import hmac
import ipaddress
import secrets
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from lm.config.tree import InputError
from lm.report.web.board import Board, policy

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every response."""

FRAMED = "frame-ancestors 'self'"  # header policy of the report, which carries its own policy in the page

HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


class Server(ThreadingHTTPServer):
    """A server of one board; its URL holds a token but on loopback. Raises InputError if it cannot listen there."""

    daemon_threads = True
    request_queue_size = 512  # pending connections, enough that a browser does not wait

    def __init__(self, board: Board, host: str, port: int) -> None:
        self.board, self.host = board, host
        loopback = host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
        self.token = "" if loopback else secrets.token_urlsafe(24)
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = addresses[0][0]
            super().__init__((host, port), Handler)
        except OverflowError:
            raise InputError(f"--port {port}: expected a number from 0 to 65535") from None
        except OSError as error:
            raise InputError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        return int(self.server_address[1])

    @property
    def prefix(self) -> str:
        """Beginning of the path of every address."""
        return f"/{self.token}/" if self.token else "/"

    @property
    def address(self) -> str:
        """Address to open in a browser; a server on all interfaces is named after this machine."""
        everywhere = self.host in ("", "0.0.0.0", "::")
        name = socket.gethostname() if everywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}{self.prefix}"

    def admits(self, host: str) -> bool:
        """Return True if a `Host` header names this server, and not a foreign name that resolves to it."""
        try:
            named = urlsplit(f"//{host}")
            name, port = named.hostname or "", named.port
        except ValueError:
            return False
        names = ("localhost", self.host.lower(), socket.gethostname().lower())
        return port in (None, self.port) and (_is_address(name) or name in names)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error in a line; a browser that disconnects is none."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"lm: dashboard: {type(error).__name__}: {error}", file=sys.stderr)


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


class Handler(BaseHTTPRequestHandler):
    """Handler of GET and HEAD for the page, the status and a report; other methods are not implemented."""

    server: Server
    server_version, sys_version = "lm", ""
    protocol_version = "HTTP/1.1"
    timeout = 15.0

    def do_GET(self) -> None:
        """Answer a request that names this server, and refuse any other."""
        hosts: list[str] = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            self.send_error(HTTPStatus.BAD_REQUEST, f"expected one Host header, got {len(hosts)}")
            return
        if not self.server.admits(hosts[0]):
            self._send("this server goes by another name\n", HTTPStatus.MISDIRECTED_REQUEST)
            return
        if not self.path.startswith("/"):
            self.send_error(HTTPStatus.BAD_REQUEST, "expected a path of this server in the request line")
            return
        target = urlsplit(self.path)
        path = unquote(target.path)
        token_path, prefix = path[: len(self.server.prefix)].encode(), self.server.prefix.encode()
        if not hmac.compare_digest(token_path, prefix):
            self._send("not found\n", HTTPStatus.NOT_FOUND)
            return
        name = parse_qs(target.query).get("experiment", [None])[0]
        try:
            self._answer(path[len(self.server.prefix) :], name)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # of whatever lies in the folder; nothing was sent before it was read
            message = f"{type(error).__name__}: {error}"
            print(f"lm: dashboard: {message}", file=sys.stderr)
            self._send(f"cannot be shown: {message}\n", HTTPStatus.INTERNAL_SERVER_ERROR)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, page: str, name: str | None) -> None:
        board = self.server.board
        if name is not None and name not in board.names():
            self._send("no such experiment\n", HTTPStatus.NOT_FOUND)
        elif page == "":
            headers = {"Content-Security-Policy": policy(), "X-Frame-Options": "DENY"}
            self._send(board.page(name), headers=headers, kind=HTML)
        elif page == "status":
            shown = name or next(iter(board.names()), None)
            version = "" if shown is None else board.version(shown)
            self._send(board.status(), headers={"X-Report-Version": version}, kind=HTML)
        elif page == "report" and name is not None:
            headers = {"Content-Security-Policy": FRAMED, "X-Frame-Options": "SAMEORIGIN"}
            self._send(board.report(name), headers=headers, kind=HTML)
        else:
            self._send("not found\n", HTTPStatus.NOT_FOUND)

    def _send(
        self, content: str, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None, kind: str = TEXT
    ) -> None:
        data = content.encode("utf-8", errors="replace")
        self.send_response(status)
        described = {"Content-Type": kind, "Content-Length": str(len(data))}
        for key, value in {**HEADERS, **described, **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error in plain text with the usual headers."""
        self.close_connection = True
        self._send(f"{message or HTTPStatus(code).phrase}\n", HTTPStatus(code))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page asks every two seconds."""
