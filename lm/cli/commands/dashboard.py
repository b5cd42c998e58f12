"""`lm dashboard`: the report of a folder of results in a browser, as it grows."""

import argparse
import sys
from typing import Any

from lm.cli.options import Parser, add_results, called
from lm.config.tree import InputError

HELP = "show the report of a folder of results in a browser, made again as cells end"
EXAMPLES = ("lm dashboard", "lm dashboard quickstart --port 8080")

PORT = 8765


def add_options(command: Parser) -> None:
    add_results(command)
    command.add_argument("--port", type=int, help=f"to listen on (default: {PORT}, or a free one where that is taken)")
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="to listen on; for others than this machine, who need the token in the address (default: 127.0.0.1)",
    )


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.report.web.board import Board, has_optuna_dashboard, optuna_commands
    from lm.report.web.serve import Server

    if options.port is not None and not 0 <= options.port < 65536:
        raise InputError(f"--port: expected a number from 0 to 65535, found {options.port}")
    board = Board(called(options.folder))
    try:
        server = Server(board, options.host, PORT if options.port is None else options.port)
    except InputError:
        if options.port is not None:
            raise
        server = Server(board, options.host, 0)
    with server:
        print(f"dashboard: {server.address} (Ctrl-C ends it)", flush=True)
        for command in optuna_commands(board):
            lacking = "" if has_optuna_dashboard() else "  # after pip install optuna-dashboard"
            print(f"trials: {command}{lacking}", file=sys.stderr)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nlm: dashboard ended", file=sys.stderr)
    return 0
