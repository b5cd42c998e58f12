"""What parts of the package compute does not move without a version that says so."""

import json
from pathlib import Path
from typing import Any

import pin
import pytest

from lm.config import fingerprint
from lm.config.choices import choices
from lm.config.fingerprint import EVERY, VERSIONS, behaviour_of
from lm.config.tree import override
from lm.data.batch import Data
from lm.model.transformer import Model
from lm.training.cell import check

PINNED: dict[str, Any] = json.loads(pin.PINNED.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pinned")


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(PINNED))
def test_numbers_move_with_a_version_alone(part: str, folder: Path) -> None:
    pinned = PINNED[part]
    assert pinned["version"] == VERSIONS.get(part, 1), "pin the new numbers: python tests/pin.py"
    away = pin.moved(part, pin.measures(folder)[part](), pinned)
    assert not away, (
        f"{part} computes something else: raise its version in config/fingerprint.py, then python tests/pin.py"
    )


def test_every_part_is_pinned(folder: Path) -> None:
    assert set(pin.measures(folder)) == set(PINNED)
    assert set(choices(Model)) - {"Decoder", "EncoderDecoder"} == set()
    assert set(choices(Data)) - {"TextData"} <= set(PINNED)


def test_raised_versions_change_ids_of_cells_using_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary, alibi = pin.SMALL, override(pin.SMALL, {"model.position": "Alibi"})
    before = [check(tree).id for tree in (rotary, alibi)]
    monkeypatch.setitem(fingerprint.VERSIONS, "Alibi", 2)
    after = [check(tree).id for tree in (rotary, alibi)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    monkeypatch.setitem(fingerprint.VERSIONS, EVERY, 2)
    assert not {check(tree).id for tree in (rotary, alibi)} & {*before, *after}


def test_versions_name_parts_that_exist() -> None:
    assert set(VERSIONS) <= set(PINNED)
    assert all(version > 1 for version in VERSIONS.values())
    assert behaviour_of(check(pin.SMALL).config) == {
        name: version for name, version in VERSIONS.items() if name in fingerprint.parts_of(check(pin.SMALL).config)
    }
