"""The Hugging Face hub where it does not answer, without a network to ask."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.utils
import pytest
from helpers import Patch
from huggingface_hub import constants
from messages import CheckMessage, Refused

from lm.config.tree import InputError
from lm.data import hub as module
from lm.data.hub import HubText


@pytest.fixture
def hub_that(monkeypatch: Patch) -> Callable[[Callable[[], None]], list[str]]:
    """Makes the hub do something whenever it is asked; returns a list that the addresses asked go into."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def install(act: Callable[[], None]) -> list[str]:
        addresses: list[str] = []

        class Session:
            def head(self, address: str, timeout: float) -> None:
                addresses.append(address)
                act()

        monkeypatch.setattr(huggingface_hub.utils, "get_session", Session)
        return addresses

    return install


def refuse() -> None:
    raise ConnectionError("no route to host")


def loader(monkeypatch: Patch, copy: Any = None) -> list[tuple[bool, bool]]:
    """Makes `datasets` load a copy or fail; returns a list of whether it was kept from asking the hub."""
    modes: list[tuple[bool, bool]] = []

    def load_dataset(*_: object, **__: object) -> Any:
        modes.append((datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        if copy is None:
            raise ConnectionError("Couldn't reach 'a/b' on the Hub\n(OfflineModeIsEnabled)")
        return copy

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return modes


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "never answers"])
def test_silent_hub_is_one_line_without_retry(
    hub_that: Callable[..., list[str]], monkeypatch: Patch, check_message: CheckMessage, silent: bool
) -> None:
    over = threading.Event()
    addresses, modes = hub_that(lambda: over.wait() and None if silent else refuse()), loader(monkeypatch)
    if silent:
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)
    with pytest.raises(InputError) as caught:
        list(HubText("a/b").documents())
    over.set()
    assert "\n" not in str(caught.value)
    check_message(str(caught.value))
    assert addresses == [datasets.config.HF_ENDPOINT]
    assert modes == [(True, True)]
    assert not datasets.config.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_a_copy_on_this_machine_needs_no_hub(hub_that: Callable[..., list[str]], monkeypatch: Patch) -> None:
    hub_that(refuse)
    modes = loader(monkeypatch, datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a", "b"]})}))
    assert list(HubText("a/b").documents()) == ["a", "b"]
    assert modes == [(True, True)]


def test_a_hub_that_answers_is_left_to_its_client(
    hub_that: Callable[..., list[str]], monkeypatch: Patch, refused: Refused
) -> None:
    hub_that(lambda: None)
    modes = loader(monkeypatch)
    with refused():
        list(HubText("a/b").documents())
    assert modes == [(False, False)]


def test_a_folder_is_read_without_the_hub(
    hub_that: Callable[..., list[str]], monkeypatch: Patch, tmp_path: Path
) -> None:
    addresses = hub_that(refuse)
    loader(monkeypatch, {})
    assert list(HubText(str(tmp_path)).documents()) == []
    assert addresses == []


def test_nothing_is_asked_where_the_user_works_offline(hub_that: Callable[..., list[str]], monkeypatch: Patch) -> None:
    addresses = hub_that(refuse)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    loader(monkeypatch, {})
    assert list(HubText("a/b").documents()) == []
    assert addresses == []
