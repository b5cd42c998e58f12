"""Files to begin with: a small project, and copies of experiments and sweeps that come with the package."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lm.config.reading import SHIPPED_FOLDERS, shipped_files
from lm.config.tree import InputError, load_yaml, nearest, require_place
from lm.store.files import write_atomic

STARTER = Path(__file__).parent / "starter"
SCHEMA = re.compile(r"^# yaml-language-server:.*\n", re.MULTILINE)
"""Names a file of a clone, which a copy does not lie beside."""

BASE = re.compile(r"^(\s*base: )(\S+\.yaml)", re.MULTILINE)


def starter() -> dict[str, str]:
    """The files of a small project, by their paths in it."""
    files = (path for path in sorted(STARTER.rglob("*")) if path.suffix in (".yaml", ".py", ".md"))
    return {path.relative_to(STARTER).as_posix(): path.read_text(encoding="utf-8") for path in files}


def copies(name: str) -> dict[str, str]:
    """A shipped experiment, sweep or configuration with the bases that it names, by their paths in a project.

    Raises:
        InputError: where nothing of that name is shipped, with the nearest.
    """
    kinds = {kind: shipped_files(kind) for kind in SHIPPED_FOLDERS}
    for kind, files in kinds.items():
        if name in files:
            place = f"bases/{name}.yaml" if kind == "configuration" else f"{name}.yaml"
            return {place: _moved(files[name]), **_bases(files[name])}
    known = [name for files in kinds.values() for name in files]
    raise InputError(f"{name}: nothing of that name is shipped.{nearest(name, known)} Choose from {', '.join(known)}")


def _moved(path: Path) -> str:
    """A file as it stands in a project, where all bases lie in `bases`."""
    text = SCHEMA.sub("", path.read_text(encoding="utf-8"))
    return BASE.sub(lambda found: f"{found[1]}bases/{Path(found[2]).name}", text)


def _bases(path: Path) -> dict[str, str]:
    return {f"bases/{Path(base).name}": _moved(path.parent / base) for base in _named(load_yaml(path))}


def _named(tree: Mapping[str, object]) -> Iterator[str]:
    """The files that a tree names as `base`, at any depth."""
    for key, value in tree.items():
        if key == "base" and isinstance(value, str) and value.endswith(".yaml"):
            yield value
        elif isinstance(value, Mapping):
            yield from _named(value)


def put(files: Mapping[str, str], folder: Path, where: str) -> list[Path]:
    """Writes files into a folder; returns those that were written, the others being there already, word for word.

    Raises:
        InputError: where one of them is there and says something else; then nothing is written.
    """
    require_place(folder, where, folder=True)
    written = []
    for name, text in files.items():
        path = folder / name
        require_place(path, where)
        if not path.exists():
            written.append(path)
        elif path.read_bytes() != text.encode():
            raise InputError(f"{path}: is there, and another than what would be written; choose another folder")
    for path in written:
        write_atomic(path, files[path.relative_to(folder).as_posix()])
    return written
