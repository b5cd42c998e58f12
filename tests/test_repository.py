"""Files of the repository that tools and people outside it read."""

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lm import __version__
from lm.cli.entry import parsers

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_a_wheel_holds_the_package_its_types_and_its_licence() -> None:
    setuptools = project()["tool"]["setuptools"]
    assert setuptools["packages"]["find"]["include"] == ["lm", "lm.*"]
    assert (ROOT / "lm" / "py.typed").is_file()
    assert "py.typed" in setuptools["package-data"]["lm"]
    assert project()["project"]["license"] == "Apache-2.0"
    for name in project()["project"]["license-files"]:
        assert "Apache License\n                           Version 2.0" in (ROOT / name).read_text(encoding="utf-8")


def test_every_file_speaks_of_the_same_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert cited["license"] == project()["project"]["license"]
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_runs_the_checks_on_a_supported_python() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = flow["jobs"]["test"]["steps"]
    assert any(step.get("run") == "bash .ci/run" for step in steps)
    (python,) = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    assert project()["project"]["requires-python"] == f">={python}"


def test_hooks_call_the_tools_of_the_project() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    wanted = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks[0]["hooks"]}
    assert wanted <= {re.split(r"[<>=[]", one)[0] for one in project()["project"]["optional-dependencies"]["dev"]}


def test_every_part_of_the_whole_check_is_described() -> None:
    script = (ROOT / ".ci" / "all").read_text(encoding="utf-8")
    (parts,) = re.findall(r"^all=\((.*)\)$", script, re.MULTILINE)
    for part in parts.split():
        assert re.search(rf"^{part}\(\) ", script, re.MULTILINE), part
    (told,) = re.findall(r"^test-all:.*", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r": ([a-z ]+),", told) == [parts]


def test_everything_that_is_asked_for_is_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    asked = [*project()["project"]["dependencies"]]
    for extra in project()["project"]["optional-dependencies"].values():
        asked += extra
    assert {re.split(r"[<>=[]", one)[0].lower().replace("_", "-") for one in asked} <= pinned


TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
COMMANDS = set(next(iter(parsers()[0]._subparsers._group_actions)).choices)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_names_commands_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    former = {"audit", "bench", "chaos", "verify"} if page.name == "CHANGELOG.md" else set()
    commands = re.findall(r"(?:`|^    (?:\$ )?)(lm|make) ([a-z][a-z-]*)", text, re.M)
    for program, name in commands:
        assert name in (COMMANDS | former if program == "lm" else TARGETS), f"{page.name}: {program} {name}"


def test_the_sources_are_python_of_the_oldest_version_supported() -> None:
    major, minor = map(int, project()["project"]["requires-python"].removeprefix(">=").split("."))
    for path in ROOT.glob("lm/**/*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(major, minor))


AUDITS = {
    "exit 0": (0, "2 packages asked about, 0 with an advisory", '{"dependencies": [{"name": "a"}, {"name": "b"}]}'),
    "exit 1": (
        1,
        "1 packages asked about, 1 with an advisory",
        '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}]}',
    ),
    "echo no network >&2; exit 1": (77, "left out: no advisories could be had: no network", ""),
}
"""How a stand-in for pip-audit ends: the exit code, the last line that is said, and the file that it leaves."""


@pytest.mark.slow
@pytest.mark.parametrize("ends", AUDITS)
def test_the_advisory_check_tells_findings_from_an_unreachable_service(ends: str, tmp_path: Path) -> None:
    code, said, left = AUDITS[ends]
    fake = tmp_path / "pip-audit"
    fake.write_text(
        "#!/usr/bin/env bash\n"
        f"while [ $# -gt 0 ]; do [ $1 = --output ] && printf %s '{left}' > $2; shift; done\n{ends}\n"
    )
    fake.chmod(0o755)
    command = ["bash", str(ROOT / ".ci" / "advisories")]
    done = subprocess.run(command, env={**os.environ, "PIP_AUDIT": str(fake)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (code, said, "")
