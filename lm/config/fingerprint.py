"""The code of a user's own classes, as far as it says what a cell computes.

A class named by its dotted path is known by the syntax tree of its module and of the modules of the same project that
this one imports: comments, docstrings and layout do not count, everything else does. What a package holds that was
installed from an index is known by the package's name and version. Neither what is imported by a name made at run time
nor data that a module reads is seen.
"""

import ast
import functools
import hashlib
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lm.config.imported import import_object
from lm.config.tree import InputError

OURS = __name__.split(".")[0]
"""This package, whose own parts have versions: see lm/config/fingerprint.py."""

Version = tuple[int, int, int]

Versions = frozenset[tuple[str, object]]
"""Files of code with their versions, or modules with what installed them."""


def dotted_classes(config: Any) -> list[str]:
    """The dotted paths of the classes that a resolved configuration names, in order, each once."""
    found = sorted(set(_class_paths(config)))
    return [name for name in found if "." in name]


def _class_paths(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("class_path"), str):
            yield node["class_path"]
        for inner in node.values():
            yield from _class_paths(inner)
    elif isinstance(node, list):  # of callbacks
        for inner in node:
            yield from _class_paths(inner)


def code_of(config: Any) -> dict[str, str]:
    """Each class that a resolved configuration names by its dotted path, and what its code is known by.

    Raises:
        InputError: where a module was changed after this process imported it.
    """
    return {name: fingerprint(import_object(name, name)) for name in dotted_classes(config)}


def fingerprint(cls: type) -> str:
    """A hash of the code behind a class of a user's own, or name and version of the installed package that holds it."""
    if (package := _installed(cls.__module__)) is not None:
        return package
    digest = hashlib.sha256()
    for part, path in source_files(cls).items():
        digest.update(f"{part}\n{_read(path, _version(path)).tree}\n".encode())
    return digest.hexdigest()


def source_files(cls: type) -> dict[str, Path]:
    """The files that hold the code of a class of a user's own, by their modules' names; none of an installed package.

    Raises:
        InputError: where one was changed after this process imported it.
    """
    module = cls.__module__
    path = _loaded_from(module)
    if path is None or _installed(module) is not None:
        return {}
    root = _root(module, path)
    found: dict[str, Path] = {}
    queue = [module, *_and_above(module)]
    while queue:
        part = queue.pop()
        file = path if part == module else _file_of(part, root)
        if part in found or file is None or not _same_project(part, module, root):
            continue
        found[part] = file
        _unchanged(part, file)
        package = part if file.name == "__init__.py" else part.rpartition(".")[0]
        for asked in _read(file, _version(file)).imports:
            queue.extend(_and_above(_absolute(asked, package)))
    return dict(sorted(found.items()))


def versions_of(config: Any) -> Versions:
    """What code a process imports for the classes that a resolved configuration names by their dotted paths.

    Two that are equal name the same files, not changed in between, and the same versions of installed packages.

    Raises:
        InputError: where a module was changed after this process imported it.
    """
    found: set[tuple[str, object]] = set()
    for name in dotted_classes(config):
        cls = import_object(name, name)
        files = source_files(cls)
        found |= {(str(path), _version(path)) for path in files.values()}
        if not files:
            found.add((cls.__module__, _installed(cls.__module__)))
    return frozenset(found)


def project_folder(cls: type) -> Path | None:
    """The folder from which the module of a class is imported; None where an installed package holds it."""
    path = _loaded_from(cls.__module__)
    return None if path is None or _installed(cls.__module__) is not None else _root(cls.__module__, path)


def _and_above(module: str) -> Iterator[str]:
    """A module and the packages around it, which are run when it is imported."""
    parts = module.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _absolute(asked: str, package: str) -> str:
    """The name of a module that is asked for from within a package; leading dots go up from there."""
    level = len(asked) - len(asked.lstrip("."))
    if not level:
        return asked
    above = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join([*above, *filter(None, [asked.lstrip(".")])])


# where code lies -----------------------------------------------------------------------------------------------------


@functools.cache
def _libraries() -> tuple[Path, ...]:
    """The folders into which packages are installed, and the standard library's."""
    paths = sysconfig.get_paths()
    folders = [*(paths[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")), *site.getsitepackages()]
    return tuple(dict.fromkeys(Path(folder).resolve() for folder in (*folders, site.getusersitepackages())))


def _loaded_from(module: str) -> Path | None:
    """The file of an imported module; None for one without."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None


def _installed(module: str) -> str | None:
    """Name and version of the package from an index that holds a module; None for a user's own, installed or not."""
    path = _loaded_from(module)
    top = module.split(".")[0]
    if path is not None and not any(path.is_relative_to(folder) for folder in _libraries()):
        return None
    for package in _distributions().get(top, ()):
        if metadata.distribution(package).read_text("direct_url.json"):  # PEP 610: from a folder or a repository
            return None
        return f"{package} {metadata.version(package).partition('+')[0]}"
    return f"{top} of Python {sys.version_info.major}.{sys.version_info.minor}"


def _same_project(part: str, module: str, root: Path) -> bool:
    """Whether a module below `root` belongs to the project of another; what is installed has its neighbours' names."""
    top = part.split(".")[0]
    return top != OURS and (root not in _libraries() or top == module.split(".")[0])


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return metadata.packages_distributions()


def _root(module: str, path: Path) -> Path:
    """The folder that holds the outermost package of a module at `path`, or the module itself."""
    inside = path.parent if path.name == "__init__.py" else path
    return inside.parents[len(module.split(".")) - 1]


def _file_of(module: str, root: Path) -> Path | None:
    """The file of a module below a folder; None where it holds none of that name."""
    place = root.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_name(place.name + ".py"))
    return next((path for path in candidates if path.is_file()), None)


# what it says --------------------------------------------------------------------------------------------------------


class _Source:
    """A file of code: its tree as text, and the modules it asks for, those of its own package with leading dots."""

    def __init__(self, content: bytes) -> None:
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # found by whoever imports it
            self.tree, self.imports = hashlib.sha256(content).hexdigest(), []
            return
        self.imports = list(_imports(tree))
        self.tree = "".join(_words(tree))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            joint = "." if node.module else ""
            yield from (f"{base}{joint}{alias.name}" for alias in node.names if alias.name != "*")


def _words(node: Any) -> Iterator[str]:
    """A syntax tree as text, without docstrings; the same whichever version of Python has read the code.

    Versions add fields to kinds of nodes, whose value is nothing in code that knows nothing of them.
    """
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "kind", "type_comment") or value is None or value == []:
                continue
            yield f" {name}="
            yield from _words(_without_docstring(node, value) if name == "body" else value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for inner in node:
            yield from _words(inner)
            yield ","
        yield "]"
    else:
        yield repr(node)


def _without_docstring(node: ast.AST, body: Any) -> Any:
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    if documented and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[1:] if isinstance(body[0].value.value, str) else body
    return body


def _version(path: Path) -> Version:
    """What tells one content of a file from another without reading it."""
    file = path.stat()
    return file.st_ino, file.st_mtime_ns, file.st_size


@functools.lru_cache(maxsize=1024)
def _read(path: Path, version: Version) -> _Source:
    return _Source(path.read_bytes())


_met: dict[str, tuple[int, Version]] = {}
"""Modules as they were met first: which object they are, and the version of their file."""


def _unchanged(module: str, path: Path) -> None:
    """Refuses a file that was changed after it was imported here: what would be trained is not what it says now."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return
    met = _met.setdefault(module, (id(loaded), _version(path)))
    if met[0] != id(loaded):  # imported anew
        _met[module] = id(loaded), _version(path)
    elif met[1] != _version(path):
        raise InputError(
            f"{path}: was changed after it was imported; start anew, so that what is trained is what it says"
        )


# behaviour ------------------------------------------------------------------------------------------------------------

EVERY = "training"
"""The name of what all cells have in common: initial streams, the order of batches, the steps, evaluation's NLL."""

VERSIONS: dict[str, int] = {}
"""Versions by the name of a part's class, or EVERY; a part that is not listed has version 1."""


def behaviour_of(config: Any) -> dict[str, int]:
    """The versions above 1 of the parts that a resolved configuration names."""
    return {name: version for name, version in sorted(VERSIONS.items()) if version > 1 and name in parts_of(config)}


def parts_of(config: Any) -> set[str]:
    """The names of the classes of a resolved configuration, and EVERY."""
    found = {EVERY}
    if isinstance(config, Mapping):
        if isinstance(config.get("class_path"), str):
            found.add(config["class_path"])
        for inner in config.values():
            found |= parts_of(inner)
    return found
