"""Fingerprints of the code that a cell computes with: of a user's own classes, and of this package's parts.

The fingerprint of a class named by its dotted path is a hash of the syntax trees of its module and of the modules of
the same project that it imports: comments, docstrings and layout do not count, everything else does. For a package
that was installed from an index it is the package's name and version. Imports by a name made at run time, and data
that a module reads, are not included.

Each part of this package has a behaviour version, which is in the id of every cell that uses the part. Whoever changes
what a part computes raises its version by hand, and those cells alone are trained again; rounding is no change. A test
compares the numbers of small cells with every part with those that were pinned at the last raise.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lm.config.imported import OURS, import_object, library_folders
from lm.config.tree import InputError

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Version = tuple[int, int, int]
_packages_distributions = functools.cache(metadata.packages_distributions)


def dotted_classes(config: Any) -> list[str]:
    """Return the dotted paths of the classes that a resolved configuration names, sorted, without duplicates."""
    return sorted(name for name in _class_paths(config) if "." in name)


def _class_paths(node: Any) -> set[str]:
    inner = list(node.values()) if isinstance(node, Mapping) else node if isinstance(node, list) else []
    name = node.get("class_path") if isinstance(node, Mapping) else None
    return set[str]().union([name] if isinstance(name, str) else [], *map(_class_paths, inner))


def code_of(config: Any) -> dict[str, str]:
    """Return the fingerprints of classes with dotted paths; raise InputError for a module changed after its import."""
    return {name: fingerprint(import_object(name, name)) for name in dotted_classes(config)}


def fingerprint(cls: type) -> str:
    """Return a hash of the code of a class, or the name and version of its installed package."""
    if (package := _installed(cls.__module__)) is not None:
        return package
    text = (f"{part}\n{_read(path, _version(path))[0]}\n" for part, path in source_files(cls).items())
    return hashlib.sha256("".join(text).encode()).hexdigest()


def source_files(cls: type) -> dict[str, Path]:
    """Return the files of a user's own class by module; raise InputError for one changed after its import."""
    module, path, root = cls.__module__, _loaded_from(cls.__module__), project_folder(cls)
    if path is None or root is None:
        return {}
    files: dict[str, Path] = {}
    queue = [module, *_and_above(module)]
    while queue:
        part = queue.pop()
        top, stem = part.split(".")[0], root.joinpath(*part.split("."))
        candidates = [path] if part == module else [stem / "__init__.py", stem.with_name(stem.name + ".py")]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        same_project = top != OURS and (root not in library_folders() or top == module.split(".")[0])
        if part in files or file is None or not same_project:
            continue
        files[part] = file
        _unchanged(part, file)
        package = part if file.name == "__init__.py" else part.rpartition(".")[0]
        for name in _read(file, _version(file))[1]:
            with contextlib.suppress(ImportError):  # relative to what is above all packages
                queue.extend(_and_above(importlib.util.resolve_name(name, package)))
    return dict(sorted(files.items()))


def project_folder(cls: type) -> Path | None:
    """Return the folder from which the module of a class is imported; None for an installed package."""
    path = _loaded_from(cls.__module__)
    if path is None or _installed(cls.__module__) is not None:
        return None
    inside = path.parent if path.name == "__init__.py" else path
    return inside.parents[len(cls.__module__.split(".")) - 1]


def _and_above(module: str) -> Iterator[str]:
    """Yield a module and the packages around it, which Python runs when it imports the module."""
    parts = module.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _loaded_from(module: str) -> Path | None:
    """Return the file of an imported module; None without one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None


def _installed(module: str) -> str | None:
    """Return name and version of the package of a module; None for a user's own package, installed or not."""
    path = _loaded_from(module)
    top = module.split(".")[0]
    if path is not None and not any(path.is_relative_to(folder) for folder in library_folders()):
        return None
    for package in _packages_distributions().get(top, ()):
        if metadata.distribution(package).read_text("direct_url.json"):  # PEP 610: from a folder or a repository
            return None
        return f"{package} {metadata.version(package).partition('+')[0]}"
    return f"{top} of Python {sys.version_info.major}.{sys.version_info.minor}"


def syntax_text(node: Any) -> Iterator[str]:
    """Yield the text of a syntax tree without docstrings; the same for all versions of Python.

    New versions add fields to nodes, which are empty for older code.
    """
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "kind", "type_comment") or value is None or value == []:
                continue
            if name == "body" and isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                value = value[1:]
            yield f" {name}="
            yield from syntax_text(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for inner in node:
            yield from syntax_text(inner)
            yield ","
        yield "]"
    else:
        yield repr(node)


def _version(path: Path) -> Version:
    """Return the inode, time of change and size of a file, which change with its content."""
    file = path.stat()
    return file.st_ino, file.st_mtime_ns, file.st_size


@functools.lru_cache(maxsize=1024)
def _read(path: Path, version: Version) -> tuple[str, list[str]]:
    """Return a file's syntax tree as text, and the modules that it imports, relative ones with leading dots."""
    content, imports = path.read_bytes(), list[str]()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # its import reports it
        return hashlib.sha256(content).hexdigest(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = (alias.name for alias in node.names if alias.name != "*")
            imports += (base, *(f"{base}{'.' if node.module else ''}{name}" for name in names))
    return "".join(syntax_text(tree)), imports


_first_versions: dict[tuple[str, int], Version] = {}
"""Version of the file of each module object at its first fingerprint."""


def _unchanged(module: str, path: Path) -> None:
    """Raise InputError if a file was changed after this process imported it: the old code would be trained."""
    loaded = sys.modules.get(module)
    if loaded is not None and _first_versions.setdefault((module, id(loaded)), _version(path)) != _version(path):
        remedy = "start anew, so that what is trained is what it says"
        raise InputError(f"{path}: was changed after it was imported; {remedy}")


EVERY = "training"
"""Name of what all cells share: random streams, the order of batches, the steps and the NLL of an evaluation."""

VERSIONS: dict[str, int] = {"Differential": 2}
"""Version of each part by the name of its class, or EVERY; a part that is not listed has version 1."""


def behaviour_of(config: Any) -> dict[str, int]:
    """Return the versions above 1 of the parts that a resolved configuration names."""
    return {name: version for name, version in sorted(VERSIONS.items()) if version > 1 and name in parts_of(config)}


def parts_of(config: Any) -> set[str]:
    """Return the names of the classes of a resolved configuration, and EVERY."""
    return {EVERY, *_class_paths(config)}
