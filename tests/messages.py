"""Messages that users read, kept whole in one golden file; `pytest -n 0 --write-messages` keeps the new ones."""

import functools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

Message = str | list[str]
CheckMessage = Callable[[Message], None]
"""Compares a message of a test with the golden one."""


class Refused(Protocol):
    """Expects an error of one line, by default an InputError, which is compared with the golden one."""

    def __call__(self, kind: type[Exception] = ...) -> AbstractContextManager[None]:
        """Return the block that must raise."""


class RefusedCommand(Protocol):
    """Expects a command to end with exit code 2 and one line alone, which is compared with the golden one."""

    def __call__(self, arguments: Sequence[object], run: Callable[[list[str]], int] = ...) -> None:
        """Run the command."""


GOLDEN = Path(__file__).with_name("messages.golden.json")


@functools.cache
def read_messages() -> dict[str, Message]:
    """Read the golden messages by the test that compares them."""
    return dict(json.loads(GOLDEN.read_text(encoding="utf-8"))) if GOLDEN.exists() else {}


def write_message(name: str, message: Message) -> None:
    """Keep a message as the golden one of a test."""
    messages = {**read_messages(), name: message}
    text = json.dumps(dict(sorted(messages.items())), indent=1, ensure_ascii=False)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
    read_messages.cache_clear()
