"""The pages of documentation: links lead somewhere, what they name is there, and their examples work."""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
import yaml
from helpers import cells_line
from messages import CheckMessage

import lm
from lm.ablation.design import DesignNode
from lm.ablation.experiment import ExperimentFile, Tier
from lm.ablation.sections import CurveNode, LadderNode, MarginNode, RatesNode, RungNode, Stages, TuningNode
from lm.analysis.claims import ClaimNode
from lm.cli import main
from lm.cli.commands import commands
from lm.config.choices import find_class, slots
from lm.config.components import plain_options
from lm.config.keys import keys
from lm.data.mixture import Mixture
from lm.execution.executor import Executor
from lm.model.attention import Attention, Mask
from lm.model.block import BlockLayout
from lm.model.mlp import MLP
from lm.model.norm import NoNorm
from lm.model.position import NoPosition, Position
from lm.model.shape import Shape
from lm.report.experiment import ExperimentReport
from lm.report.figures.catalogue import figures
from lm.report.figures.picture import draw
from lm.report.pack import unpack
from lm.search.space import ChoicesNode, ConditionalChoice, Distribution
from lm.search.spec import PRUNERS, SAMPLERS, SweepFile
from lm.stats.tests import seeds_needed
from lm.training.optim import Optim
from lm.training.run import Evaluation, RunConfig, Trainer

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its blocks of code, in which nothing is a link or a heading."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as the usual renderers of Markdown make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(next(name for name in (plain, *(f"{plain}-{n}" for n in range(1, 99))) if name not in found))
    return found


@pages
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+://", link):
            continue
        target, _, anchor = unquote(link).partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name}: {link}"
        assert file.is_relative_to(ROOT), f"{page.name}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {link}: no such heading"


def defined(path: Path) -> set[str]:
    """Names that a Python file defines, `Class.method` among them."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.ClassDef):
            names += [f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)]
        if isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        found.update(names)
    return found


FILE = re.compile(r"(?<![\w/.])((?:lm|tests)/[\w/]*(?:\.py|/))(?:::([\w.]+))?")


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
def test_every_file_and_name_that_pages_mention_exists(page: Path) -> None:
    for file, name in FILE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / file).exists(), f"{page.name}: {file}"
        if name:
            assert name in defined(ROOT / file), f"{page.name}: {file} has no {name}"


# experiments.md


@pytest.mark.parametrize(
    "node",
    [
        ExperimentFile,
        Tier,
        DesignNode,
        Stages,
        TuningNode,
        LadderNode,
        RungNode,
        MarginNode,
        ClaimNode,
        SweepFile,
        Distribution,
        ChoicesNode,
        ConditionalChoice,
        CurveNode,
        RatesNode,
    ],
)
def test_every_key_of_a_file_is_described(node: type) -> None:
    said = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    coded = " ".join(re.findall(r"`([^`\n]+)`", said))
    for key in keys(node):
        assert re.search(rf"\b{key}\b", coded), f"docs/experiments.md does not speak of {key} of {node.__name__}"


def test_every_key_of_a_configuration_is_described() -> None:
    said = " ".join(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")))
    wanted = {*slots(RunConfig), *slots(Optim)}
    wanted |= {key for cls in (RunConfig, Optim, Evaluation) for key in plain_options(cls)}
    for key in sorted(wanted | set(plain_options(Trainer, 1)) | set(SAMPLERS) | set(PRUNERS)):
        assert re.search(rf"\b{key}\b", said), f"docs/experiments.md does not speak of {key}"


def test_every_shipped_experiment_is_listed() -> None:
    said = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    for path in ROOT.glob("experiments/*.yaml"):
        assert f"`{path.stem}`" in said, path.stem


# tutorial.md


@pytest.mark.slow
def test_what_the_tutorial_types_is_answered_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"^    (title: Is SwiGLU.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.yaml").write_text(textwrap.dedent(f"    {written}\n"), encoding="utf-8")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    answers = {}
    for command in re.findall(r"^    \$ lm (.*(?:Rpoe|--plan|--seeds 0,1,2))$", page, re.MULTILINE):
        code = main(command.split())
        said = capsys.readouterr()
        answers[command.split()[-1]] = (code, said.out + said.err)
    assert {name: code for name, (code, _) in answers.items()} == {"Rpoe": 2, "--plan": 0, "0,1,2": 2}
    plan = answers["--plan"][1]
    check_message([cells_line(plan), *(line for line in plan.splitlines() if line.strip().startswith("swiglu: "))])
    for line in re.findall(r"^    (lm: .*) \.\.\.$", page, re.MULTILINE):
        assert any(line in said for _, said in answers.values()), line


# api.md


def test_every_name_argument_and_figure_of_the_interface_is_described() -> None:
    said = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in {*lm.__all__} - {"__version__"}:
        assert f"`lm.{name}" in said, name
    for call in (lm.load, lm.fit, lm.load_model, lm.ablate):
        arguments = set(inspect.signature(call).parameters) - {"changes"}
        assert [name for name in arguments if not re.search(rf"\b{name}\b", said)] == [], call
    tables = [name for kind in (lm.Results, lm.Ladder) for name in vars(kind) if not name.startswith("_")]
    assert [name for name in tables if f"`{name}`" not in said and f".{name}" not in said] == []
    assert [name for name in (*figures(), "ladder") if f"`{name}`" not in said and f'"{name}"' not in said] == []


# other pages


def test_every_command_is_listed() -> None:
    said = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `lm (\w+)", said, re.MULTILINE)) == set(commands())


def test_every_page_is_in_the_index() -> None:
    linked = set(LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    assert {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"} <= linked


def test_the_page_names_the_seeds_that_verdicts_need() -> None:
    said = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)(?:(?:,| to) (\d+))? \| (\d+) \|$", said, re.MULTILINE)
    assert len(rows) == 4
    for first, last, seeds in rows:
        for comparisons in range(int(first), int(last or first) + 1):
            assert seeds_needed(comparisons) == int(seeds), comparisons


def test_all_that_an_executor_must_do_is_listed() -> None:
    said = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for method in Executor.__abstractmethods__:
        assert f"`lm/execution/executor.py::Executor.{method}`" in said, method


def test_the_components_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(), re.M | re.S)
    monkeypatch.syspath_prepend(str(tmp_path))
    module_of = {}  # each block is a module of its own, so that it works when it is copied alone
    for index, code in enumerate(codes):
        (tmp_path / f"block_of_the_page_{index}.py").write_text(code, encoding="utf-8")
        for name in re.findall(r"^class (\w+)", code, re.MULTILINE):
            module_of[name] = f"block_of_the_page_{index}.{name}"
    assert len(module_of) == len(codes)
    shape = Shape(vocabulary=9, context=8, width=8, heads=2, layers=1)
    made = find_class(module_of["CubedReLU"], MLP, "model.mlp")(shape)
    x = torch.tensor([-1.0, 0.0, 3.0])
    assert made.activation(x).tolist() == [0.0, 0.0, 27.0]
    pytest.importorskip("transformers")
    mamba = find_class(module_of["Mamba2"], Attention, "model.attention")(shape)
    x_btd = torch.randn(1, 8, 8)
    y_btd, changed_btd = (mamba(x, NoPosition(shape), Mask()) for x in (x_btd, x_btd + (torch.arange(8) == 5)[:, None]))
    assert [torch.equal(y_btd[:, t], changed_btd[:, t]) for t in range(8)] == [t < 5 for t in range(8)]
    layout = find_class(module_of["NormBetween"], BlockLayout, "model.block")(shape, NoNorm, 0.0)
    assert layout(x, torch.neg, torch.exp).tolist() == (x + (-x).exp()).tolist()
    position = find_class(module_of["RootPenalty"], Position, "model.position")(shape)
    expected = [[-(max(0, 2 + q - k) ** 0.5) for k in range(4)] for q in range(2)]
    assert position.bias(2, 4).tril(2).allclose(torch.tensor(expected).expand(2, 2, 4))


def test_the_figure_of_the_page_draws_committed_results(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "share.py", "exec"), names)
    unpack(ROOT / "results/reference/quickstart.lmpack", tmp_path)
    (figure,) = names["FIGURES"]
    chart = figure.make(ExperimentReport.load(tmp_path / "quickstart").figure_inputs)
    assert [series.label for series in chart.panels[0].series] == ["gelu", "swiglu"]
    assert [len(series.y) for series in chart.panels[0].series] == [4, 4]
    assert len(draw(chart).axes[0].lines) >= 2


# data.md


def test_every_corpus_of_the_page_on_text_can_be_built() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = [
        yaml.safe_load(text) for text in re.findall(r"(?:^    .*\n)+", page, re.MULTILINE) if "data.corpus:" in text
    ]
    nodes = [block["data.corpus"] for block in blocks]
    nodes += [
        {"class_path": "HubText", "init_args": yaml.safe_load(text)} for text in re.findall(r"`(\{path.*?\})` \|", page)
    ]
    assert len(nodes) == 3 + 5
    for node in nodes:
        assert (
            Mixture({"a": node, "b": "StdlibText"}) if node["class_path"] != "Mixture" else Mixture(**node["init_args"])
        )
