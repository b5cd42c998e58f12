"""Secrets: none of them in what is written down of a cell or sent, and no other word lost."""

import json
import os
from pathlib import Path

import pytest
from records import blank

from lm.store.redaction import redacted, redacted_tree, secrets_of
from lm.store.store import LOG, Store

ENVIRONMENT = {
    "WANDB_API_KEY": "0123456789abcdef",
    "HF_TOKEN": "open sesame",
    "MLFLOW_TRACKING_PASSWORD": "hunter22",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "DB_PASSWORD_FILE": "/run/secrets/db",
    "TOKENIZERS_PARALLELISM": "disabled",
    "SHORT_TOKEN": "abc",
    "PWD": "/home/someone",
}


def test_a_variable_is_secret_by_its_name() -> None:
    assert secrets_of(ENVIRONMENT) == sorted(list(ENVIRONMENT.values())[:4], key=len, reverse=True)


@pytest.mark.parametrize("name", list(ENVIRONMENT)[:4])
def test_values_of_secret_variables_are_redacted(name: str) -> None:
    assert redacted(f"refused {ENVIRONMENT[name]}: 403", ENVIRONMENT) == "refused ***: 403"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://me:hunter2@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:sec/r@et@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("redis://:hunter2@host", "redis://:***@host"),
        ("https://x0x0x0@host/me.git", "https://***@host/me.git"),
        ("OTHER_API_KEY=abc, then", "OTHER_API_KEY=***, then"),
        ("{'password': 'abc', 'user': 'me'}", "{'password': '***', 'user': 'me'}"),
        ("GET /?access_token=abc&page=2", "GET /?access_token=***&page=2"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("with hf_" + "a" * 34, "with ***"),
        ("with ghp_" + "a" * 36, "with ***"),
        ("with AKIA" + "A" * 16, "with ***"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str, clean: str) -> None:
    assert redacted(text, {}) == clean
    assert redacted(clean, {}) == clean


@pytest.mark.parametrize(
    "text",
    [
        "2.3456 nats a token: 1024 tokens, pad_token=0, end_of_text token: 50256",
        "https://pypi.org/simple and http://127.0.0.1:8765/",
        "git@github.com:someone/something",
        "KeyError: 'key'; expected key=value",
        "step 100 of 2,000: train_loss 3.25 (tokens_per_step: 128)",
        "a" * 64,
    ],
)
def test_other_words_stay(text: str) -> None:
    assert redacted(text, ENVIRONMENT) == text


def test_a_setting_is_secret_by_its_name_at_any_depth() -> None:
    tree = {"a": [{"api_key": "abc", "password": None, "tokenizer": "Bytes", "pad_token": "<pad>"}], "n": 1.5}
    clean = {"a": [{"api_key": "***", "password": None, "tokenizer": "Bytes", "pad_token": "<pad>"}], "n": 1.5}
    assert redacted_tree(tree, {}) == clean


def test_a_finished_cell_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "0123456789abcdef")
    store = Store(tmp_path)
    store.work("a").mkdir(parents=True)
    said = "refused 0123456789abcdef by https://me:hunter2@host"
    log = os.open(store.work("a") / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, f"{said}\n\xff\n".encode("latin-1"))
    record = {**blank("a", "failed"), "error": said, "traceback": said, "flags": [said, "clipped"]}
    returned = store.finish("a", record)  # type: ignore[arg-type]
    os.write(log, b"the end\n")
    os.close(log)
    clean = "refused *** by https://me:***@host"
    assert (returned["error"], returned["flags"]) == (clean, [clean, "clipped"])
    assert store.record("a") == returned
    assert (store.directory("a") / LOG).read_bytes() == f"{clean}\n\xff\nthe end\n".encode("latin-1")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert "hunter2" not in json.dumps(returned)
