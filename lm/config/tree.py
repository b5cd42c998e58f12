"""YAML -> configuration tree -> canonical form -> run id.

A configuration is a tree of plain values. This module reads, changes, compares and hashes trees;
lm/config/components.py checks their content.
"""

import contextlib
import copy
import difflib
import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lm.config.plain import DEEPEST, clipped, find_unusable, parse_yaml, shown

Tree = dict[str, Any]

LONGEST_MESSAGE = 2000
LONGEST_FILE = 1_000_000
"""Bytes of a YAML file. Larger files are no settings, and PyYAML takes most of a minute for them."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
LONGEST_NAME = 200  # bytes; file systems accept 255, and endings such as `.tuned` and `.owner` are added


class InputError(Exception):
    """Invalid input of the user; the message is one line: the place, the value and what is accepted."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message, LONGEST_MESSAGE))


@contextlib.contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Put a prefix before the message of an InputError that is raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}: {error}") from None


def nearest(word: object, choices: Sequence[str]) -> str:
    """Return ` Did you mean X?` for the closest of `choices` that is not the word itself, or an empty string."""
    lowered = {choice.lower(): choice for choice in reversed(choices) if choice != word}
    close = difflib.get_close_matches(str(word).lower(), list(lowered), n=1, cutoff=0.6)
    return f" Did you mean {lowered[close[0]]}?" if close else ""


def require_regular(path: Path | str) -> None:
    """Raise OSError unless `path` is a plain file: opening a pipe may wait forever, and a device has no end."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, "no name for a file") from None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a folder" if stat.S_ISDIR(mode) else "not a plain file")


def require_place(path: Path, where: str, folder: bool = False) -> None:
    """Raise InputError, beginning with `where`, if a file or a folder that may be missing cannot be written."""
    import tempfile  # few commands need it

    existing, problem = path, ""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)  # fails for what is no name of a file
        existing = next(filter(Path.exists, (path, *path.absolute().parents)))
        if existing == path and not folder:
            problem = "expected a plain file, or none yet" * (not path.is_file())
            problem = problem or f"{path} cannot be written to" * (not os.access(path, os.W_OK))
        elif not existing.is_dir():
            problem = f"{existing} is no folder; expected a folder"
        else:
            os.rmdir(tempfile.mkdtemp(prefix=".lm-", dir=existing))  # fails in /proc, even for root
    except ValueError:
        problem = "no name for a file"
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk is no error of the path
            problem = f"{existing} cannot be written to ({error.strerror})"
    if problem:
        raise InputError(f"{where} {path}: {problem}")


def load_yaml(path: Path) -> Tree:
    """Read the mapping in the YAML file at `path`; raise InputError with file and line."""
    try:
        require_regular(path)
        with open(path, "rb") as file:
            content = file.read(LONGEST_FILE + 1)
        text = content.decode("utf-8")
    except OSError as error:
        siblings = sorted(str(p) for p in path.parent.glob("*.yaml")) if os.path.isdir(path.parent) else []
        raise InputError(f"{path}: cannot be read ({error.strerror}).{nearest(path, siblings)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected a YAML file") from None
    if len(content) > LONGEST_FILE:
        raise InputError(f"{path}: is longer than {LONGEST_FILE:,} bytes; expected a file of settings")
    try:
        tree = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise InputError(f"{path}{line}: not valid YAML: {clipped(problem, 200)}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(tree).__name__}")
    if problem := find_unusable(tree):
        raise InputError(f"{path}: {problem}")
    return tree


def parse_value(text: str, where: str = "") -> Any:
    """Read a text as YAML, else return it as it is; raise InputError for what no configuration can hold."""
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        value = text
    if problem := find_unusable(value, where):
        raise InputError(problem)
    return value


def path_name(name: object, where: str) -> str:
    """Return a name for a file or a folder; raise InputError for a name that could lead elsewhere, or is too long."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        expected = "use letters, digits, '_', '-', '+' and '.', the first a letter or a digit"
        raise InputError(f"{where}: {shown(name)} cannot name a file; {expected}")
    if len(name) > LONGEST_NAME:
        raise InputError(f"{where}: a name of {len(name)} characters, expected {LONGEST_NAME} at most: {shown(name)}")
    return name


def join(path: str, name: str) -> str:
    """Return `path.name`, or `name` at the root."""
    return f"{path}.{name}" if path else name


INHERITED = "(base)"  # key of a node, with the node of the base that it replaced


def is_component(node: Any) -> bool:
    """Return True for a node that names its class."""
    return isinstance(node, Mapping) and "class_path" in node


def is_schedule(node: Any) -> bool:
    """Return True for a mapping of numbers to numbers, such as `{0: 16, 1.0e6: 32}`, whose keys YAML gives as text."""
    if not isinstance(node, Mapping) or not all(isinstance(value, int | float) for value in node.values()):
        return False
    try:
        return bool(node) and all(math.isfinite(float(key)) for key in node)
    except (TypeError, ValueError):
        return False


def is_value(node: Any) -> bool:
    """Return True for a mapping that is replaced whole: a component, or a schedule."""
    return is_component(node) or is_schedule(node)


def dotted_changes(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the changes in a mapping by dotted path; a component replaces the node."""
    for key, value in tree.items():
        inner = join(path, str(key))
        if isinstance(value, Mapping) and value and not is_value(value):
            yield from dotted_changes(value, inner)
        else:
            yield inner, value


def override(tree: Tree, changes: Mapping[str, Any]) -> Tree:
    """Return a copy of `tree` with dotted `changes` applied.

    A node that names a class replaces the one before it whole, so that no option of the class before it survives;
    `init_args` may be left out of a path. Any other mapping is merged into the component or section that stands there;
    a schedule is replaced whole. A model of a user's own, or one in its place, has the node that it replaces under
    INHERITED, for `resolve` to take the settings that fit.
    """
    tree = copy.deepcopy(tree)
    for path, value in changes.items():
        names = path.split(".")
        if len(names) > DEEPEST:
            raise InputError(f"{shown(path)}: a path of {len(names)} names, expected {DEEPEST} at most")
        before = tree.get("model")
        _set(tree, names, copy.deepcopy(value))
        after: Any = {"class_path": tree["model"]} if isinstance(tree.get("model"), str) else tree.get("model")
        nodes: list[Any] = [node for node in (before, after) if is_component(node)]
        if after is not before and len(nodes) == 2 and any("." in str(node["class_path"]) for node in nodes):
            tree["model"] = {**after, INHERITED: before}
    return tree


def _set(node: Tree, path: list[str], value: Any) -> None:
    if is_component(node) and path[0] not in ("class_path", "init_args"):
        node["init_args"] = {} if node.get("init_args") is None else node["init_args"]
        below, node = node.get(INHERITED), node["init_args"]
        if not isinstance(node, dict):
            raise InputError(f"{path[0]}: expected it among init_args, a mapping of settings, found {shown(node)}")
        while path[0] not in node and isinstance(below, Mapping):  # what is changed further down is kept for the rest
            if isinstance(inherited := below.get("init_args"), Mapping) and path[0] in inherited:
                node[path[0]] = copy.deepcopy(inherited[path[0]])
            below = below.get(INHERITED)
    key, rest = path[0], path[1:]
    if key == "layers" and (rest or isinstance(value, dict)):
        node[key] = _open_layers(node.get(key), rest[:1] or value)
    current = node.get(key)
    if rest == ["class_path"]:
        node[key] = value
    elif rest:
        if isinstance(current, str):  # a component given by name alone, now with an option
            node[key] = {"class_path": current}
        elif not isinstance(current, dict):
            node[key] = {}
        _set(node[key], rest, value)
    elif isinstance(value, dict) and isinstance(current, dict) and not is_value(value) and not is_schedule(current):
        for name, inner in value.items():
            _set(current, str(name).split("."), inner)
    else:
        node[key] = value


def _open_layers(layers: Any, changed: Iterable[str]) -> Any:
    """Return the layers of a model as a mapping that changes can go into, without a number that these replace."""
    if type(layers) is int or isinstance(layers, list):
        layers = {"count" if type(layers) is int else "pattern": layers}
    if isinstance(layers, dict) and not {"count", "repeat"}.isdisjoint(changed):
        layers.pop("repeat" if "count" in changed else "count", None)
    return layers


def canonical(value: Any) -> str:
    """Format a value as JSON with sorted keys, no spaces and no NaN: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def run_id(value: Any) -> str:
    """Return the SHA-256 of the canonical form of a value, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the plain values of a tree by dotted path; a component is its class name, with its options below."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = join(prefix, key)
        if is_component(value):
            flat[path] = value["class_path"]
            flat.update(flatten(value.get("init_args", {}), path))
        elif isinstance(value, Mapping):
            flat.update(flatten(value, path))
        elif key == "layers" and isinstance(value, list):
            flat[path] = len(value)
            for index, layer in enumerate(value):
                flat.update(flatten(layer, f"{path}.{index}"))
        else:
            flat[path] = value
    return flat


OWN_PARTS = ("norm", "position")  # parts of layers that a model uses itself: at its end, and for its embeddings
_IN_LAYER = re.compile(r"(.*?)layers\.(\d+)\.((\w+).*)")


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted paths at which two resolved configurations differ, with both values; None if missing.

    A difference that several layers share has one path, such as `model.layers.0,3.mlp`.
    """
    a, b = flatten(left), flatten(right)
    a, b = _spread_layers(a, b), _spread_layers(b, a)
    changed: dict[str, tuple[Any, Any]] = {}
    indices: dict[tuple[str, str, str], list[int]] = {}
    for path in sorted({*a, *b}):
        if (values := (a.get(path), b.get(path)))[0] != values[1]:
            if match := _IN_LAYER.fullmatch(path):
                key = match[1], match[3], canonical(values)
                indices.setdefault(key, []).append(int(match[2]))
            else:
                changed[path] = values
    for (before, name, text), layers in indices.items():
        old, new = json.loads(text)
        changed[f"{before}layers.{','.join(map(str, sorted(layers)))}.{name}"] = old, new
    return changed


def _spread_layers(flat: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return plain values with those of a part in each layer if either configuration has layers that differ in it."""
    spread = dict(flat)
    for path in (*flat, *other):
        if (match := _IN_LAYER.fullmatch(path)) and match[3] == match[4]:
            before, index, part = match[1], match[2], match[1] + match[4]
            names = [name for name in flat if name == part or name.startswith(f"{part}.")]
            if path not in flat and int(index) < flat.get(f"{before}layers", 0):
                spread |= {f"{before}layers.{index}.{name.removeprefix(before)}": flat[name] for name in names}
            if match[4] not in OWN_PARTS:
                spread = {name: value for name, value in spread.items() if name not in names}
    return spread
