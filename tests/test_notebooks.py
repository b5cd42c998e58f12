"""The notebooks run, and what is committed of them is what running them leaves."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 400_000
"""Bytes of a notebook with its figures."""

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(path: Path) -> list[dict[str, Any]]:
    """The cells that are run."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@notebooks
def test_notebooks_are_committed_as_run_from_top_to_bottom(path: Path) -> None:
    assert [cell["execution_count"] for cell in code(path)] == list(range(1, len(code(path)) + 1))
    outputs = [output for cell in code(path) for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@notebooks
def test_a_notebook_is_small_and_names_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert not re.search(r"/(home|root|tmp|Users|work)/", text)


@notebooks
def test_a_notebook_leans_on_the_public_interface_alone(path: Path) -> None:
    lines = [line for cell in code(path) for line in "".join(cell["source"]).splitlines()]
    assert "import lm" in lines
    assert not [line for line in lines if re.match(r"\s*(from|import) lm\.", line)]


@pytest.mark.extra
@notebooks
def test_a_notebook_runs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat, of the extra dev")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, of the extra dev")
    pytest.importorskip("ipykernel", reason="needs ipykernel, of the extra dev")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
