"""An error in a user's own code is answered with its file and line, and its traceback can be found."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN

from lm.cli import main
from lm.config.imported import ROOT, user_frame
from lm.model.mlp import SwiGLU

PARTS = """from torch import nn
from lm.model.mlp import ReLU

class Constructor(ReLU):
    \"\"\"Cannot be made.\"\"\"
    def __init__(self, shape, expansion: float = 4.0):
        super().__init__(shape)
        self.more = unknown  # line 8

class Forward(ReLU):
    \"\"\"Cannot be used.\"\"\"
    def forward(self, x_btd):
        return unknown  # line 13

class Library(ReLU):
    \"\"\"Misuses a library, which raises.\"\"\"
    def forward(self, x_btd):
        wrong = nn.Linear(3, 3, device=x_btd.device, dtype=x_btd.dtype)
        return wrong(x_btd)  # line 19

class Trained(ReLU):
    \"\"\"Fails once it is trained on more than the one row of a plan.\"\"\"
    def forward(self, x_btd):
        if self.training and len(x_btd) > 1:
            print("so far so good")
            return unknown  # line 26
        return super().forward(x_btd)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and a module of a user's own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "origin_parts", raising=False)  # of another test's folder
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    (tmp_path / "origin_parts.py").write_text(PARTS)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Constructor", "NameError: name 'unknown' is not defined (origin_parts.py:8)"),
        ("Forward", "NameError: name 'unknown' is not defined (origin_parts.py:13)"),
        ("Library", "(origin_parts.py:19)"),
    ],
)
def test_errors_in_user_classes_name_file_and_line(
    base: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert main(["fit", "run.yaml", "--model.mlp", f"origin_parts.{name}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lm: model")
    assert said.count("\n") == 1
    assert words in said


def test_import_errors_name_file_and_line(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "origin_unfinished.py").write_text("\n\nunknown()\n")
    assert main(["fit", "run.yaml", "--model.mlp", "origin_unfinished.Part"]) == 2
    assert "NameError: name 'unknown' is not defined (origin_unfinished.py:3)\n" in capsys.readouterr().err
    assert main(["fit", "run.yaml", "--model.heads", "3"]) == 2
    assert ".py" not in capsys.readouterr().err, "what lm refuses in its own words"
    assert user_frame(NameError("never raised")) == ""


def test_a_fault_in_a_component_of_lm_names_its_line(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    exec(compile("\n\ndef forward(self, x_btd):\n    return unknown\n", str(ROOT / "model/mlp.py"), "exec"), made)
    monkeypatch.setattr(SwiGLU, "forward", made["forward"])
    monkeypatch.setattr("lm.training.cell._model_sizes_of", {})  # another test may have tried this model
    assert main(["fit", "run.yaml", "--model.mlp", "SwiGLU"]) == 2
    assert capsys.readouterr().err == "lm: model: NameError: name 'unknown' is not defined (lm/model/mlp.py:4)\n"


def test_debug_shows_the_traceback_of_what_is_otherwise_one_line(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--debug", "fit", "run.yaml"], ["fit", "run.yaml", "--debug"]):
        assert main([*arguments, "--model.mlp", "origin_parts.Constructor"]) == 2
        said = capsys.readouterr().err
        assert said.splitlines()[-1].startswith("lm: model")
        assert "Traceback (most recent call last)" in said
        assert "self.more = unknown" in said


@pytest.mark.slow
def test_failed_runs_name_their_traceback_in_the_log(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "run.yaml", "--model.mlp", "origin_parts.Trained", "--out", "out"]) == 1
    shown = capfd.readouterr()
    (log,) = base.glob("out/cells/[0-9a-f]*/log.txt")
    assert "NameError: name 'unknown' is not defined (origin_parts.py:26)" in shown.out
    assert f" {log.relative_to(base)}\n" in shown.out
    assert "Traceback" not in shown.out + shown.err
    assert "so far so good\n" in shown.out
    assert "so far so good\nTraceback (most recent call last)" in log.read_text()
    assert main(["--debug", "fit", "run.yaml", "--model.mlp", "origin_parts.Trained", "--out", "out"]) == 1
    assert "return unknown  # line 26" in capfd.readouterr().err

    assert main(["fit", "run.yaml", "--out", "well"]) == 0
    (log,) = base.glob("well/cells/[0-9a-f]*/log.txt")
    assert "training loss" in log.read_text()
    assert "training loss" in capfd.readouterr().err
