from pathlib import Path

import pytest
from helpers import Patch


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: Patch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
