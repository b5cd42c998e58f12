"""Files to begin with: a small project, and copies of experiments and sweeps that come with the package."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lm.config.reading import SHIPPED_FOLDERS, shipped_files
from lm.config.tree import InputError, load_yaml, nearest, require_place
from lm.store.files import write_atomic

STARTER = Path(__file__).parent / "starter"
SCHEMA = re.compile(r"^# yaml-language-server:.*\n", re.MULTILINE)  # names a file of a clone

BASE = re.compile(r"^([^#\n]*\bbase: )(\S+\.yaml)", re.MULTILINE)


def starter() -> dict[str, str]:
    """Return the files of a small project, by their paths in it."""
    files = (path for path in sorted(STARTER.rglob("*")) if path.suffix in (".yaml", ".py", ".md"))
    return {path.relative_to(STARTER).as_posix(): path.read_text(encoding="utf-8") for path in files}


def copies(name: str) -> dict[str, str]:
    """Return a shipped file and the bases that it names, by their paths in a project. Raises InputError."""
    kinds = {kind: shipped_files(kind) for kind in SHIPPED_FOLDERS}
    for kind, files in kinds.items():
        if name in files:
            source = files[name]
            target = f"bases/{name}.yaml" if kind == "configuration" else f"{name}.yaml"
            bases = [source.parent / base for base in _bases_in(load_yaml(source))]
            return {target: _rebased(source), **{f"bases/{base.name}": _rebased(base) for base in bases}}
    names = [name for files in kinds.values() for name in files]
    raise InputError(f"{name}: nothing of that name is shipped.{nearest(name, names)} Choose from {', '.join(names)}")


def _rebased(path: Path) -> str:
    """Return the text of a file for a project, where all bases lie in `bases`."""
    text = SCHEMA.sub("", path.read_text(encoding="utf-8"))
    return BASE.sub(lambda match: f"{match[1]}bases/{Path(match[2]).name}", text)


def _bases_in(tree: Mapping[str, object]) -> Iterator[str]:
    for key, value in tree.items():
        if key == "base" and isinstance(value, str) and value.endswith(".yaml"):
            yield value
        elif isinstance(value, Mapping):
            yield from _bases_in(value)


def put(files: Mapping[str, str], folder: Path, where: str) -> list[Path]:
    """Write files into a folder; return the new ones. Raises InputError before any, where one has other content."""
    require_place(folder, where, folder=True)
    written = []
    for name, text in files.items():
        path = folder / name
        require_place(path, where)
        if not path.exists():
            written.append(path)
        elif path.read_bytes() != text.encode():
            raise InputError(f"{path}: exists with other content; choose another folder")
    for path in written:
        write_atomic(path, files[path.relative_to(folder).as_posix()])
    return written
