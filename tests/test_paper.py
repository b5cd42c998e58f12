"""docs/paper.pdf: its numbers come from the packs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAPER = Path(__file__).resolve().parents[1] / "docs/paper"


def test_the_text_has_no_decimal_number_of_its_own() -> None:
    body = (PAPER / "paper.tex").read_text(encoding="utf-8").partition(r"\begin{document}")[2]
    body = body.partition(r"\begin{thebibliography}")[0]
    assert "reproduced" in body
    assert re.findall(r"\d*[.]\d+(?!\d*(?:cm|\\linewidth))", body) == []


@pytest.mark.extra
def test_tables_figures_and_the_pdf_are_made_from_the_packs(tmp_path: Path) -> None:
    command = [sys.executable, str(PAPER / "make.py"), "--build", str(tmp_path), "--pdf", str(tmp_path / "made.pdf")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    text = (tmp_path / "paper.tex").read_text(encoding="utf-8")
    numbers = set(re.findall(r"\\newcommand{\\(\w+)}", (tmp_path / "numbers.tex").read_text(encoding="utf-8")))
    assert not [name for name in numbers if rf"\{name}" not in text], "made and not used"
    if shutil.which("pdflatex") is None:
        assert made.returncode == 1
        assert "pdflatex" in made.stdout
        pytest.skip("needs pdflatex")
    assert made.returncode == 0, made.stderr
    assert "undefined" not in (tmp_path / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert (tmp_path / "made.pdf").read_bytes().startswith(b"%PDF")
