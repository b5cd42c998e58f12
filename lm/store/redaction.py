"""Removal of secrets from everything that is written or sent: passwords, tokens, keys.

A secret is the value of an environment variable with a name such as `API_KEY`, the password of a URL, the value of a
setting such as `api_key`, and a text in the form of a well-known token. Configurations and the code of own classes stay
as they are, since they are part of a cell's id: no secret belongs there.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REDACTED = "***"

SHORTEST = 6  # characters of the shortest value that is removed; a shorter one may occur anywhere by chance

_WORDS = r"API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|(?:ACCESS|SECRET|PRIVATE|AUTH|SIGNING|ENCRYPTION)_?KEY"
_SETTINGS = (
    r"api[_-]?key|(?:ssl)?password|passwd|client[_-]?secret|secret[_-]?key|(?:access|auth|api|refresh)[_-]?token"
)
_VARIABLE = re.compile(rf"(?:^|_)(?:{_WORDS})(?:_ID)?$", re.IGNORECASE)
_KEY = re.compile(
    r"(?:^|[_.-])(?:api_?key|password|passwd|passphrase|(?:client|app)_?secret|secret(?:_?key)?|"
    r"(?:access|auth|bearer|api|refresh)_?token|(?:access|private)_?key)$",
    re.IGNORECASE,
)
"""Names of settings; `token` alone is a word of language models."""

_PATTERNS = (
    (r"(://[^:/@\s]*:)\S*@", rf"\1{REDACTED}@"),
    (r"(https?://)[^:/@\s?#]+@", rf"\1{REDACTED}@"),
    (rf"\b((?:[A-Z0-9]+_)*(?:{_WORDS})[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+", rf"\1{REDACTED}"),
    (rf"(?i)\b((?:{_SETTINGS})[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+", rf"\1{REDACTED}"),
    (r"(?i)(\bauthorization[\"']?\s*[=:]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"',;]+", rf"\1{REDACTED}"),
    (r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abp]-)[A-Za-z0-9_-]{16,}", REDACTED),
    (r"\bAKIA[0-9A-Z]{16}\b", REDACTED),
)


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables whose names say that they are secret, the longest first."""
    values = {value for name, value in environment.items() if _VARIABLE.search(name)}
    return sorted((value for value in values if len(value.strip()) >= SHORTEST), key=len, reverse=True)


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a text with `***` in the place of every secret.

    >>> redacted("postgresql://me:hunter2@host/db refused api_key=abc123", {})
    'postgresql://me:***@host/db refused api_key=***'
    """
    for secret in secrets_of(environment):
        text = text.replace(secret, REDACTED)
    for pattern, instead in _PATTERNS:
        text = re.sub(pattern, instead, text)
    return text


def redacted_tree(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Return a tree of plain values with its texts redacted, wholly those under a key such as `password`."""
    if isinstance(value, str):
        return redacted(value, environment)
    if isinstance(value, Mapping):
        secret = {key for key, inner in value.items() if inner and isinstance(inner, str) and _KEY.search(str(key))}
        return {key: REDACTED if key in secret else redacted_tree(inner, environment) for key, inner in value.items()}
    return [redacted_tree(inner, environment) for inner in value] if isinstance(value, list | tuple) else value


def redact_file(path: Path) -> None:
    """Remove the secrets from a text file in place, while a process may append to it; ignore a missing file."""
    with (
        contextlib.suppress(FileNotFoundError),
        open(path, "r+", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        written = file.read()
        if (clean := redacted(written)) != written:
            file.seek(0)
            file.write(clean)
            file.truncate()
