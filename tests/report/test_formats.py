"""A report in the formats of a paper says what the comparisons say, compiles, and is the same every time."""

import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from matplotlib.figure import Figure
from messages import CheckMessage, Refused
from records import BASE, BETTER, MakeExperiment
from rich.console import Console

from lm.analysis.compare import compare
from lm.analysis.results import load, value
from lm.analysis.tidy import CELLS, cells, curves
from lm.cli import main
from lm.report.figures.differences import FIGURES
from lm.report.pack import open_results
from lm.report.paper_table import STAR, paper_table
from lm.report.render import Section, emphasis, escape_latex, is_bold, latex, markdown_section
from lm.report.tables import AT_ONE_RATE
from lm.report.write import FORMATS, ReportRequest, load_report, report_files, write_report

HOSTILE = r"50 % of #1 & 2_3 {a}~^\x $y$ <i> -- `b` [e] | é ł č 中 🙂"


def sheet_of(folder: Path, columns: tuple[str, ...] | None = None) -> Section:
    results = load(folder)
    return paper_table(results, compare(results), columns)


def marked(section: Section, arm: str, column: str = "difference") -> str:
    """Return the marks of an arm's difference, or of another of its cells."""
    (index,) = [index for index, name in enumerate(section.columns) if name.startswith(column)]
    return next(emphasis(row[index]).marks for row in section.rows if row[0] == arm)


def mostly_clipped(arm: str, seed: int, record: dict[str, Any]) -> None:
    if arm in ("arm", "a_b+c"):
        record["steps"] = 1000
        record["metrics"]["clipped_share"] = 0.99


def test_significant_differences_are_bold_with_a_star(experiment: MakeExperiment) -> None:
    one = sheet_of(experiment({"base": BASE, "arm": BETTER}))
    assert marked(one, "arm") == STAR
    assert marked(one, "base") == ""
    assert list(map(is_bold, one.rows)) == [True, False]
    text = latex([one])
    assert re.search(r"arm & 6 & .*\\textbf\{.*\\textsuperscript\{\{\*\}\}\}", text)
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{", r"\label{tab:demo}"))
    assert "nats/token" in text


def test_a_paper_has_what_arms_come_to_at_one_rate(check_message: CheckMessage) -> None:
    with open_results(Path("results/reference/quickstart_rates.lmpack")) as place:
        one = sheet_of(place.folder)
    (note,) = [line for line in one.notes if line.startswith(AT_ONE_RATE.capitalize())]
    check_message(re.sub(r"\d\.\d{4}", "N", note))
    assert escape_latex(note) in latex([one])


def test_few_seeds_are_never_bold_and_a_footnote_says_so(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    one = sheet_of(experiment({"base": BASE[:4], "arm": BETTER[:4], "other": BETTER[:4]}))
    assert marked(one, "arm") == marked(one, "other") == "a"
    assert not any(map(is_bold, one.rows))
    check_message([*one.footnotes])
    assert "textbf" not in latex([one])


def test_unhealthy_arms_have_a_footnote_and_no_bold(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    one = sheet_of(experiment({"base": BASE, "arm": BETTER}, mostly_clipped))
    assert marked(one, "arm") == f"{STAR}a"
    assert not any(map(is_bold, one.rows))
    check_message([*one.footnotes])
    alone = sheet_of(experiment({"base": BASE, "arm": BETTER}, mostly_clipped), ("clipped_share",))
    assert [marked(alone, arm, "arm") for arm in ("base", "arm")] == ["", "a"]
    check_message([*alone.footnotes])


def test_columns_are_those_asked_for_in_their_order(experiment: MakeExperiment) -> None:
    one = sheet_of(experiment({"base": BASE, "arm": BETTER}), ("ece", "nll"))
    assert list(sheet_of(experiment({"base": BASE, "arm": BETTER})).groups) == ["", "", *["validation NLL ↓"] * 2]
    assert list(one.groups) == ["", "", "ECE, 15 bins ↓", "validation NLL ↓", "validation NLL ↓"]
    assert all("±" in row[2] for row in one.rows)


@pytest.mark.parametrize("names", [("nnl",), ("nll", "nll")])
def test_a_column_that_cannot_be_is_refused(
    experiment: MakeExperiment, names: tuple[str, ...], refused: Refused
) -> None:
    folder = experiment({"base": BASE, "arm": BETTER})
    with refused():
        sheet_of(folder, names)


def test_latex_and_markdown_are_of_one_frame(experiment: MakeExperiment) -> None:
    one = sheet_of(experiment({"base": BASE, "arm": BETTER}))
    page, text = "\n".join(markdown_section(one)), latex([one])
    for shown in (cell for row in one.rows for cell in row if cell != "-"):
        assert all(escape_latex(part) in text for part in shown.split(" ± "))
        assert shown in page


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a_b & 50 %", r"a\_b \& 50 \%"),
        ("-0.5 ± 0.1", r"$-$0.5 $\pm$ 0.1"),
        ("post-norm", "post-norm"),
        ("[-∞, +1.0]", r"{[}$-$$\infty$, +1.0{]}"),
        ("a---b", "a-{}-{}-b"),
        ("é中", "é{[}U+4E2D{]}"),
        ("a\nb\x07", "a b{[}U+0007{]}"),
    ],
)
def test_text_is_escaped_for_latex(given: str, expected: str) -> None:
    assert escape_latex(given) == expected


def test_a_table_fits_one_column_unless_more_quantities_are_requested(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "post_norm": BETTER}, title="A title of a few words " * 9)
    text = latex([sheet_of(folder)])
    assert text.count("{table}") == text.count("{threeparttable}") == text.count("{tabularx}") == 2
    assert r"\begin{tabularx}{\linewidth}{@{}>{\raggedright\arraybackslash}Xrrr@{}}" in text
    assert r"\multicolumn{2}{c}{} & \multicolumn{2}{c}{validation NLL $\downarrow$} \\" in text
    assert r"\cmidrule(lr){3-4}" in text
    assert r"post\_\allowbreak{}norm & 6 & 1.7683{\scriptsize\,$\pm$\,0.1048} & " in text
    (caption,) = re.findall(r"\\caption\{(.*)\}", text)
    assert len(caption) <= 96
    notes = text.partition(r"\begin{tablenotes}")[2]
    assert "A title of a few words " * 8 in notes
    assert r"\item[{*}] Significant" in notes
    assert r"\item[] " in notes
    assert "{table*}" in latex([sheet_of(folder, ("nll", "ece"))])


@pytest.mark.extra
def test_latex_compiles(experiment: MakeExperiment, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None or subprocess.run(["kpsewhich", "threeparttable.sty"], check=False).returncode:
        pytest.skip("needs pdflatex with threeparttable")
    folder = experiment(
        {"base": BASE, "a_b+c": BETTER, "c": [*BETTER[:5], "diverged"]}, mostly_clipped, title=HOSTILE, name="a_demo"
    )
    (tmp_path / "table.tex").write_text(latex([sheet_of(folder), sheet_of(folder, ("nll", "ece"))]), encoding="utf-8")
    letters = "".join(map(chr, range(32, 0x250)))
    document = (
        "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs,tabularx,threeparttable}\n"
        "\\usepackage[margin=0.75in]{geometry}\n"
        f"\\begin{{document}}\n\\input{{table}}\n\\raggedright {' '.join(map(escape_latex, letters))}\n"
        "\\end{document}\n"
    )
    (tmp_path / "paper.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert found.returncode == 0, found.stdout[-3000:]
    assert not re.search(r"Overfull .hbox \(\d{2,}", found.stdout), "the table is wider than the page"


def test_cells_have_a_row_for_each_arm_seed_and_quantity(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE, "arm": [*BETTER[:4], "diverged", None]})
    results = load(folder)
    table = cells(results)
    assert tuple(table.columns) == CELLS
    assert not table.duplicated(["arm", "seed", "metric"]).any()
    assert len(table) == 2 * 6 * table.metric.nunique()
    nll = table[table.metric == "nll"].set_index(["arm", "seed"])
    assert nll.loc["base"].value.tolist() == BASE
    assert nll.loc["arm"].status.tolist() == ["ok"] * 4 + ["diverged", "missing"]
    assert nll.loc["arm"].value.isna().tolist() == [False] * 4 + [True] * 2
    assert set(nll.unit) == {"nats/token"}
    record = results.records["arm", 0]
    assert record is not None
    assert nll.loc[("arm", 0), "value"] == value(record, "nll")
    files = report_files([load_report(folder)], ReportRequest(("csv",)))
    from_csv = pd.read_csv(io.StringIO(str(files["cells.csv"])), keep_default_na=False, na_values={"value": [""]})
    pd.testing.assert_frame_equal(from_csv, table, check_dtype=False)


def test_curves_have_a_row_for_each_step(experiment: MakeExperiment) -> None:
    table = curves(load(experiment({"base": [2.0, 2.1], "arm": [1.9, "diverged"]})))
    assert table.step.tolist() == [10, 20, 30] * 3
    assert table.groupby(["arm", "seed"]).size().to_dict() == {("arm", 0): 3, ("base", 0): 3, ("base", 1): 3}
    first = table[(table.arm == "base") & (table.seed == 0)]
    assert first.validation_nll.tolist() == pytest.approx([3.0, 2.5, 2 + 1 / 3])


@pytest.mark.extra
def test_paper_figures_have_the_column_width_and_real_text(experiment: MakeExperiment) -> None:
    files = report_files([load_report(experiment({"base": BASE, "arm": BETTER}))], ReportRequest(("pdf", "svg")))
    for width, inches in (("one_column", 3.35), ("two_columns", 6.9)):
        for name in ("learning_curve", "gradient_norm", "reliability"):
            svg, pdf = files[f"{name}_{width}.svg"], files[f"{name}_{width}.pdf"]
            assert isinstance(svg, bytes)
            assert isinstance(pdf, bytes)
            root = ElementTree.fromstring(svg.decode())
            assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * inches)
            texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
            assert any("base" in str(text) for text in texts)
            assert b"/Type3" not in pdf
            assert b"/FontFile2" in pdf
            assert b"/CreationDate" not in pdf


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.report.figures.picture.render", lambda figure: {"png": b"drawn"})
    monkeypatch.setattr(Figure, "savefig", lambda figure, content, format, metadata: content.write(format.encode()))


ALL = ",".join(FORMATS)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_the_default_format_is_markdown_and_html(experiment: MakeExperiment, tmp_path: Path) -> None:
    folder = experiment({"base": BASE, "arm": BETTER})
    write_report(folder, Console(file=io.StringIO()), tmp_path / "usual")
    assert main(["report", str(folder), "--out", str(tmp_path / "md"), "--format", "md,html"]) == 0
    written = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("usual", "md")]
    assert written[0] == written[1]
    assert "table.md" in written[0]


@pytest.mark.usefixtures("_quick")
def test_several_experiments_are_one_report(experiment: MakeExperiment, tmp_path: Path) -> None:
    folder = experiment({"base": BASE, "arm": BETTER})
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    manifest = other / "experiment.json"
    text = manifest.read_text(encoding="utf-8").replace('"demo"', '"other"').replace("A demonstration", "Another")
    manifest.write_text(text, encoding="utf-8")
    out = tmp_path / "both"
    assert main(["report", str(folder), str(other), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"table.md", "table.tex", "cells.csv"}
    page = (out / "table.md").read_text(encoding="utf-8")
    assert page.index("## A demonstration") < page.index("## Another")
    latex_text = (out / "table.tex").read_text(encoding="utf-8")
    assert latex_text.index(r"\label{tab:demo}") < latex_text.index(r"\label{tab:other}")
    table = pd.read_csv(out / "cells.csv")
    assert list(dict.fromkeys(table.experiment)) == ["demo", "other"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "latx"], "Did you mean latex?"),
        (["--format", "latex,"], "no such format"),
        (["--columns", "nnl"], "Did you mean nll?"),
        (["FOLDER"], "give --out DIR"),
        (["FOLDER", "--out", "new"], "two experiments are called demo"),
    ],
)
def test_refused_arguments_write_nothing(
    experiment: MakeExperiment,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = experiment({"base": BASE, "arm": BETTER})
    monkeypatch.chdir(folder.parent)
    before = sorted(Path().rglob("*"))
    assert main(["report", "demo", *(argument.replace("FOLDER", "demo") for argument in arguments)]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_latex_beside_pdf_includes_the_forest_plot(experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.report.figures.catalogue.figures", lambda: {figure.name: figure for figure in FIGURES})
    folder = experiment({"base": BASE, "arm": BETTER})
    assert main(["report", str(folder), "--format", "latex,pdf"]) == 0
    text = (folder / "figure.tex").read_text(encoding="utf-8")
    (included,) = re.findall(r"\\includegraphics\[width=\\linewidth\]\{(.*)\}", text)
    assert (folder / included).read_bytes().startswith(b"%PDF")
    assert "\\label{fig:demo}" in text
