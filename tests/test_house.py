"""Data flows one way: a file imports only from files above it."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lm

ROOT = Path(lm.__file__).parent
ORDER = (
    "import_hooks",
    "config",
    "stats",
    "store",
    "analysis",
    "report",
    "data",
    "model",
    "metrics",
    "training",
    "inference",
    "execution",
    "search",
    "ablation",
    "api",
    "cli",
    "__main__",
)
"""The parts of lm, each of which may import from those before it; a new file needs a place here."""

FILES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of the module in a file."""
    parts = ("lm", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All that the syntax tree of a file holds."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def imports(path: Path) -> set[str]:
    """The modules of lm that a file imports, wherever in the file that stands."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [member if member in MODULES else str(node.module) for member in members]
        else:
            continue
        found |= {name for name in names if name.split(".")[0] == "lm"}
    return found


def part(module: str) -> str:
    """The first name below lm: a file of the package, or a folder."""
    return module.split(".")[1] if "." in module else ""


def test_a_file_imports_only_from_files_above_it() -> None:
    for path in FILES:
        if name_of(path) == "lm":
            assert imports(path) == {"lm.import_hooks"}
            continue
        below = ORDER.index(part(name_of(path)))
        for module in imports(path) - {"lm"}:
            assert ORDER.index(part(module)) <= below, f"{path.relative_to(ROOT)} imports {module}"


def test_no_two_files_import_each_other() -> None:
    left = {name: imports(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    while left:
        free = {name for name, needed in left.items() if not needed & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {name: needed for name, needed in left.items() if name not in free}


_OF_PROCESSES = "fork_server", "forkserver_preload", "local", "nonzero_rank"
PROCESSES = {f"lm.execution.{name}" for name in _OF_PROCESSES}
"""The executor of this machine, which alone knows of processes."""


def test_only_the_executor_of_this_machine_knows_of_processes() -> None:
    for name, path in MODULES.items():
        if name in PROCESSES:
            continue
        named = {node.module for node in nodes(path) if isinstance(node, ast.ImportFrom)}
        named |= {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
        assert not any(str(found).split(".")[0] == "multiprocessing" for found in named), name
        allowed = {
            "lm.execution.on_ray": {"lm.execution.local"},
            "lm.execution.on_slurm": {"lm.execution.local"},
        }
        assert imports(path) & PROCESSES <= allowed.get(name, set()), name


def test_packages_of_extras_are_imported_by_their_own_files_alone() -> None:
    of = {"ray": {"on_ray"}, "submitit": {"on_slurm"}}
    for name, path in MODULES.items():
        named = {str(node.module) for node in nodes(path) if isinstance(node, ast.ImportFrom)}
        named |= {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
        for package, files in of.items():
            found = any(one.split(".")[0] == package for one in named)
            assert found == (name in {f"lm.execution.{file}" for file in files}), (name, package)


def test_a_file_is_short_enough_to_be_read() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > 600} == {}


def test_the_architecture_page_and_its_diagram_name_every_package() -> None:
    docs = ROOT.parent / "docs"
    rows = re.findall(r"^\| `lm/(\w+)/`", (docs / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [name for name in ORDER if (ROOT / name).is_dir()]
    assert {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(rows)
    diagram = (docs / "packages.svg").read_text(encoding="utf-8")
    assert set(re.findall(r'class="name"[^>]*>(\w+)<', diagram)) == set(rows)


def formats(path: Path) -> set[tuple[int, str]]:
    """Line and text of every format of a decimal number in a file, such as `.4f` or `g`."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            assert isinstance(node.format_spec, ast.JoinedStr)
            parts = [part.value if isinstance(part, ast.Constant) else "0" for part in node.format_spec.values]
            text = "".join(map(str, parts))
            if text[-1:] in ("e", "f", "g", "%", "E", "F", "G"):
                found.add((node.lineno, text))
    return found


def test_what_rounds_to_zero_is_printed_without_a_sign() -> None:
    for path in FILES:
        for line, text in formats(path):
            assert "z" in text, f"{path}:{line}: a small negative number prints as -0; write z: {{x:z.2f}}, {{x:+z.2f}}"


def loaded(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-P", "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


RUNS = "arm,seed,loss\n" + "\n".join(f"{arm},{seed},{2 + seed / 10}" for arm in ("plain", "new") for seed in range(3))
"""Runs of another program, as CSV."""

COMPARE = "compare runs.csv --baseline plain --metric loss"


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import lm.api, lm.report.write",
        pytest.param(
            f"import lm; lm.figure(lm.load('{ROOT.parent}/results/reference/glu'), 'reliability')",
            marks=pytest.mark.extra,
        ),
        pytest.param(f"from lm.cli import main; assert not main('{COMPARE}'.split())", marks=pytest.mark.extra),
    ],
)
def test_reading_results_takes_no_torch(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(RUNS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT.parent))
    found = loaded(statement)
    assert "lm" in found
    assert not found & {"torch", "lightning"}


@pytest.mark.slow
def test_the_package_alone_loads_nothing_heavy() -> None:
    assert not loaded("import lm") & {"torch", "lightning", "pandas", "matplotlib", "numpy"}


def test_what_the_package_exposes_is_what_type_checkers_are_told() -> None:
    stub = (ROOT / "__init__.pyi").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^from lm.api import (\w+) as \1$", stub, re.MULTILINE)) == sorted(
        {*lm.__all__} - {"__version__"}
    )
    assert all(getattr(lm, name) is getattr(lm.api, name) for name in lm.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        getattr(lm, "laod")  # noqa: B009, of which type checkers know that it is not there


VAGUE = {"found", "said", "told", "kept", "asked", "given", "known", "there", "one", "made"}
VAGUE |= {"wanted", "begun", "lost", "taken", "looked", "mine", "ours"}
"""Names that say how a value was obtained, or nothing, and not what it is."""


def stored_names(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every variable and parameter of a file."""
    for node in nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


@pytest.mark.parametrize("part", ORDER)
def test_variables_are_called_by_what_they_hold(part: str) -> None:
    paths = [path for path in FILES if path.relative_to(ROOT).with_suffix("").parts[0] == part]
    assert paths
    vague = {f"{path}:{line} {name}" for path in paths for name, line in stored_names(path) if name in VAGUE}
    assert vague == set()


def test_a_name_means_one_class_and_at_most_two_modules() -> None:
    class_counts = Counter(node.name for path in FILES for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert {name for name, count in class_counts.items() if count > 1} == set()
    module_counts = Counter(path.stem for path in FILES if path.stem != "__init__")
    assert {name for name, count in module_counts.items() if count > 2} == set()
