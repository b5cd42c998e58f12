"""What the package asks for, and which of it is installed; nothing of that is imported to find out."""

import importlib.util
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from lm.config.reading import PACKAGE

NAME = "lm-ablations"
NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CORE = ""
"""Stands for what is always needed, beside the names of the extras."""

ADDS = {
    "translation": "BLEU of translations",
    "bench": "other implementations beside which `make bench` measures ours",
    "track": "loggers: tensorboard, wandb and mlflow",
    "search": "searches with GP and CMA-ES, and importances by fANOVA",
    "postgres": "searches shared over PostgreSQL",
    "dashboard": "the pages of Optuna on a search, which `lm dashboard` leads to",
    "ray": "`--executor ray`: cells on a Ray cluster",
    "slurm": "`--executor slurm`: cells as jobs of SLURM",
    "dev": "what checks this package: tests, types, a browser, notebooks",
}
"""What each extra adds."""


@dataclass(frozen=True)
class Package:
    """A package that is asked for.

    Args:
        name: on the package index.
        asked: which versions, such as `>=2.9`; may be empty.
        version: that is installed; None where none is.
        wrong: what is wrong with that, in words; empty where nothing is.
    """

    name: str
    asked: str
    version: str | None
    wrong: str


def requirements(root: Path = PACKAGE.parent) -> dict[str, list[str]]:
    """What is asked for, always (CORE) and by each extra: as a clone at `root` says, or else as was installed.

    Nothing where neither is there, as for a folder that was only copied.
    """
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        project = {}
    if project.get("name") == NAME:
        return {CORE: list(project.get("dependencies", [])), **project.get("optional-dependencies", {})}
    try:
        told = metadata.metadata(NAME)
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {CORE: [], **{extra: [] for extra in told.get_all("Provides-Extra") or []}}
    for line in told.get_all("Requires-Dist") or []:
        asked, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        found.setdefault(extra[1] if extra else CORE, []).append(asked.strip())
    return found


def packages(asked: Iterable[str], modules: Mapping[str, list[str]]) -> list[Package]:
    """Those asked for by lines such as `torch>=2.9`; `modules` says what each installed one lets a program import."""
    return [_package(line, modules) for line in asked]


def _package(line: str, modules: Mapping[str, list[str]]) -> Package:
    named = NAMED.match(line)
    name = named[0] if named else line
    asked = line[len(name) :].strip()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, asked, None, "is not installed")
    if not _fits(asked, version):
        return Package(name, asked, version, f"{version} is installed, expected {asked}")
    own = modules.get(canonical(name), [])
    gone = [module for module in own if not _there(module)]
    if own and len(gone) == len(own):
        return Package(name, asked, version, f"{version} is installed, but its files are gone ({gone[0]})")
    return Package(name, asked, version, "")


def _fits(asked: str, version: str) -> bool:
    """Whether a version is one of those asked for; yes where that cannot be told, for want of what tells it."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return True
    try:
        return SpecifierSet(asked).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def modules_of() -> dict[str, list[str]]:
    """The modules at the top of each installed package, by its name as `canonical` writes it."""
    found: dict[str, list[str]] = {}
    for module, owners in metadata.packages_distributions().items():
        for owner in owners:
            if module.isidentifier():
                found.setdefault(canonical(owner), []).append(module)
    return found


def module_of(name: str, modules: Mapping[str, list[str]]) -> str:
    """What to import of a package, as far as is known."""
    own = [module for module in modules.get(canonical(name), []) if not module.startswith("_")]
    return own[0] if own else name.replace("-", "_")


def canonical(name: str) -> str:
    """One spelling of the name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip_line(extra: str, root: Path = PACKAGE.parent) -> str:
    """What adds an extra; CORE for what is always needed."""
    of = f"[{extra}]" if extra else ""
    return f"pip install '.{of}'" if (root / "pyproject.toml").is_file() else f"pip install '{NAME}{of}'"
